"""A new option is one edit: a field of a dataclass, and nothing else."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wattserve_common.arguments import count
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.option import SWITCH, WHOLE, option
from wattserve_loadgen.plan.load import Arm, closed
from wattserve_loadgen.plan.options import SweepOptions
from wattserve_loadgen.plan.plan_file import read_plan, write_plan
from wattserve_loadgen.plan.schedule import make_plan
from wattserve_loadgen.sweep_commands import add_measuring, read_options

PLACES = ("--target", "h:1", "--dataset", "d", "--out", "o")


@dataclass(frozen=True, kw_only=True)
class MoreOptions(SweepOptions):
    """The one edit, twice."""

    cool_down_s: int = option(3, WHOLE, "between cells", "N", read=count, group="time")
    gentle: bool = option(False, SWITCH, "one cell at a time")


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="loadgen", exit_on_error=False)
    add_measuring(whole.add_subparsers(), "more", MoreOptions, "measure with more options")
    return whole


def read(parser: argparse.ArgumentParser, *arguments: str) -> Any:
    flags = parser.parse_args(["more", *arguments])
    return read_options(MoreOptions, argparse.Namespace(**vars(flags), argv=()), "loadgen more")


def test_it_is_a_flag_with_a_check(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = read(parser, *PLACES, "--cool-down", "7", "--gentle")
    assert (asked.cool_down_s, asked.gentle) == (7, True)
    assert read(parser, *PLACES).cool_down_s == 3
    with pytest.raises(SystemExit):
        read(parser, *PLACES, "--cool-down", "0")
    assert "argument --cool-down: 0 must be at least 1" in capsys.readouterr().err


def test_its_help_says_its_default(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["more", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--cool-down N between cells (default: 3)" in text
    assert "--gentle, --no-gentle one cell at a time" in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cool-down = 0", "cool-down: 0 must be at least 1"),
        ("cool_down = 1.5", "cool-down: 1.5 is not a whole number"),
        ("gentle = 1", "gentle: 1 is not true or false"),
        ("gentleness = 1", "unknown key 'gentleness'; known: "),
    ],
)
def test_a_file_may_say_it_and_is_checked(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("cool-down = 9\ngentle = true\n")
    assert read_plan(path, MoreOptions, "loadgen more") == {"cool_down_s": 9, "gentle": True}
    path.write_text(line)
    with pytest.raises(PlanError) as caught:
        read_plan(path, MoreOptions, "loadgen more")
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_written_file_says_it_and_flags_win(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    asked = read(parser, *PLACES, "--cool-down", "7", "--gentle")
    text = write_plan(asked, make_plan("quick", [Arm("fp32", "fp32", "server")], loads=[closed(1)]))
    path = tmp_path / "plan.toml"
    path.write_text(text)
    again = read(parser, "--plan", str(path), "--no-gentle")
    assert (again.cool_down_s, again.gentle, again.loads) == (7, False, (closed(1),))
