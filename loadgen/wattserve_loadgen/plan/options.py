# ruff: noqa: RUF009 - `option` makes a field
"""What a user can ask of a sweep, by flags or by a plan file. None: the preset's own."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import MISSING, dataclass, replace
from functools import partial
from pathlib import Path

from wattserve_common.arguments import address, count, duration, listed, port, positive
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.option import (
    DURATION,
    NUMBER,
    NUMBERS,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    OptionKind,
    option,
)
from wattserve_loadgen.plan.load import CLOSED, CONSTANT, OFFLINE, POISSON, RAMP, RECORDED, Load, check_loads
from wattserve_loadgen.plan.scenarios import IN_FLIGHT, SCENARIOS

LOADS = ("concurrency", "rate", "ramp", "arrivals", "offline", "load")  # the options that name one
MOST_PROCESSES = 256
_METERS = ("auto", "nvml", "rapl", "estimate", "simulated")

Where = Callable[[str], str]  # a field's name -> its flag, or file and key, as an error names it


@dataclass(frozen=True)
class Peer:
    """A server of the Open Inference Protocol to compare with: each of its models becomes an arm."""

    name: str
    address: str
    models: tuple[str, ...]
    meter: str = ""  # what `wattserve meter record --meter` shall read on this machine; empty: no joules

    def __str__(self) -> str:
        return f"{self.name}={self.address}/{','.join(self.models)}"


def _peer(text: str) -> Peer:
    """NAME=HOST:PORT/MODEL[,MODEL...]"""
    name, _, place = text.partition("=")
    where, _, models = place.partition("/")
    names = tuple(model.strip() for model in models.split(",") if model.strip())
    if not name.strip() or not names:
        raise ArgumentTypeError(
            f"{text!r} is not NAME=HOST:PORT/MODEL[,MODEL...], like mlserver=127.0.0.1:8081/sst2"
        )
    return Peer(name.strip(), address(where), names)


def _processes(text: str) -> int:
    """Of this client."""
    value = count(text)
    if value > MOST_PROCESSES:
        raise ArgumentTypeError(f"{text} must be at most {MOST_PROCESSES}")
    return value


def _meter(text: str) -> str:
    """A meter that can be read on this machine, or a sum such as nvml+rapl."""
    unknown = [part for part in text.split("+") if part not in _METERS]
    if unknown:
        raise ArgumentTypeError(
            f"{unknown[0]!r} is no meter; choose from {', '.join(_METERS)}, or a sum such as nvml+rapl"
        )
    return text


def _addresses(text: str) -> str:
    """HOST:PORT[,HOST:PORT...]"""
    addresses = [address(part.strip()) for part in text.split(",")]
    for number, one in enumerate(addresses):
        if one in addresses[:number]:
            raise ArgumentTypeError(f"{one} is listed twice")
    return ",".join(addresses)


def _ramp(text: str) -> Load:
    """FROM:TO, in requests per second."""
    start, _, end = text.partition(":")
    try:
        return Load(RAMP, rate=float(start), rate_end=float(end))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not FROM:TO, like 10:200") from None


def _patience(text: str) -> float:
    """Seconds, as `duration`, or 0."""
    return 0.0 if text.strip() in ("0", "0s", "0.0") else duration(text)


_IN_FLIGHT = OptionKind(
    "true, or the number of requests in flight", lambda value: value is True or type(value) is int, count
)
_load, _time, _peers, _client, _tls = (
    partial(option, group=group) for group in ("load", "time", "peers", "client", "TLS")
)


# fmt: off
@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a user names loads. Those of several options are all measured; `loads_of` makes them."""

    concurrency: tuple[int, ...] = _load(
        (), WHOLES,
        "closed loop: requests in flight at once (default of a sweep: 1,2,4,8,16,32; look: 1,4,16)", "1,2,4")
    rate: tuple[float, ...] = _load(
        (), NUMBERS, "open loop: requests per second, each sent when it is due", "50,100")
    arrival: str | None = _load(
        None, TEXT, "requests of --rate come at random instants or evenly spaced (default: poisson)",
        choices=(POISSON, CONSTANT))
    ramp: tuple[Load, ...] = _load(
        (), TEXTS, "open loop: a rate that grows over the window", "10:200", read=listed(_ramp))
    arrivals: tuple[Path, ...] = _load(
        (), TEXTS, "open loop: the recorded instants of a file; repeat for several files", "FILE",
        read=Path, action="append")
    speed: tuple[float, ...] = _load((), NUMBERS, "play --arrivals so many times as fast (default: 1)", "1,2")
    offline: int | None = _load(
        None, _IN_FLIGHT,
        f"everything at once, for throughput alone (default: at most {IN_FLIGHT} in flight)",
        "IN_FLIGHT", nargs="?", const=IN_FLIGHT)
    load: tuple[Load, ...] = ()  # of a file alone: its tables, which list every load


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Everything that decides what a sweep does. A field that is no option follows from others."""

    target: str = option(
        "", TEXT, "the server's gRPC address (needed, except for peers alone); several, joined by commas, are"
        " loaded in turns and measured as one", "HOST:PORT", read=_addresses)
    dataset: Path = option(MISSING, TEXT, "a folder made by `loadgen prepare`", "DIR", read=Path)
    out: Path = option(MISSING, TEXT, "the folder for the results", "DIR", read=Path)
    held_out: Path | None = option(
        None, TEXT, "of a language model: rows whose perplexity is measured too, a folder made by `loadgen"
        " prepare`", "DIR", read=Path)
    variants: tuple[str, ...] | None = option(
        None, TEXTS, "which variants; the first is what the others are compared with"
        " (default: all of the server's)", "A,B")
    twin: bool = True  # repeat the baseline under a second name
    dry_run: bool = option(False, SWITCH, "print the plan and measure nothing", in_file=False)
    resume: bool = option(
        False, SWITCH, "continue what --out holds; its own plan is read if none is given", in_file=False)
    force: bool = option(False, SWITCH, "replace the results that --out holds", in_file=False)

    loads: tuple[Load, ...] | None = None  # empty: only what the search finds
    least_requests: int = 0  # in the windows of each point
    scenario: str = _load(
        "", TEXT,
        "load and least number of requests of an MLPerf scenario, with --preset full; what differs is said",
        choices=tuple(SCENARIOS))
    objective: str = _load(
        "", TEXT,
        "latency objective, like 'p99<50ms' or 'p50<10ms,p99<50ms', or limits on each answer, like"
        " 'ttft<200ms,tpot<20ms'; the share of requests within it is told",
        "OBJECTIVES", key="slo")
    find_max: bool = _load(
        False, SWITCH,
        "search each variant's highest Poisson rate that holds --slo, and measure there; a search takes at"
        " most 5 minutes (look), 12 (quick) or 125 (full), or what --budget leaves")

    preset: str = _time(
        "quick", TEXT,
        "how long and how often: look for a first sight, full for figures to publish (default: quick)",
        choices=("look", "quick", "full"))
    blocks: int | None = _time(
        None, WHOLE, "repetitions of the whole plan (full: 5; quick and look: 3)", "N")
    seconds: float | None = _time(
        None, NUMBER, "length of each cell's window (full: 125; quick: 12; look: 2)", "S")
    budget_s: float | None = _time(
        None, DURATION,
        "fit the plan into this time (a number alone is seconds), and say what was left out", "10m")
    seed: int = _time(0, WHOLE, "fixes the random order of cells and rows", "N")
    deadline_s: float = _time(
        30.0, NUMBER, "a request without answer after so many seconds has failed", "SECONDS", read=positive)
    wait_for_server_s: float = _time(
        60.0, DURATION, "seconds to wait for a server that is lost on the way; 0: not at all", "60s",
        read=_patience)

    peers: tuple[Peer, ...] = _peers(
        (), TEXTS, "a server of the Open Inference Protocol to compare with; repeat for several",
        "NAME=HOST:PORT/MODEL[,MODEL...]", read=_peer, key="peer", action="append")
    peer_meter: str = _peers(
        "", TEXT,
        "meter of this machine that counts the peers' joules: auto, nvml, rapl, or a sum such as nvml+rapl",
        "METER", read=_meter)

    stream: bool = _client(False, SWITCH, "send requests over streams instead of one call each")
    processes: int = _client(1, WHOLE, "processes of this client that share the load", "N", read=_processes)
    calibrate: bool = _client(
        True, SWITCH, "measure this client's own ceiling first where none is stored (default: yes)")
    metrics_port: int | None = _client(
        None, WHOLE, "serve Prometheus metrics of the running point at this port", "PORT", read=port)
    parquet: bool = _client(False, SWITCH, "write the records as Parquet too")

    api_key_file: Path | None = _client(
        None, TEXT,
        "holds the API key for --target; no peer is shown it (default: $WATTSERVE_API_KEY, if it is set)",
        "FILE", read=Path)

    tls: bool | None = _tls(None, SWITCH, "use TLS, with the system's certificate authorities")
    tls_ca: Path | None = _tls(None, TEXT, "PEM file of certificates to trust instead", "FILE", read=Path)
    tls_cert: Path | None = _tls(None, TEXT, "PEM file with this client's certificate", "FILE", read=Path)
    tls_key: Path | None = _tls(None, TEXT, "PEM file with its private key", "FILE", read=Path)
    tls_server_name: str = _tls(
        "", TEXT, "the name that the certificate of --target must show; no peer's", "NAME")

    command: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunOptions(SweepOptions):
    """Of `loadgen run`: one variant, or one model of a peer, under one load."""

    variants: tuple[str, ...] | None = option(
        None, TEXT, "as the server calls it (needed, except for a peer)", "NAME",
        read=lambda text: (text,), key="variant")
    twin: bool = False
    scenario: str = _load(
        "", TEXT,
        "load and least number of requests of an MLPerf scenario, with --preset full; what differs is said",
        choices=tuple(name for name, scenario in SCENARIOS.items() if scenario.load))  # not a search
    find_max: bool = False
# fmt: on


def loads_of(asked: LoadOptions, scenario: str, where: Where) -> tuple[Load, ...] | None:
    """Every load asked for; None: the preset's own."""
    for helper, needed in (("arrival", "rate"), ("speed", "arrivals")):
        if getattr(asked, helper) and not getattr(asked, needed):
            raise PlanError(f"{where(helper)} needs --{needed}")
    named = [name for name in LOADS if getattr(asked, name)]
    if scenario:
        return _scenario_loads(asked, scenario, named, where)
    if asked.load and len(named) > 1:
        raise PlanError(f"{where('load')}: [[load]] lists every load; leave out {named[0]}")
    loads = (
        *(Load(CLOSED, concurrency=slots) for slots in asked.concurrency),
        *(Load(asked.arrival or POISSON, rate=rate) for rate in asked.rate),
        *asked.ramp,
        *(
            Load(RECORDED, trace=str(path), trace_sha256=_sha256(where("arrivals"), path, speed), speed=speed)
            for path in asked.arrivals
            for speed in asked.speed or (1.0,)
        ),
        *asked.load,
        *([Load(OFFLINE, concurrency=asked.offline)] if asked.offline else []),
    )
    check_loads(loads)
    for load in asked.load:
        _check_trace(load, where("load"))
    return loads if named else None


def _scenario_loads(
    asked: LoadOptions, scenario: str, named: list[str], where: Where
) -> tuple[Load, ...] | None:
    load = SCENARIOS[scenario].load
    other = next((name for name in named if (scenario, name) != ("offline", "offline")), None)
    if other is not None:
        raise PlanError(f"{where('scenario')} {scenario} chooses the load; leave out {other}")
    if load is None:
        return None
    loads = (replace(load, concurrency=asked.offline or load.concurrency),)
    check_loads(loads)
    return loads


def _check_trace(load: Load, where: str) -> None:
    """A listed load names the contents of its file: others would not repeat the sweep."""
    if load.shape != RECORDED or not load.trace_sha256:
        return
    sha256 = _sha256(where, Path(load.trace), load.speed)
    if sha256 != load.trace_sha256:
        raise PlanError(
            f"{where}: {load.trace} is not the file of the plan: its SHA-256 is {sha256[:12]}...,"
            f" not {load.trace_sha256[:12]}..."
        )


def _sha256(where: str, trace: Path, speed: float) -> str:
    from wattserve_loadgen.plan.arrivals import recorded

    try:
        return recorded(trace, speed=speed).sha256
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None
