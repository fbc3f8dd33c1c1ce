"""What all commands have in common: options by their full names, mistakes in one line, words."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import wattserve_client.cli
import wattserve_loadgen.cli
import wattserve_tools.cli
from wattserve_common.arguments import Parser, duration, host_and_port, number, whole
from wattserve_common.words import counted, origin

PROGRAMS = (wattserve_client.cli, wattserve_loadgen.cli, wattserve_tools.cli)


def within(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """It, and the parsers of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from within(command)


def test_every_command_takes_options_by_their_full_names_only() -> None:
    parsers = [parser for program in PROGRAMS for parser in within(program._parser())]
    assert len(parsers) > 20
    assert [parser.prog for parser in parsers if not isinstance(parser, Parser) or parser.allow_abbrev] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_standard_output_nothing_is_done(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert program.main(["keys", "add", "--file", str(tmp_path / "keys.toml"), "--tenant", "shop"]) == 2
    assert "standard output is closed; send what nobody" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_an_abbreviation_is_a_mistake_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert wattserve_tools.cli.main(["serve", "--variant", "fp32"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error == (
        "wattserve: error: there is no option --variant here; did you mean --variants? "
        "(see `wattserve serve --help`)\n"
    )


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (
            wattserve_tools.cli,
            ("--model", "./m", "serve"),  # not: the command ./m is unknown
            "there is no option --model here; a command's options stand behind its name (see `wattserve --h",
        ),
        (
            wattserve_tools.cli,
            ("serv",),
            "argument COMMAND: 'serv' is unknown; did you mean serve? (see `watt",
        ),
        (
            wattserve_tools.cli,
            ("variants", "export", "--variant", "int8", "--out", "x", "--modle=y"),
            "there is no option --modle here; did you mean --model? (see `wattserve variants export --help`)",
        ),
        (
            wattserve_loadgen.cli,
            ("sweep", "--conc", "4"),
            "there is no option --conc here; did you mean --conc",
        ),
        (
            wattserve_loadgen.cli,
            ("report", "a", "b"),
            "'b' is one word too many (see `loadgen report --help`)",
        ),
        (
            wattserve_client.cli,
            ("info", "b"),
            "'b' is one word too many (see `wattserve-client info --help`)",
        ),
        (
            wattserve_client.cli,
            ("predict", "a", "--settled", "b", "--verbose"),
            "there is no option --verbose here (see `wattserve-client predict --help`)",
        ),
    ],
)
def test_a_mistake_names_the_help_of_its_command_and_what_was_meant(
    program: ModuleType, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(arguments) == 2
    _, error = capsys.readouterr()
    assert error.count("\n") == 1
    assert error.partition(": ")[2].removeprefix("error: ").startswith(message)


@pytest.mark.parametrize(
    ("quality", "meter", "text"),
    [
        ("measured", "nvml:GPU-5f", "measured by nvml:GPU-5f"),
        ("estimated", "estimate", "estimated from CPU time"),
        ("ESTIMATED", "estimate", "ESTIMATED from CPU time"),
        ("estimated", "nvml:GPU-5f+estimate", "estimated by nvml:GPU-5f+estimate"),
        ("simulated", "simulated", "simulated"),
        ("simulated", "replay:idle", "simulated by replay:idle"),
        ("measured", "", "measured by an unnamed source"),
    ],
)
def test_where_figures_come_from(quality: str, meter: str, text: str) -> None:
    assert origin(quality, meter) == text


def test_one_is_not_many() -> None:
    assert [counted(1, "layer"), counted(0, "layer"), counted(1200, "layer")] == [
        "1 layer", "0 layers", "1,200 layers",
    ]  # fmt: skip
    assert counted(2, "other process", "other processes") == "2 other processes"


@pytest.mark.parametrize("digits", ["1_0", "\u0661\u0660", "\uff11\uff10", "1\u06600"])
def test_numbers_are_in_plain_digits(digits: str) -> None:
    """Python reads all of these as numbers."""
    assert int(digits)
    for read in (whole, number, duration):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a"):
            read(digits)
    with pytest.raises(ValueError, match="is not of the form host:port"):
        host_and_port(f"localhost:{digits}")
    assert (whole("10"), whole("-10"), number("1e1"), duration("10s")) == (10, -10, 10.0, 10.0)
