"""What was asked for: flags over a plan file, checked to fit together, as SweepOptions.

Flags that were not given are None in the namespace. A value of the file goes through the flag's own reader,
so that both are refused alike; errors name the flag, or the file and the key.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wattserve_loadgen.arguments import UsageError
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan import scenarios
from wattserve_loadgen.plan.load import (
    CLOSED,
    CONSTANT,
    OFFLINE,
    POISSON,
    RECORDED,
    Load,
    check_loads,
)
from wattserve_loadgen.plan.options import Peer, SweepOptions, TlsFiles
from wattserve_loadgen.plan.plan_file import LOADS_KEY, PLAN_FILE, read_plan

_LOADS = ("concurrency", "rate", "ramp", "arrivals", "offline", "scenario", LOADS_KEY)
_HELPERS = {"arrival": "rate", "speed": "arrivals"}
_TLS_FILES = ("tls-ca", "tls-cert", "tls-key")


class Asked:
    """Values by key (a flag without its dashes), each with where it came from."""

    def __init__(self, flags: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
        self._values = {
            key.replace("_", "-"): value for key, value in vars(flags).items() if value is not None
        }
        self._file: Path | None = flags.plan or _plan_to_resume(flags)
        self._from_file: set[str] = set()
        if self._file is not None:
            self._fill(read_plan(self._file), parser)

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def has(self, key: str) -> bool:
        return key in self._values

    def where(self, key: str) -> str:
        """How to name the value in an error."""
        return f"{self._file}: {key}" if key in self._from_file else f"--{key}"

    def need(self, key: str, what: str) -> Any:
        if key not in self._values:
            raise UsageError(f"--{key} is missing: {what}")
        return self._values[key]

    def _fill(self, content: dict[str, Any], parser: argparse.ArgumentParser) -> None:
        actions = {
            option.removeprefix("--"): action
            for action in parser._actions
            for option in action.option_strings
        }
        if any(key in self._values for key in _LOADS):  # loads of the command line replace those of the file
            content = {key: value for key, value in content.items() if key not in (*_LOADS, *_HELPERS)}
        for key, value in content.items():
            if key in self._values:
                continue
            if key == LOADS_KEY:
                self._values[key] = value
            elif key in actions:
                self._values[key] = self._read(key, actions[key], value)
            else:
                raise PlanError(f"{self._file}: {key}: `{parser.prog}` does not take it")
            self._from_file.add(key)

    def _read(self, key: str, action: argparse.Action, value: Any) -> Any:
        if isinstance(value, bool):
            return scenarios.IN_FLIGHT if key == "offline" else value
        many = isinstance(value, list)
        try:
            if many and isinstance(action, argparse._AppendAction):
                return [_converted(action, str(one)) for one in value]
            return _converted(action, ",".join(map(str, value)) if many else str(value))
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise PlanError(f"{self._file}: {key}: {error}") from None


def sweep_options(
    flags: argparse.Namespace, parser: argparse.ArgumentParser, *, twin: bool = True
) -> SweepOptions:
    """What `run` or `sweep` was asked to do. UsageError or PlanError when it does not fit together."""
    asked = Asked(flags, parser)
    if flags.resume and flags.force:
        raise UsageError("--resume continues what --out holds and --force replaces it: choose one")
    peers = _peers(asked)
    target = asked.get("target", "")
    if not target and not peers:
        raise UsageError("--target is missing: the server's gRPC address, HOST:PORT")
    objective = _objective(asked)
    scenario = asked.get("scenario", "")
    loads = _loads(asked)
    least = scenarios.named(scenario).least_requests if scenario else 0
    find_max = bool(asked.get("find-max")) or scenario == "server"
    if find_max and not objective:
        asking = "--scenario server" if scenario else asked.where("find-max")
        raise UsageError(f"{asking} needs --slo: the objective to hold, like p99<50ms")
    if find_max and loads is None:
        loads = ()
    variants = asked.get("variants")
    if asked.has("variant"):
        variants = (asked.get("variant"),)
    preset = asked.get("preset", scenarios.PRESET if scenario else "quick")
    return SweepOptions(
        target=target,
        dataset=asked.need("dataset", "a folder made by `loadgen prepare`"),
        out=asked.need("out", "the folder for the results"),
        preset=preset,
        variants=variants,
        loads=loads,
        blocks=asked.get("blocks"),
        seconds=asked.get("seconds"),
        seed=asked.get("seed", 0),
        deadline_seconds=asked.get("deadline", 30.0),
        least_requests=least,
        scenario=scenario,
        stream=asked.get("stream", False),
        tls=_tls(asked),
        peers=peers,
        objective=objective,
        find_max=find_max,
        budget_seconds=asked.get("budget"),
        twin=twin,
        processes=asked.get("processes", 1),
        wait_for_server_seconds=asked.get("wait-for-server", 60.0),
        calibrate=asked.get("calibrate", True),
        metrics_port=asked.get("metrics-port"),
        resume=flags.resume,
        force=flags.force,
        dry_run=flags.dry_run,
        parquet=asked.get("parquet", False),
        command=tuple(flags.argv),
    )


def _converted(action: argparse.Action, text: str) -> Any:
    value = action.type(text) if callable(action.type) else text
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"{text!r} is unknown; choose from {', '.join(map(str, action.choices))}")
    return value


def _plan_to_resume(flags: argparse.Namespace) -> Path | None:
    """The plan that the folder to be resumed holds, so that its flags need not be repeated."""
    if not flags.resume or flags.out is None:
        return None
    path = Path(flags.out) / PLAN_FILE
    return path if path.is_file() else None


def _loads(asked: Asked) -> tuple[Load, ...] | None:
    """Every load asked for; None: the preset's own."""
    for helper, needed in _HELPERS.items():
        if asked.has(helper) and not asked.has(needed):
            raise UsageError(f"{asked.where(helper)} needs --{needed}")
    given = [key for key in _LOADS if asked.has(key)]
    if "scenario" in given:
        return _scenario_loads(asked, given)
    if LOADS_KEY in given and len(given) > 1:
        other = next(key for key in given if key != LOADS_KEY)
        raise PlanError(f"{asked.where(LOADS_KEY)}: [[{LOADS_KEY}]] lists every load; leave out {other}")
    arrival = POISSON if asked.get("arrival", POISSON) == POISSON else CONSTANT
    loads = [
        *(Load(CLOSED, concurrency=one) for one in asked.get("concurrency", ())),
        *(Load(arrival, rate=one) for one in asked.get("rate", ())),
        *asked.get("ramp", ()),
        *_recorded(asked),
        *asked.get(LOADS_KEY, ()),
    ]
    if asked.has("offline"):
        loads.append(Load(OFFLINE, concurrency=asked.get("offline")))
    check_loads(loads)
    _check_traces(asked, asked.get(LOADS_KEY, ()))
    return tuple(loads) if given else None


def _scenario_loads(asked: Asked, given: Iterable[str]) -> tuple[Load, ...] | None:
    scenario = asked.get("scenario")
    load = scenarios.named(scenario).load
    allowed = ("scenario", "offline") if scenario == "offline" else ("scenario",)
    other = next((key for key in given if key not in allowed), None)
    if other is not None:
        raise UsageError(f"{asked.where('scenario')} {scenario} chooses the load; leave out {other}")
    if load is None:
        return None
    if asked.has("offline"):
        load = Load(OFFLINE, concurrency=asked.get("offline"))
    check_loads([load])
    return (load,)


def _recorded(asked: Asked) -> list[Load]:
    return [
        Load(
            RECORDED,
            trace=str(path),
            trace_sha256=_sha256(asked.where("arrivals"), str(path), speed),
            speed=speed,
        )
        for path in asked.get("arrivals", ())
        for speed in asked.get("speed", (1.0,))
    ]


def _check_traces(asked: Asked, loads: Iterable[Load]) -> None:
    """A listed load names the contents of its file: others would not repeat the sweep."""
    for load in loads:
        if load.shape == RECORDED and load.trace_sha256:
            found = _sha256(asked.where(LOADS_KEY), load.trace, load.speed)
            if found != load.trace_sha256:
                raise PlanError(
                    f"{asked.where(LOADS_KEY)}: {load.trace} is not the file of the plan: its SHA-256 is"
                    f" {found[:12]}..., not {load.trace_sha256[:12]}..."
                )


def _sha256(where: str, trace: str, speed: float) -> str:
    from wattserve_loadgen.plan.arrivals import recorded

    try:
        return recorded(Path(trace), speed=speed).sha256
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None


def _objective(asked: Asked) -> str:
    from wattserve_loadgen.figures.slo import parse_objectives

    text = str(asked.get("slo", ""))
    if asked.has("slo"):
        try:
            parse_objectives(text)
        except PlanError as error:
            raise PlanError(str(error).replace("--slo", asked.where("slo"), 1)) from None
    return text


def _peers(asked: Asked) -> tuple[Peer, ...]:
    peers: list[Peer] = asked.get("peer", [])
    meter = asked.get("peer-meter", "")
    if meter and not peers:
        raise UsageError(f"{asked.where('peer-meter')} needs --peer")
    names = [peer.name for peer in peers]
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise UsageError(
            f"{asked.where('peer')}: the name {twice} is given twice; list the models of one server together"
        )
    return tuple(Peer(peer.name, peer.address, peer.models, meter) for peer in peers)


def _tls(asked: Asked) -> TlsFiles | None:
    given = [key for key in _TLS_FILES if asked.has(key)]
    if asked.get("tls") is False and given:
        raise UsageError(f"--no-tls and {asked.where(given[0])} contradict each other")
    if asked.has("tls-cert") != asked.has("tls-key"):
        have, lack = ("cert", "key") if asked.has("tls-cert") else ("key", "cert")
        raise UsageError(f"{asked.where(f'tls-{have}')} needs --tls-{lack}")
    if not given and not asked.get("tls"):
        return None
    for key in given:
        if not asked.get(key).is_file():
            raise UsageError(f"{asked.where(key)}: {asked.get(key)}: no such file")
    return TlsFiles(asked.get("tls-ca"), asked.get("tls-cert"), asked.get("tls-key"))
