"""A sweep as one TOML file: read with every mistake named, and written so that it repeats the sweep.

Keys are the flags of `loadgen sweep` and `loadgen run` without their dashes, values are TOML's own kinds.
A written file lists its loads one by one and in their order, on which the order of the cells depends:

    [[load]]
    shape = "closed"
    concurrency = 1
"""

from __future__ import annotations

import tomllib
from argparse import ArgumentTypeError
from collections.abc import Iterator
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.option import NUMBER, TEXT, WHOLE, from_toml, options_of, to_toml, toml_line
from wattserve_loadgen.plan.load import OFFLINE, Load, check_loads
from wattserve_loadgen.plan.options import LoadOptions, RunOptions, SweepOptions
from wattserve_loadgen.plan.schedule import Plan

PLAN_FILE = "plan.toml"  # in a results folder
LOADS_KEY = "load"
_KINDS = {"str": TEXT, "int": WHOLE, "float": NUMBER}  # by the annotation of a field of Load


def read_plan(path: Path, options_class: type[SweepOptions], command: str) -> dict[str, Any]:
    """The file's values by field of the options; under `load` a tuple of Load.

    PlanError names the file, and the key that is unknown, not of that command, or of the wrong kind.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise PlanError(f"--plan {path}: no such file") from None
    except OSError as error:
        raise PlanError(f"--plan {path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # of TOML, of a number or a nesting beyond its reader
        raise PlanError(f"{path}: not a TOML file ({error})") from None
    options, values = _in_file(options_class), {}
    for key, value in _dashed(content).items():
        where = f"{path}: {key}"
        if key == LOADS_KEY:
            values[key] = _read_loads(path, value)
        elif key in options:
            values[options[key].name] = _read(where, options[key], value)
        elif key in _in_file(SweepOptions) | _in_file(RunOptions):
            raise PlanError(f"{where}: `{command}` does not take it")
        else:
            raise PlanError(f"{path}: unknown key {key!r}; known: {', '.join(options)}")
    return values


def write_plan(options: SweepOptions, plan: Plan) -> str:
    """A file for `--plan` that repeats this sweep: what was asked for, and what the plan made of it.

    The budget is not repeated: the plan is what it left. A search is run again.
    """
    lines = [
        "# Repeats this measurement; --out and other flags win over what stands here:",
        f"#   loadgen {'sweep' if options.twin else 'run'} --plan {PLAN_FILE} --out ANOTHER_FOLDER",
        *to_toml(_as_planned(options, plan)),
    ]
    if options.scenario and plan.loads and plan.loads[0].shape == OFFLINE:
        lines.append(toml_line("offline", plan.loads[0].concurrency))
    for arm, loads in plan.own_loads.items():
        lines += [f"# the search found, for {arm}: {load.name}" for load in loads]
    if not options.scenario:
        for load in plan.loads:
            lines += ["", f"[[{LOADS_KEY}]]", *_load_lines(load)]
    return "\n".join(lines) + "\n"


def _as_planned(options: SweepOptions, plan: Plan) -> SweepOptions:
    """The options with what is left of them in the plan."""
    arms = [arm for arm in plan.arms if not arm.twin_of]
    peers = []
    for peer in options.peers:
        models = tuple(arm.variant for arm in arms if arm.target == peer.name)
        peers += [replace(peer, models=models)] if models else []
    names = {peer.name for peer in options.peers}
    variants = tuple(arm.variant for arm in arms if arm.target not in names)
    return replace(
        options,
        target=options.target if variants else "",
        variants=variants,
        peers=tuple(peers),
        peer_meter=options.peer_meter if peers else "",
        preset=plan.preset,
        blocks=plan.blocks,
        seconds=plan.seconds,
        seed=plan.seed,
        budget_s=None,
        find_max=options.find_max and not options.scenario,  # a scenario that searches says so
    )


def _in_file(options_class: type[SweepOptions]) -> dict[str, Field[Any]]:
    """The options that a file may say, by key."""
    options = options_of(options_class, LoadOptions)
    return {key: item for key, item in options.items() if item.metadata["in_file"]}


def _dashed(table: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in table.items()}


def _read(where: str, item: Field[Any], value: Any) -> Any:
    try:
        return from_toml(item, value)
    except ArgumentTypeError as error:
        raise PlanError(f"{where}: {error}") from None


def _load_lines(load: Load) -> Iterator[str]:
    for item in fields(load):
        value = getattr(load, item.name)
        if item.name == "shape" or value != item.default:
            yield toml_line(item.name.replace("_", "-"), value)


def _read_loads(path: Path, tables: Any) -> tuple[Load, ...]:
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise PlanError(f"{path}: {LOADS_KEY}: write each load as a table under [[{LOADS_KEY}]]")
    kinds = {item.name.replace("_", "-"): _KINDS[str(item.type).split()[0]] for item in fields(Load)}
    loads: list[Load] = []
    for index, table in enumerate(tables, start=1):
        where = f"{path}: [[{LOADS_KEY}]] {index}"
        for key, value in _dashed(table).items():
            if key not in kinds:
                raise PlanError(f"{where}: unknown key {key!r}; known: {', '.join(kinds)}")
            if not kinds[key].fits(value):
                raise PlanError(f"{where}: {key}: {value!r} is not {kinds[key].form}")
        if "shape" not in table:
            raise PlanError(f"{where}: shape is missing")
        loads.append(Load(**{key.replace("-", "_"): value for key, value in table.items()}))
        try:
            check_loads(loads)
        except PlanError as error:
            raise PlanError(f"{where}: {error}") from None
    return tuple(loads)
