"""The command line: help, versions, and one line for every mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.loadgen_data import write_tensors
from tests.fixtures.loadgen_results import make_results
from wattserve_loadgen import cli


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a refused command says: one line, and nothing else."""
    assert cli.main(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("loadgen: ")
    assert error.count("\n") == 1
    return error.removeprefix("loadgen: ").rstrip("\n")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["sweep", "--help"], ["prepare", "--help"], ["report", "--help"]]
)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 0
    assert "usage: loadgen" in capsys.readouterr().out


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from wattserve_loadgen import cli\n"
        "try: cli.main(['--version'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'matplotlib', 'grpc', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, heavy = done.stdout.splitlines()
    assert version.startswith("loadgen ")
    assert heavy == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND (see `loadgen --help`)"),
        (
            ["sweep", "--target", "localhost", "--dataset", "d", "--out", "o"],
            "argument --target: 'localhost' is not HOST:PORT, like 127.0.0.1:50051"
            " (see `loadgen sweep --help`)",
        ),
        (
            ["sweep", "--target", "h:1", "--dataset", "d", "--out", "o", "--concurrency", "1,two"],
            "argument --concurrency: '1,two' is not a list like 1,2,4 (see `loadgen sweep --help`)",
        ),
        (
            ["sweep", "--target", "h:1", "--dataset", "d", "--out", "o", "--deadline", "0"],
            "argument --deadline: 0 must be more than 0 (see `loadgen sweep --help`)",
        ),
        (
            ["prepare", "--input", "a.csv", "--out", "o"],
            "--input needs --tokenizer: the model's name or folder",
        ),
        (
            ["prepare", "--out", "o"],
            "one of the arguments --input --random-rows --random-images is required"
            " (see `loadgen prepare --help`)",
        ),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert complaint(capsys, *arguments) == message


def test_random_rows_need_a_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--random-rows needs --vocabulary-size" in complaint(
        capsys, "prepare", "--random-rows", "5", "--out", "o"
    )


def test_a_missing_package_is_named_with_what_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "wattserve_loadgen.report.page", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert complaint(capsys, "report", "d") == "jinja2 is not installed: pip install 'wattserve[loadgen]'"


def test_a_wrong_dataset_is_told_before_any_server_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = write_tensors(tmp_path / "data", labels=None)
    message = complaint(
        capsys, "sweep", "--target", "127.0.0.1:1", "--dataset", str(data), "--out", str(tmp_path / "out")
    )
    assert message == f"{data}: labels.pt missing; make the folder with `loadgen prepare`"
    assert not (tmp_path / "out").exists()


def test_nobody_at_the_address_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = write_tensors(tmp_path / "data")
    message = complaint(
        capsys, "sweep", "--target", "127.0.0.1:1", "--dataset", str(data), "--out", str(tmp_path / "out")
    )
    assert message == "127.0.0.1:1 does not answer: UNAVAILABLE Connection refused"
    assert not (tmp_path / "out").exists()


def test_a_report_of_a_folder_without_results_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert complaint(capsys, "report", str(tmp_path)).endswith(
        "no results.json in it; give the --out folder of a sweep"
    )


def test_prepare_says_what_it_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "data"
    assert cli.main(["prepare", "--random-rows", "7", "--vocabulary-size", "50", "--out", str(out)]) == 0
    assert capsys.readouterr().out == (
        f"{out}: 7 rows, 0 of them truncated; labels: none (random tokens: for speed and energy only)\n"
    )
    assert "already there and not empty" in complaint(
        capsys, "prepare", "--random-rows", "7", "--vocabulary-size", "50", "--out", str(out)
    )


def test_an_empty_list_is_not_taken_for_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "sweep", "--target", "h:1", "--dataset", "d", "--out", "o", "--variants", "")
    assert line.startswith("argument --variants: the list is empty; leave the option out for its default")


def test_a_sweep_in_which_nothing_was_answered_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._say_how_it_ended(make_results(points=[]), Path("r.html")) == 1
    assert capsys.readouterr().err.startswith("loadgen: no request was answered; ")
