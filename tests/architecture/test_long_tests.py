"""What `make test` leaves out for the time that it takes is run by another target, and CI calls that."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_IN_CI = "test-verify"  # eight minutes of real time


def test_every_long_test_is_run_by_a_target_that_ci_calls() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    called = set(re.findall(r'"make ([a-z-]+)"', (ROOT / ".ci" / "run").read_text("utf-8"))) | {NOT_IN_CI}
    covered: list[Path] = []
    for name, recipe in re.findall(r"^(test-[a-z-]+):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE):
        for command in recipe.splitlines() if name in called else ():
            if re.search(r"pytest .*-m (long|'not gpu')", command):
                named = re.findall(r" (tests/\S+)", command)
                covered += [path for pattern in named for path in sorted(ROOT.glob(pattern))]
    long = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.long" in path.read_text("utf-8")]
    own = Path(__file__)
    left = [path for path in long if path != own and not any(path.is_relative_to(by) for by in covered)]
    assert long
    assert not left, f"run by no target: {', '.join(map(str, left))}"
