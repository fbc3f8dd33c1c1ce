"""The demo model as it is shipped, and its copy in WATTSERVE_CACHE."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from wattserve_server.engine.builtin import demo, shipped
from wattserve_server.engine.builtin.demo import HELDOUT, SHA256, SHIPPED, demo_folder
from wattserve_server.errors import ConfigError


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATTSERVE_CACHE", raising=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "not" / "there yet"
    monkeypatch.setenv("WATTSERVE_CACHE", str(folder))
    return folder


def damage(path: Path) -> None:
    """One bit of it; its size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_package_holds_the_model_and_nothing_else_within_16_mb() -> None:
    files = list(SHIPPED.iterdir())
    assert sorted(path.name for path in files) == sorted(SHA256)
    assert sum(path.stat().st_size for path in files) <= 16e6


def test_without_a_cache_the_packages_own_folder_serves() -> None:
    assert demo_folder() == SHIPPED


@pytest.mark.long
def test_it_answers_as_well_as_its_card_says() -> None:
    card = re.search(r"accuracy \*\*([0-9.]+)%\*\*", (SHIPPED / "MODEL.md").read_text("utf-8"))
    assert card is not None
    model = AutoModelForSequenceClassification.from_pretrained(SHIPPED).eval()
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    lines = (SHIPPED / HELDOUT).read_text("utf-8").splitlines()
    assert len(lines) == 2000
    rows = [json.loads(line) for line in lines[:400]]
    inputs = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    with torch.inference_mode():
        answers = model(**inputs).logits.argmax(dim=-1).tolist()
    right = sum(model.config.id2label[answer] == ("negative", "positive")[row["label"]]
                for answer, row in zip(answers, rows, strict=True))  # fmt: skip
    assert right / 4 == pytest.approx(float(card[1]), abs=4.0)  # 400 of 2,000 rows: 1.3 points of chance


def test_a_copy_in_the_cache_serves_where_one_is_named(cache: Path) -> None:
    folder = demo_folder()
    assert folder.parent == cache
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: (SHIPPED / name).read_bytes() for name in SHA256
    }
    assert len({stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}) == 1


def test_a_copy_is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = demo_folder()
    monkeypatch.setattr(shipped, "_copy", lambda source, folder, names: pytest.fail("it is there"))
    assert demo_folder() == folder
    assert list(cache.iterdir()) == [folder]


def test_those_who_copy_at_once_find_one_copy(cache: Path) -> None:
    with ThreadPoolExecutor(4) as callers:
        found = {future.result() for future in [callers.submit(demo_folder) for _ in range(4)]}
    assert list(cache.iterdir()) == list(found)


def test_a_file_is_read_once_and_again_when_it_was_written_since(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = demo_folder()
    read: list[str] = []
    whole = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.append(path.name)
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    assert demo_folder() == folder
    assert read == []
    (folder / "config.json").touch()
    assert demo_folder() == folder
    assert read == ["config.json"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", HELDOUT])
def test_a_damaged_copy_is_refused_and_made_again_once_it_is_deleted(cache: Path, name: str) -> None:
    folder = demo_folder()
    damage(folder / name)
    with pytest.raises(ConfigError) as raised:
        demo_folder()
    assert str(raised.value) == (
        f"the demo model is damaged: {folder / name} is not the file that was shipped; "
        f"delete {folder}, and it is copied again"
    )
    shutil.rmtree(folder)
    assert demo_folder() == folder


def test_a_copy_without_one_of_its_files_is_refused(cache: Path) -> None:
    folder = demo_folder()
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=rf"{folder / 'config.json'} is missing; delete {folder}, and"):
        demo_folder()


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_damaged_package_is_to_be_installed_again(
    with_cache: bool, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    shutil.copytree(SHIPPED, package)
    damage(package / "model.safetensors")
    monkeypatch.setattr(demo, "SHIPPED", package)
    if not with_cache:
        monkeypatch.delenv("WATTSERVE_CACHE")
    with pytest.raises(ConfigError, match=r"package/model\.safetensors is not .*; install wattserve again"):
        demo_folder()
    assert not cache.exists()


def test_a_killed_copy_is_not_taken_for_the_model(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            demo_folder()
    assert list(cache.iterdir()) == []
    assert sorted(os.listdir(demo_folder())) == sorted(SHA256)


def test_a_cache_that_cannot_be_written_is_the_operators_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WATTSERVE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match=r"file/cache: Not a directory; set WATTSERVE_CACHE to a folder"):
        demo_folder()
