"""A sweep written as a file and read again: the same sweep."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from wattserve_loadgen import cli, sweep_commands
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import CONSTANT, OFFLINE, POISSON, RAMP, RECORDED, Arm, Load, closed
from wattserve_loadgen.plan.options import Peer, RunOptions, SweepOptions
from wattserve_loadgen.plan.plan_file import read_plan, write_plan
from wattserve_loadgen.plan.schedule import Plan, make_plan

BARE = SweepOptions(target="h:1", dataset=Path("data/my reviews"), out=Path("o"), preset="quick")
ARMS = (
    Arm("fp32", "fp32", "wattserve"),
    Arm("fp32 again", "fp32", "wattserve", twin_of="fp32"),
    Arm("int8", "int8", "wattserve"),
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "day.txt"
    path.write_text("0\n1\n")
    return str(path)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[SweepOptions]:
    """What commands ask for from now on."""
    kept: list[SweepOptions] = []

    def record(options: SweepOptions) -> int:
        kept.append(options)
        return 0

    monkeypatch.setattr(sweep_commands, "measure", record)
    return kept


def again(monkeypatch: pytest.MonkeyPatch, folder: Path, command: str, text: str) -> SweepOptions:
    """What the command line makes of a written plan."""
    kept = recorded(monkeypatch)
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    assert cli.main([command, "--plan", str(path)]) == 0
    return replace(kept[0], command=())


def repeated(options: SweepOptions, plan: Plan) -> SweepOptions:
    """What must come back: the options, with what the plan made of them in place of what was left open."""
    return replace(options, loads=plan.loads, blocks=plan.blocks, seconds=plan.seconds, command=())


def test_a_written_sweep_is_the_same_sweep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trace: str
) -> None:
    loads = (
        closed(16),
        Load(POISSON, rate=100.0),
        closed(1),
        Load(CONSTANT, rate=0.1),
        Load(RAMP, rate=1.0, rate_end=2.5),
        Load(RECORDED, trace=trace, speed=2.0),
        Load(OFFLINE, concurrency=64),
        closed(2, sequences=8),
    )
    options = replace(
        BARE, variants=("fp32", "int8"), seed=5, objective="p99<50ms", deadline_s=2.5, stream=True
    )
    plan = make_plan("quick", ARMS, loads=loads, seed=5, blocks=4, objective="p99<50ms")
    found = again(monkeypatch, tmp_path, "sweep", write_plan(options, plan))
    assert found == repeated(options, plan)
    rebuilt = make_plan(
        found.preset,
        ARMS,
        loads=found.loads,
        blocks=found.blocks,
        seconds=found.seconds,
        seed=found.seed,
        objective=found.objective,
    )
    assert rebuilt == plan


def test_peers_tls_and_the_client_come_back_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ca = tmp_path / 'a "strange" name.pem'
    ca.touch()
    options = replace(
        BARE,
        variants=("fp32", "int8"),
        tls_ca=ca,
        tls_server_name="wattserve",
        peers=(Peer("mlserver", "p:2", ("a", "b"), "nvml+rapl"),),
        peer_meter="nvml+rapl",
        processes=3,
        wait_for_server_s=90.0,
        calibrate=False,
        metrics_port=9100,
        parquet=True,
    )
    arms = (*ARMS, Arm("mlserver a", "a", "mlserver"), Arm("mlserver b", "b", "mlserver"))
    plan = make_plan("quick", arms, loads=(closed(1),))
    assert again(monkeypatch, tmp_path, "sweep", write_plan(options, plan)) == repeated(options, plan)


def test_what_a_budget_left_out_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = replace(
        BARE, variants=("fp32", "int8"), budget_s=60.0, peers=(Peer("mlserver", "p:2", ("a", "b")),)
    )
    plan = make_plan("quick", (*ARMS[:2], Arm("a", "a", "mlserver")), loads=(closed(1),), seconds=10.2)
    found = again(monkeypatch, tmp_path, "sweep", write_plan(options, plan))
    assert (found.variants, found.peers) == (("fp32",), (Peer("mlserver", "p:2", ("a",)),))
    assert (found.seconds, found.loads, found.budget_s) == (10.2, (closed(1),), None)


def test_a_written_run_is_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = RunOptions(target="h:1", dataset=Path("d"), out=Path("o"), variants=("fp32",))
    plan = make_plan("quick", ARMS[:1], loads=(closed(8),))
    text = write_plan(options, plan)
    assert text.splitlines()[1] == "#   loadgen run --plan plan.toml --out ANOTHER_FOLDER"
    assert again(monkeypatch, tmp_path, "run", text) == repeated(options, plan)


@pytest.mark.parametrize("name", ["singlestream", "offline", "server"])
def test_a_written_scenario_is_the_scenario(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    flags = ["--target", "h:1", "--dataset", "d", "--out", "o", "--variants", "fp32,int8"]
    kept = recorded(monkeypatch)
    assert cli.main(["sweep", *flags, "--scenario", name, "--slo", "p99<9ms"]) == 0
    options = replace(kept[0], command=())
    plan = make_plan(options.preset, ARMS, loads=options.loads, least_requests=options.least_requests)
    assert again(monkeypatch, tmp_path, "sweep", write_plan(options, plan)) == repeated(options, plan)


def test_a_search_is_run_again_and_what_it_found_is_a_comment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = replace(BARE, variants=("fp32", "int8"), loads=(), find_max=True, objective="p99<50ms")
    plan = replace(
        make_plan("quick", ARMS, loads=(), objective="p99<50ms"),
        own_loads={"int8": [Load(POISSON, rate=123.0)]},
    )
    text = write_plan(options, plan)
    assert "# the search found, for int8: 123/s poisson\n" in text
    assert again(monkeypatch, tmp_path, "sweep", text) == repeated(options, plan)


def test_a_file_of_a_simple_sweep_reads_well() -> None:
    options = replace(BARE, variants=("fp32", "int8"))
    assert write_plan(options, make_plan("quick", ARMS, loads=(closed(1), Load(POISSON, rate=50.0)))) == (
        "# Repeats this measurement; --out and other flags win over what stands here:\n"
        "#   loadgen sweep --plan plan.toml --out ANOTHER_FOLDER\n"
        'target = "h:1"\n'
        'dataset = "data/my reviews"\n'
        'out = "o"\n'
        'variants = ["fp32", "int8"]\n'
        'preset = "quick"\n'
        "blocks = 3\n"
        "seconds = 12\n"
        "seed = 0\n"
        "deadline = 30.0\n"
        "wait-for-server = 60.0\n"
        "processes = 1\n"
        "\n"
        "[[load]]\n"
        'shape = "closed"\n'
        "concurrency = 1\n"
        "\n"
        "[[load]]\n"
        'shape = "poisson"\n'
        "rate = 50.0\n"
    )


def test_text_of_any_kind_survives() -> None:
    strange = 'a "b" \\ \t\x7f é 😀'
    text = write_plan(replace(BARE, dataset=Path(strange)), make_plan("quick", ARMS))
    assert tomllib.loads(text)["dataset"] == strange


def test_every_flag_may_stand_in_a_file_except_those_of_the_command_line_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(monkeypatch)
    path = tmp_path / "plan.toml"
    path.write_text("nonsense = 1")
    for command, own in (("sweep", {"variants", "find-max"}), ("run", {"variant"})):
        assert cli.main([command, "--plan", str(path)]) == 2
        keys = set(capsys.readouterr().err.partition("known: ")[2].strip().split(", "))
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        flags = set(re.findall(r"^  --([a-z-]+)", capsys.readouterr().out, flags=re.MULTILINE))
        assert flags - keys == {"plan", "dry-run", "resume", "force"}
        assert keys <= flags
        assert own <= keys


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="not a TOML file"):
        read_plan(path, SweepOptions, "loadgen sweep")
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(tmp_path, SweepOptions, "loadgen sweep")
