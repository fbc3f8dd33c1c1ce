"""`loadgen run` and `loadgen sweep`: what is asked for, by flags or a plan file, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wattserve_loadgen import cli, sweep_commands
from wattserve_loadgen.plan.load import CONSTANT, OFFLINE, POISSON, RAMP, RECORDED, Load, closed
from wattserve_loadgen.plan.options import Peer, SweepOptions

PLACES = ("--target", "h:1", "--dataset", "d", "--out", "o")
RUN = ("run", *PLACES, "--variant", "fp32")

Ask = Callable[..., SweepOptions]
Complain = Callable[..., str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What a command asks the sweeping room for."""
    kept: list[SweepOptions] = []

    def record(options: SweepOptions) -> int:
        kept.append(options)
        return 0

    monkeypatch.setattr(sweep_commands, "measure", record)

    def call(*arguments: str) -> SweepOptions:
        assert cli.main(arguments) == 0, capsys.readouterr().err
        return kept[-1]

    return call


@pytest.fixture
def complain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complain:
    """The one line of a refused command."""
    monkeypatch.setattr(sweep_commands, "measure", lambda options: pytest.fail(f"measured {options}"))

    def call(*arguments: str) -> str:
        assert cli.main(arguments) == 2
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        return error.removeprefix("loadgen: ").rstrip("\n")

    return call


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_bare_sweep_leaves_all_to_the_preset(ask: Ask) -> None:
    assert ask("sweep", *PLACES) == SweepOptions(
        target="h:1",
        dataset=Path("d"),
        out=Path("o"),
        preset="quick",
        command=("loadgen", "sweep", *PLACES),
    )


def test_loads_of_several_flags_are_all_measured(ask: Ask, tmp_path: Path) -> None:
    trace = write(tmp_path / "day.txt", "0\n0.5\n2\n")
    found = ask(
        *("sweep", *PLACES, "--concurrency", "1,4", "--rate", "50,100", "--arrival", "constant"),
        *("--ramp", "10:200", "--arrivals", trace, "--speed", "1,2", "--offline"),
    )
    assert found.loads is not None
    sha256 = found.loads[5].trace_sha256
    assert len(sha256) == 64
    assert found.loads == (
        closed(1),
        closed(4),
        Load(CONSTANT, rate=50.0),
        Load(CONSTANT, rate=100.0),
        Load(RAMP, rate=10.0, rate_end=200.0),
        Load(RECORDED, trace=trace, trace_sha256=sha256),
        Load(RECORDED, trace=trace, trace_sha256=sha256, speed=2.0),
        Load(OFFLINE, concurrency=256),
    )


def test_a_rate_arrives_at_random_unless_told_otherwise(ask: Ask) -> None:
    assert ask("sweep", *PLACES, "--rate", "50").loads == (Load(POISSON, rate=50.0),)


def test_every_other_flag_reaches_the_sweep(ask: Ask, tmp_path: Path) -> None:
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    for path in (ca, cert, key):
        path.touch()
    found = ask(
        *("sweep", *PLACES, "--variants", "fp32,int8", "--preset", "full", "--blocks", "7"),
        *("--seconds", "9.5", "--seed", "4", "--deadline", "2", "--stream", "--processes", "3"),
        *("--peer", "mlserver=p:2/a,b", "--peer", "triton=q:3/c", "--peer-meter", "nvml+rapl"),
        *("--tls-ca", str(ca), "--tls-cert", str(cert), "--tls-key", str(key)),
        *("--tls-server-name", "wattserve", "--budget", "1h30m"),
        *("--dry-run", "--force", "--metrics-port", "9100", "--wait-for-server", "2m", "--parquet"),
        *("--no-calibrate", "--slo", "p99<50ms"),
    )
    assert found == SweepOptions(
        target="h:1",
        dataset=Path("d"),
        out=Path("o"),
        preset="full",
        variants=("fp32", "int8"),
        blocks=7,
        seconds=9.5,
        seed=4,
        deadline_s=2.0,
        stream=True,
        tls_ca=ca,
        tls_cert=cert,
        tls_key=key,
        tls_server_name="wattserve",
        peers=(
            Peer("mlserver", "p:2", ("a", "b"), "nvml+rapl"),
            Peer("triton", "q:3", ("c",), "nvml+rapl"),
        ),
        peer_meter="nvml+rapl",
        objective="p99<50ms",
        budget_s=5400.0,
        processes=3,
        wait_for_server_s=120.0,
        calibrate=False,
        metrics_port=9100,
        force=True,
        dry_run=True,
        parquet=True,
        command=found.command,
    )


def test_nobody_needs_to_wait_for_a_lost_server(ask: Ask) -> None:
    assert ask("sweep", *PLACES, "--wait-for-server", "0").wait_for_server_s == 0


def test_a_search_measures_where_it_ends_and_nowhere_else_unless_asked(ask: Ask) -> None:
    alone = ask("sweep", *PLACES, "--find-max", "--slo", "p99<50ms")
    assert (alone.find_max, alone.loads, alone.objective) == (True, (), "p99<50ms")
    assert ask("sweep", *PLACES, "--find-max", "--slo", "p99<50ms", "--rate", "5").loads == (
        Load(POISSON, rate=5.0),
    )


@pytest.mark.parametrize(
    ("name", "loads", "least"),
    [
        ("singlestream", (closed(1),), 100),
        ("multistream", (closed(1, sequences=8),), 662),
        ("offline", (Load(OFFLINE, concurrency=256),), 24_576),
    ],
)
def test_a_scenario_brings_load_least_count_and_the_full_preset(
    ask: Ask, name: str, loads: tuple[Load, ...], least: int
) -> None:
    found = ask("sweep", *PLACES, "--scenario", name)
    assert (found.loads, found.least_requests, found.preset, found.scenario) == (loads, least, "full", name)


def test_the_server_scenario_is_a_search_within_the_objective(ask: Ask) -> None:
    found = ask("sweep", *PLACES, "--scenario", "server", "--slo", "p99<15ms")
    assert (found.find_max, found.loads, found.least_requests) == (True, (), 662)


def test_offline_may_have_another_number_in_flight(ask: Ask) -> None:
    found = ask("sweep", *PLACES, "--scenario", "offline", "--offline", "32", "--preset", "quick")
    assert (found.loads, found.preset) == ((Load(OFFLINE, concurrency=32),), "quick")


def test_a_run_is_one_variant_under_one_load_and_has_no_twin(ask: Ask) -> None:
    found = ask(*RUN, "--rate", "100")
    assert (found.variants, found.loads, found.twin) == (("fp32",), (Load(POISSON, rate=100.0),), False)


def test_a_run_can_be_of_one_model_of_a_peer(ask: Ask) -> None:
    found = ask("run", "--dataset", "d", "--out", "o", "--peer", "mlserver=p:2/sst2", "--concurrency", "4")
    assert (found.target, found.variants, found.peers) == ("", None, (Peer("mlserver", "p:2", ("sst2",)),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "--dataset", "d", "--out", "o"), "--target is missing: the server's gRPC address"),
        (("sweep", "--target", "h:1", "--out", "o"), "--dataset is missing: a folder made by"),
        (("sweep", "--target", "h:1", "--dataset", "d"), "--out is missing: the folder for the results"),
        (("sweep", *PLACES, "--arrival", "constant"), "--arrival needs --rate"),
        (("sweep", *PLACES, "--speed", "2"), "--speed needs --arrivals"),
        (("sweep", *PLACES, "--find-max"), "--find-max needs --slo: the objective to hold, like p99<50ms"),
        (("sweep", *PLACES, "--scenario", "server"), "--scenario server needs --slo"),
        (
            ("sweep", *PLACES, "--scenario", "offline", "--rate", "5"),
            "--scenario offline chooses the load; leave out rate",
        ),
        (
            ("sweep", *PLACES, "--slo", "fast"),
            "--slo: 'fast' is not an objective; write for example p99<50ms",
        ),
        (
            ("sweep", "--resume", "--out", "nowhere"),
            "nowhere: no sweep was begun there: it holds no plan.toml",
        ),
        (
            ("sweep", *PLACES, "--resume", "--force"),
            "--resume continues what --out holds and --force replaces",
        ),
        (("sweep", *PLACES, "--peer-meter", "rapl"), "--peer-meter needs --peer"),
        (("sweep", *PLACES, "--tls-cert", "c.pem"), "--tls-cert needs --tls-key"),
        (("sweep", *PLACES, "--tls-key", "k.pem"), "--tls-key needs --tls-cert"),
        (("sweep", *PLACES, "--no-tls", "--tls-ca", "x.pem"), "--no-tls and --tls-ca contradict each other"),
        (("sweep", *PLACES, "--tls-ca", "nowhere.pem"), "--tls-ca: nowhere.pem: no such file"),
        (
            ("sweep", *PLACES, "--no-tls", "--tls-server-name", "n"),
            "--no-tls and --tls-server-name contradict each other",
        ),
        (("sweep", *PLACES, "--peer", "a=h:1/m", "--peer", "a=h:2/n"), "--peer: the name a is given twice"),
        (("sweep", *PLACES, "--peer", "h:1/m"), "argument --peer: 'h:1/m' is not NAME=HOST:PORT/MODEL"),
        (("sweep", *PLACES, "--peer", "a=h/m"), "argument --peer: 'h' is not HOST:PORT"),
        (
            ("sweep", *PLACES, "--peer-meter", "wall"),
            "argument --peer-meter: 'wall' is no meter; choose from",
        ),
        (("sweep", *PLACES, "--budget", "soon"), "argument --budget: 'soon' is not a duration like 90s, 10m"),
        (("sweep", *PLACES, "--budget", "0m"), "argument --budget: '0m' is not a duration"),
        (("sweep", *PLACES, "--ramp", "10"), "argument --ramp: '10' is not FROM:TO, like 10:200"),
        (("sweep", *PLACES, "--ramp", "10:0"), "rate 0: it must be above 0"),
        (("sweep", *PLACES, "--concurrency", "2,2"), "concurrency 2 is listed twice"),
        (("sweep", *PLACES, "--offline", "0"), "argument --offline: 0 must be at least 1"),
        (("sweep", *PLACES, "--processes", "999"), "argument --processes: 999 must be at most 256"),
        (("sweep", *PLACES, "--arrivals", "nowhere.csv"), "--arrivals: nowhere.csv: cannot be read"),
        (("sweep", *PLACES, "--metrics-port", "70000"), "argument --metrics-port: 70000 is not a port"),
        (("sweep", *PLACES, "--plan", "nowhere.toml"), "--plan nowhere.toml: no such file"),
        (("run", *PLACES, "--rate", "5"), "--variant is missing: which one to measure"),
        (RUN, "a load is missing: for example --concurrency 8 or --rate 100"),
        ((*RUN, "--rate", "5,6"), "`loadgen run` measures under one load, not 2; for several use"),
        ((*RUN, "--find-max"), "there is no option --find-max here (see `loadgen run --help`)"),
        (
            (*RUN, "--scenario", "server"),
            "argument --scenario: 'server' is unknown; choose from singlestream",
        ),
        (
            (*RUN, "--rate", "5", "--peer", "a=h:1/m"),
            "`loadgen run` measures one variant or one peer's model; for several use `loadgen sweep`",
        ),
        (("calibrate", "--seconds", "-1"), "argument --seconds: -1 must be more than 0"),
        (("validate", "nowhere"), "nowhere: "),
    ],
)
def test_what_does_not_fit_together_is_one_line(
    complain: Complain, arguments: tuple[str, ...], message: str
) -> None:
    assert complain(*arguments).startswith(message)


PLAN = """\
target = "h:1"
dataset = "d"
out = "o"
preset = "look"
variants = ["fp32", "int8"]
concurrency = [1, 4]
rate = [12.5]
arrival = "constant"
slo = "p99<50ms"
deadline = 5
budget = "10m"
wait_for_server = 30
peer = ["mlserver=p:2/sst2"]
stream = true
calibrate = false
"""


def test_a_plan_file_says_what_the_flags_say(ask: Ask, tmp_path: Path) -> None:
    by_file = ask("sweep", "--plan", write(tmp_path / "p.toml", PLAN))
    by_flags = ask(
        *("sweep", *PLACES, "--preset", "look", "--variants", "fp32,int8", "--concurrency", "1,4"),
        *("--rate", "12.5", "--arrival", "constant", "--slo", "p99<50ms", "--deadline", "5", "--budget"),
        *("10m", "--wait-for-server", "30", "--peer", "mlserver=p:2/sst2", "--stream", "--no-calibrate"),
    )
    assert {**vars(by_file), "command": ()} == {**vars(by_flags), "command": ()}


def test_flags_win_over_the_file(ask: Ask, tmp_path: Path) -> None:
    plan = write(tmp_path / "p.toml", PLAN)
    found = ask("sweep", "--plan", plan, "--out", "other", "--no-stream", "--deadline", "7")
    assert (found.out, found.stream, found.deadline_s) == (Path("other"), False, 7.0)
    assert found.variants == ("fp32", "int8")


def test_loads_of_the_command_line_replace_all_those_of_the_file(ask: Ask, tmp_path: Path) -> None:
    plan = write(tmp_path / "p.toml", PLAN)
    assert ask("sweep", "--plan", plan, "--concurrency", "8").loads == (closed(8),)
    assert ask("sweep", "--plan", plan, "--rate", "3").loads == (Load(POISSON, rate=3.0),)


def test_offline_in_a_file_is_true_or_a_number(ask: Ask, tmp_path: Path) -> None:
    base = 'target = "h:1"\ndataset = "d"\nout = "o"\n'
    for text, in_flight in (("true", 256), ("16", 16)):
        plan = write(tmp_path / "p.toml", f"{base}offline = {text}\n")
        assert ask("sweep", "--plan", plan).loads == (Load(OFFLINE, concurrency=in_flight),)


def test_resuming_reads_the_plan_of_the_folder(ask: Ask, tmp_path: Path) -> None:
    write(tmp_path / "plan.toml", PLAN)
    found = ask("sweep", "--resume", "--out", str(tmp_path))
    assert (found.resume, found.target, found.out) == (True, "h:1", tmp_path)
    assert found.loads == (closed(1), closed(4), Load(CONSTANT, rate=12.5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target = ", ": not a TOML file ("),
        ("targt = 'h:1'", ": unknown key 'targt'; known: target, dataset, out, held-out, variants, scenario"),
        ("target = 5", ": target: 5 is not text in quotes"),
        ("target = 'localhost'", ": target: 'localhost' is not HOST:PORT, like 127.0.0.1:50051"),
        ("blocks = true", ": blocks: True is not a whole number"),
        ("blocks = 2.5", ": blocks: 2.5 is not a whole number"),
        ("stream = 'yes'", ": stream: 'yes' is not true or false"),
        ("concurrency = 4", ": concurrency: 4 is not a list of whole numbers, like [1, 4]"),
        ("concurrency = []", ": concurrency: [] is not a list of whole numbers, like [1, 4]"),
        ("offline = false", ": offline: False is not true, or the number of requests in flight"),
        ("deadline = 0", ": deadline: 0 must be more than 0"),
        ("budget = 'soon'", ": budget: 'soon' is not a duration like 90s, 10m or 1h30m"),
        ("preset = 'slow'", ": preset: 'slow' is unknown; choose from look, quick, full"),
        ("peer = ['mlserver']", ": peer: 'mlserver' is not NAME=HOST:PORT/MODEL"),
        ("arrival = 'constant'", ": arrival needs --rate"),
        ("find-max = true", ": find-max needs --slo"),
        ("slo = 'fast'", ": slo: 'fast' is not an objective"),
        ("variant = 'fp32'", ": variant: `loadgen sweep` does not take it"),
        ("resume = true", ": unknown key 'resume'"),
        ("scenario = 'offline'\nrate = [5]", ": scenario offline chooses the load; leave out rate"),
        ("tls-cert = 'c.pem'", ": tls-cert needs --tls-key"),
        ("load = 5", ": load: write each load as a table under [[load]]"),
        ("load = []", ": load: write each load as a table under [[load]]"),
        ("[[load]]\nrate = 5", ": [[load]] 1: shape is missing"),
        ("[[load]]\nshape = 'closed'", ": [[load]] 1: a load of the shape closed needs concurrency"),
        ("[[load]]\nshape = 'closed'\nconcurrency = '4'", ": [[load]] 1: concurrency: '4' is not a whole"),
        ("[[load]]\nshape = 'closed'\nslots = 4", ": [[load]] 1: unknown key 'slots'; known: shape"),
        (
            "rate = [5]\n[[load]]\nshape = 'closed'\nconcurrency = 4",
            ": load: [[load]] lists every load; leave out rate",
        ),
    ],
)
def test_a_mistake_in_the_file_names_file_and_key(
    complain: Complain, tmp_path: Path, text: str, message: str
) -> None:
    plan = write(tmp_path / "p.toml", text)
    flags = () if text.startswith("target") else PLACES
    assert complain("sweep", "--plan", plan, *flags).startswith(f"{plan}{message}")


def test_a_listed_recording_that_has_changed_is_refused(complain: Complain, tmp_path: Path) -> None:
    trace = write(tmp_path / "day.txt", "0\n1\n")
    plan = write(
        tmp_path / "p.toml", f'[[load]]\nshape = "recorded"\ntrace = "{trace}"\ntrace-sha256 = "ab"\n'
    )
    assert complain("sweep", "--plan", plan, *PLACES).startswith(
        f"{plan}: load: {trace} is not the file of the plan: its SHA-256 is "
    )
