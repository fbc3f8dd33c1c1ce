"""A sweep as one TOML file: read with every mistake named, and written so that it repeats the sweep.

Keys are the flags of `loadgen sweep` and `loadgen run` without their dashes, values are TOML's own kinds:

    target = "127.0.0.1:50051"
    dataset = "data/reviews"
    out = "results/first"
    variants = ["fp32", "int8"]
    concurrency = [1, 4, 16]
    rate = [50, 100]
    slo = "p99<50ms"
    seconds = 12

A written file lists its loads one by one and in their order, on which the order of the cells depends:

    [[load]]
    shape = "closed"
    concurrency = 1

It knows no argparse and no server; what a value may look like is for the commands to say.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import OFFLINE, Load, check_loads
from wattserve_loadgen.plan.options import Peer, SweepOptions
from wattserve_loadgen.plan.schedule import Plan

PLAN_FILE = "plan.toml"  # in a results folder
LOADS_KEY = "load"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _list_of(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(map(kind, value))


_Kind = tuple[str, Callable[[Any], bool]]
_TEXT: _Kind = ("text in quotes", _is_text)
_WHOLE: _Kind = ("a whole number", _is_whole)
_NUMBER: _Kind = ("a number", _is_number)
_SWITCH: _Kind = ("true or false", _is_switch)
_TEXTS: _Kind = ('a list of texts, like ["a", "b"]', _list_of(_is_text))
_WHOLES: _Kind = ("a list of whole numbers, like [1, 4]", _list_of(_is_whole))
_NUMBERS: _Kind = ("a list of numbers, like [1, 2.5]", _list_of(_is_number))
_DURATION: _Kind = (
    'a duration in quotes, like "10m", or seconds',
    lambda value: _is_text(value) or _is_number(value),
)

KINDS: dict[str, _Kind] = {
    "target": _TEXT,
    "dataset": _TEXT,
    "out": _TEXT,
    "variant": _TEXT,
    "variants": _TEXTS,
    "preset": _TEXT,
    "blocks": _WHOLE,
    "seconds": _NUMBER,
    "seed": _WHOLE,
    "deadline": _NUMBER,
    "concurrency": _WHOLES,
    "rate": _NUMBERS,
    "arrival": _TEXT,
    "ramp": _TEXTS,
    "arrivals": _TEXTS,
    "speed": _NUMBERS,
    "offline": ("true, or the number of requests in flight", lambda value: value is True or _is_whole(value)),
    "scenario": _TEXT,
    "slo": _TEXT,
    "find-max": _SWITCH,
    "budget": _DURATION,
    "stream": _SWITCH,
    "processes": _WHOLE,
    "calibrate": _SWITCH,
    "peer": _TEXTS,
    "peer-meter": _TEXT,
    "tls": _SWITCH,
    "tls-ca": _TEXT,
    "tls-cert": _TEXT,
    "tls-key": _TEXT,
    "wait-for-server": _DURATION,
    "metrics-port": _WHOLE,
    "parquet": _SWITCH,
}
_LOAD_KINDS: dict[str, _Kind] = {
    "shape": _TEXT,
    "concurrency": _WHOLE,
    "rate": _NUMBER,
    "rate-end": _NUMBER,
    "trace": _TEXT,
    "trace-sha256": _TEXT,
    "speed": _NUMBER,
    "sequences": _WHOLE,
}


def read_plan(path: Path) -> dict[str, Any]:
    """The file's values by key: TOML's, checked to be of the key's kind; under `load` a tuple of Load.

    PlanError names the file, and the key that is unknown or of the wrong kind.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"--plan {path}: no such file") from None
    except OSError as error:
        raise PlanError(f"--plan {path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanError(f"{path}: not a TOML file ({error})") from None
    found = {key.replace("_", "-"): value for key, value in content.items()}
    tables = found.pop(LOADS_KEY, None)
    _check(str(path), found, KINDS)
    if tables is not None:
        found[LOADS_KEY] = _read_loads(path, tables)
    return found


def write_plan(options: SweepOptions, plan: Plan) -> str:
    """A file for `--plan` that repeats this sweep: what was asked for, and what the plan made of it.

    The budget is not repeated: the plan is what it left. A search is run again.
    """
    command = "sweep" if options.twin else "run"
    lines = [
        "# Repeats this measurement; --out and other flags win over what stands here:",
        f"#   loadgen {command} --plan {PLAN_FILE} --out ANOTHER_FOLDER",
        *(_line(key, value) for key, value in _settings(options, plan)),
    ]
    for arm, loads in plan.own_loads.items():
        lines += [f"# the search found, for {arm}: {load.name}" for load in loads]
    if not options.scenario:
        for load in plan.loads:
            lines += ["", f"[[{LOADS_KEY}]]", *(_line(key, value) for key, value in _load_settings(load))]
    return "\n".join(lines) + "\n"


def _settings(options: SweepOptions, plan: Plan) -> Iterable[tuple[str, Any]]:
    peers = _peers_left(options.peers, plan)
    peer_names = {peer.name for peer in options.peers}
    variants = [arm.variant for arm in plan.arms if not arm.twin_of and arm.target not in peer_names]
    tls = options.tls
    found: dict[str, Any] = {
        "target": options.target if variants else "",
        "dataset": str(options.dataset),
        "out": str(options.out),
        "preset": plan.preset,
        "blocks": plan.blocks,
        "seconds": plan.seconds,
        "seed": plan.seed,
        "deadline": options.deadline_seconds,
        "scenario": options.scenario,
        "slo": options.objective,
        "find-max": (options.find_max and not options.scenario) or None,  # a scenario that searches says so
        "stream": options.stream or None,
        "processes": options.processes,
        "calibrate": None if options.calibrate else False,
        "peer": [f"{one.name}={one.address}/{','.join(one.models)}" for one in peers],
        "peer-meter": next((one.meter for one in peers if one.meter), ""),
        "tls": (tls is not None and tls.ca is None) or None,
        "tls-ca": "" if tls is None else str(tls.ca or ""),
        "tls-cert": "" if tls is None else str(tls.cert or ""),
        "tls-key": "" if tls is None else str(tls.key or ""),
        "wait-for-server": options.wait_for_server_seconds,
        "metrics-port": options.metrics_port,
        "parquet": options.parquet or None,
    }
    found |= {"variants": variants} if options.twin else {"variant": next(iter(variants), "")}
    if options.scenario and plan.loads and plan.loads[0].shape == OFFLINE:
        found["offline"] = plan.loads[0].concurrency
    unsaid: tuple[Any, ...] = ("", [], None)
    return ((key, found[key]) for key in KINDS if key in found and found[key] not in unsaid)


def _peers_left(peers: Iterable[Peer], plan: Plan) -> list[Peer]:
    """Peers with the models that the plan still measures."""
    left = []
    for peer in peers:
        models = tuple(arm.variant for arm in plan.arms if arm.target == peer.name and not arm.twin_of)
        if models:
            left.append(Peer(peer.name, peer.address, models, peer.meter))
    return left


def _load_settings(load: Load) -> Iterable[tuple[str, Any]]:
    for item in fields(load):
        value = getattr(load, item.name)
        if item.name == "shape" or value != item.default:
            yield item.name.replace("_", "-"), value


def _line(key: str, value: Any) -> str:
    return f"{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):  # JSON's escapes are TOML's, but that TOML escapes DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _read_loads(path: Path, tables: Any) -> tuple[Load, ...]:
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise PlanError(f"{path}: {LOADS_KEY}: write each load as a table under [[{LOADS_KEY}]]")
    loads: list[Load] = []
    for index, table in enumerate(tables, start=1):
        where = f"{path}: [[{LOADS_KEY}]] {index}"
        found = {key.replace("_", "-"): value for key, value in table.items()}
        _check(where, found, _LOAD_KINDS)
        if "shape" not in found:
            raise PlanError(f"{where}: shape is missing")
        load = Load(**{key.replace("-", "_"): value for key, value in found.items()})
        loads.append(load)
        try:
            check_loads(loads)
        except PlanError as error:
            raise PlanError(f"{where}: {error}") from None
    return tuple(loads)


def _check(where: str, found: Mapping[str, Any], kinds: Mapping[str, _Kind]) -> None:
    for key, value in found.items():
        if key not in kinds:
            raise PlanError(f"{where}: unknown key {key!r}; known: {', '.join(kinds)}")
        name, fits = kinds[key]
        if not fits(value):
            raise PlanError(f"{where}: {key}: {value!r} is not {name}")
