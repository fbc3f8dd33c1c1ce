"""The command line: help, versions, and one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from tests import ROOT
from tests.fixtures.loadgen_data import make_tokenizer, write_tensors
from tests.fixtures.loadgen_results import INT8, make_point, make_results
from wattserve_loadgen import cli, sweep_commands
from wattserve_loadgen.data import prepare
from wattserve_loadgen.drive import calibration
from wattserve_loadgen.drive.calibration import ClientCeiling, stored_ceiling
from wattserve_loadgen.model.codec import plain
from wattserve_loadgen.model.results import Check, Results, Verdict
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.report.console import summary
from wattserve_loadgen.results import validate
from wattserve_loadgen.target.wire import cause


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a refused command says: one line, and nothing else."""
    assert cli.main(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("loadgen: ")
    assert error.count("\n") == 1
    return error.removeprefix("loadgen: ").rstrip("\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["prepare", "--help"],
        ["calibrate", "--help"],
        ["run", "--help"],
        ["sweep", "--help"],
        ["validate", "--help"],
        ["compare", "--help"],
        ["report", "--help"],
    ],
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
            ["sweep", "--target", "http://127.0.0.1:50051", "--dataset", "d", "--out", "o"],
            "argument --target: 'http://127.0.0.1:50051' is not HOST:PORT, leave out http://"
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
            "one of the arguments --input --random-rows --random-images --prompts --random-prompts is"
            " required (see `loadgen prepare --help`)",
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
    assert complaint(capsys, "report", "d") == (
        "the light installation has the client only (jinja2 is missing here). In the folder with Wattserve's "
        "source: pip install '.[loadgen]'"
    )


def test_a_wrong_dataset_is_told_before_any_server_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = write_tensors(tmp_path / "data", labels=None)
    message = complaint(
        capsys, "sweep", "--target", "127.0.0.1:1", "--dataset", str(data), "--out", str(tmp_path / "out")
    )
    assert message == (
        f"{data}: labels.pt missing; rows without a label have -1 there; make the folder with "
        "`loadgen prepare`"
    )
    assert not (tmp_path / "out").exists()


def test_an_http_port_is_told_as_one() -> None:
    details = "failed to connect: Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame)"
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details
    )
    assert cause(error) == (
        "what answers there is not gRPC (the metrics port?); give the gRPC port, which is 50051 by default"
    )


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


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((0, 1), ""),
        ((0, -1, 1), "loadgen: 1 of 3 dataset rows has no label: accuracy is of the others\n"),
        ((-1, -1), "loadgen: every label is -1: the dataset has no labels, so no accuracy\n"),
    ],
)
def test_prepare_says_how_many_rows_have_no_label(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, labels: tuple[int, ...], said: str
) -> None:
    source, model = tmp_path / "r.csv", make_tokenizer(tmp_path / "model", {"NEGATIVE": 0, "POSITIVE": 1})
    source.write_text("text,label\n" + "".join(f"good,{label}\n" for label in labels))
    arguments = ["--input", source, "--tokenizer", model, "--out", tmp_path / "out"]
    assert cli.main(["prepare", *map(str, arguments)]) == 0
    assert capsys.readouterr().err == said


def test_prepare_says_what_it_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "data"
    assert cli.main(["prepare", "--random-rows", "7", "--vocabulary-size", "50", "--out", str(out)]) == 0
    assert capsys.readouterr().out == (
        f"{out}: 7 rows, 0 of them truncated; labels: none (random tokens: for speed and energy only)\n"
    )
    assert "already there and not empty" in complaint(
        capsys, "prepare", "--random-rows", "7", "--vocabulary-size", "50", "--out", str(out)
    )


def test_prepare_says_to_what_it_cut(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source, model = tmp_path / "r.txt", make_tokenizer(tmp_path / "model", model_max_length=4)
    source.write_text("good\na very very good film\n")
    arguments = ["--input", source, "--tokenizer", model, "--out", tmp_path / "out"]
    assert cli.main(["prepare", *map(str, arguments)]) == 0
    assert "2 rows, 1 of them truncated to 4 tokens; labels: none" in capsys.readouterr().out


def test_an_empty_list_is_not_taken_for_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "sweep", "--target", "h:1", "--dataset", "d", "--out", "o", "--variants", "")
    assert line.startswith("argument --variants: the list is empty; leave the option out for its default")


def ended(capsys: pytest.CaptureFixture[str], results: Results) -> tuple[int, list[str], str]:
    """The exit code, what stands below the table, and what went to standard error."""
    code = sweep_commands.say_how_it_ended(results, Path("r.html"))
    out, error = capsys.readouterr()
    table = "".join(f"{line}\n" for line in summary(results))
    assert out.startswith(table)
    return code, out.removeprefix(table).splitlines(), error


def test_the_exit_code_says_how_a_sweep_ended(capsys: pytest.CaptureFixture[str]) -> None:
    done = make_results()
    counted = f"{len(done.cells)} of {done.cells_planned} cells were measured: r.html"
    assert ended(capsys, done) == (0, [f"done: {counted}"], "")
    lost = replace(done, ended="the server was lost: gone")
    assert ended(capsys, lost) == (1, [], f"loadgen: ended early: the server was lost: gone; {counted}\n")
    assert ended(capsys, replace(done, ended="interrupted by the user"))[0] == 130


def test_a_sweep_whose_points_all_have_a_verdict_does_not_end_like_a_success(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = Verdict("too short", "too short to publish: 15.0 s of 30 s")
    points = [make_point(verdicts=[short]), make_point(INT8, verdicts=[short])]
    code, lines, error = ended(
        capsys, make_results(points=points, checks=[Check("clock", False, "it stepped")])
    )
    assert (code, error) == (0, "")
    assert lines == [
        "2 of 2 points have a verdict instead of figures: too short (2)",
        "1 of 1 checks failed: clock (`loadgen validate .` says why)",
        "done, without figures: 18 of 18 cells were measured: r.html",
    ]


def test_a_sweep_in_which_nothing_was_answered_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    silent = [replace(point, answered=0) for point in make_results().points]
    code, lines, error = ended(capsys, make_results(points=silent))
    assert (code, lines) == (1, [])
    assert error.startswith("loadgen: no request was answered; ")


def test_what_needs_more_memory_than_there_is_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def too_much(*arguments: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(prepare, "prepare_random", too_much)
    line = complaint(
        capsys, "prepare", "--random-rows", "7", "--vocabulary-size", "9", "--out", str(tmp_path / "d")
    )
    assert line == "not enough memory for this; take fewer rows"


CEILING = ClientCeiling("stream", 2, 512, 64, 12_345.6, 5e-5, 0.9, 1, 400_000, 3, 1_700_000_000)


def test_calibrate_prints_and_keeps_the_ceiling(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[object, ...]] = []

    async def measured(*arguments: object, whole_s: float) -> ClientCeiling:
        asked.append((*arguments, whole_s))
        return CEILING

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "measure_ceiling", measured)
    flags = ("--stream", "--processes", "2", "--request-bytes", "300", "--seconds", "2")
    assert cli.main(["calibrate", *flags]) == 0
    out, error = capsys.readouterr()
    assert out == CEILING.describe() + "\n"
    assert error == f"loadgen: kept in {calibration.cache_file()} for the next time\n"
    assert asked == [("stream", 300, 2, 2.0)]
    assert stored_ceiling("stream", 300, 2) == (CEILING, "")
    assert cli.main(["calibrate", *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests_per_second"] == 12_345.6


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    checks = [Check("clock", True, "held"), Check("twins", None, "there is none")]
    monkeypatch.setattr(validate, "validate_folder", lambda folder: checks)
    return checks


def test_validate_lists_the_checks_and_fails_when_one_does(
    capsys: pytest.CaptureFixture[str], checked: list[Check]
) -> None:
    assert cli.main(["validate", "results"]) == 0
    assert capsys.readouterr().out == ("passed         clock: held\ndoes not apply twins: there is none\n")
    checked.append(Check("A/A pair", True, "too coarse", weak=True))
    assert cli.main(["validate", "results"]) == 0
    assert capsys.readouterr().out.endswith("weak           A/A pair: too coarse\n")
    checked.append(Check("sensor samples", False, "too few"))
    assert cli.main(["validate", "results"]) == 1
    assert capsys.readouterr().out.endswith("FAILED         sensor samples: too few\n")


def test_validate_speaks_json_too(capsys: pytest.CaptureFixture[str], checked: list[Check]) -> None:
    assert cli.main(["validate", "results", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "clock", "passed": True, "text": "held", "weak": False},
        {"name": "twins", "passed": None, "text": "there is none", "weak": False},
    ]


def stored(folder: Path, results: Results) -> str:
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(plain(results)))
    return str(folder)


def test_compare_refuses_unlike_environments_unless_forced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results = make_results()
    client = {**results.client, "cpu_model": "another"}
    one, like = stored(tmp_path / "a", results), stored(tmp_path / "b", results)
    other = stored(tmp_path / "c", replace(results, client=client))
    assert cli.main(["compare", one, like]) == 0
    assert "twins differ by" in capsys.readouterr().out
    assert complaint(capsys, "compare", one, other).startswith("these results are not of one environment: ")
    assert cli.main(["compare", one, other, "--force", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["mismatches"]) == 1


def test_compare_refuses_one_folder_and_fails_where_no_point_is_in_both(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = stored(tmp_path / "a", make_results(loads=[closed(1)]))
    other = stored(tmp_path / "b", make_results(loads=[closed(4)]))
    again = str(tmp_path / "b" / ".." / "a")
    assert complaint(capsys, "compare", one, again) == f"{one}: compared with itself; name two folders"
    assert cli.main(["compare", one, other]) == 1
    assert "no point is in both" in capsys.readouterr().out


def test_compare_names_the_folder_that_holds_no_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = stored(tmp_path / "a", make_results())
    assert complaint(capsys, "compare", one, str(tmp_path)).startswith(f"{tmp_path}: no results.json in it")


@pytest.mark.parametrize(
    ("output", "code", "error"),
    [
        ("| true", 141, ""),
        ("> /dev/full", 2, "loadgen: no room is left on the disk: make some, and try again\n"),
    ],
)
def test_an_output_that_takes_nothing_gets_no_traceback(output: str, code: int, error: str) -> None:
    folder = ROOT / "docs" / "results" / "2026-11-20-demo-look"
    program = f"{sys.executable} -u -m wattserve_loadgen validate {folder} {output}"
    done = subprocess.run(
        ["bash", "-c", f"{program}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, error)
