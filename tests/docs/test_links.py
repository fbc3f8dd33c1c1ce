"""Every relative link of the documents leads to a file, and to a heading in it where it names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.fences import DOCUMENTS, ROOT, name_of

PAGES = sorted({*DOCUMENTS, *ROOT.glob("*.md")})
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return [each for each in LINK.findall(text) if not re.match(r"[a-z]+:", each)]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    found: set[str] = set()
    for heading in re.findall(
        r"^#{1,6} +(.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    ):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        times = sum(
            each == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", each) is not None for each in found
        )
        found.add(f"{slug}-{times}" if times else slug)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    seen, waiting = {index}, [index]
    while waiting:
        page = waiting.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in seen:
                seen.add(target)
                waiting.append(target)
    unreached = {name_of(page) for page in DOCUMENTS if page not in seen}
    assert {name for name in unreached if not name.startswith(("docs/adr/", "docs/results/"))} == {
        "README.md"
    }
