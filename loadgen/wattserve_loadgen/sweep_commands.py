"""`loadgen sweep` and `loadgen run`: flags over a plan file, checked to fit together; how they end."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.option import add_options, given, options_of
from wattserve_loadgen.plan import scenarios
from wattserve_loadgen.plan.options import LOADS, LoadOptions, RunOptions, SweepOptions, Where, loads_of
from wattserve_loadgen.plan.plan_file import PLAN_FILE, read_plan

if TYPE_CHECKING:
    from wattserve_loadgen.model.results import Results

    Commands = argparse._SubParsersAction[Any]

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130  # exit codes
_OF_LOADS = (*LOADS, "arrival", "speed", "scenario")

_SWEEP_HELP = """\
Replays the dataset against every variant under every load and writes a folder: records.jsonl (one line per
request), results.json (every figure), results.csv (its points), plan.toml (repeats the sweep) and report.html
(the pictures).

A sweep runs in blocks. Each block runs every variant under every load once, in its own random order, after
one heat-up block that is not counted. `--preset look` takes a minute or two and its points say that they are
too short to publish; `quick` gives 36 s to each point, `full` more than the 600 s that a published figure
needs. The first variant is measured twice under two names, to see how far two equal things differ here.

Loads of several flags are all measured.
"""

_SWEEP_EPILOG = """\
a plan file for --plan says the same in TOML:

  target = "127.0.0.1:50051"
  dataset = "data/reviews"
  out = "results/first"
  variants = ["fp32", "int8"]
  concurrency = [1, 4, 16]
  rate = [50, 100]
  slo = "p99<50ms"
  budget = "30m"
"""

_RUN_HELP = """\
Measures one point: one variant under one load, in blocks, with the same checks and the same folder of results
as a sweep. There is nothing to compare it with, and no second arm that says how far two equal things differ.
"""


def add_run(commands: Commands) -> None:
    add_measuring(commands, "run", RunOptions, "measure one variant under one load", description=_RUN_HELP)


def add_sweep(commands: Commands) -> None:
    text = "measure variants under several loads, and write a report"
    add_measuring(commands, "sweep", SweepOptions, text, description=_SWEEP_HELP, epilog=_SWEEP_EPILOG)


def add_measuring(
    commands: Commands, name: str, options_class: type[SweepOptions], text: str, **texts: str
) -> None:
    def run(flags: argparse.Namespace) -> int:
        return measure(read_options(options_class, flags, parser.prog))

    parser = add_command(commands, name, run, text, **texts)
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE.toml",
        help="settings named as the flags are, which win over it; a results folder holds its own, plan.toml",
    )
    add_options(parser, LoadOptions, options_class)


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], text: str, **texts: Any
) -> argparse.ArgumentParser:
    """`text`: of it in the list of commands."""
    shape = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, formatter_class=shape, **texts)
    parser.set_defaults(run=run)
    return parser


def read_options(options_class: type[SweepOptions], flags: argparse.Namespace, command: str) -> SweepOptions:
    """What a command was asked to do: flags, and beside them what its plan file says. PlanError names the
    flag, or the file and the key, that do not fit together."""
    values, from_file = given(flags, options_class, LoadOptions), {}
    file = flags.plan or _plan_to_resume(values)
    if file is not None:
        # loads of the command line replace those of the file
        without = values.keys() | (_OF_LOADS if values.keys() & {*LOADS, "scenario"} else ())
        content = read_plan(file, options_class, command)
        from_file = {name: value for name, value in content.items() if name not in without}
    keys = {item.name: key for key, item in options_of(options_class, LoadOptions).items()}

    def where(name: str) -> str:
        key = keys.get(name, name)
        return f"{file}: {key}" if name in from_file else f"--{key}"

    values |= from_file
    of_loads = {item.name: values.pop(item.name) for item in fields(LoadOptions) if item.name in values}
    if "scenario" in values:
        values.setdefault("preset", scenarios.PRESET)
    _check_what_is_needed(options_class, values)
    options = options_class(**values, command=tuple(flags.argv))
    _check_together(options, where)
    return _with_loads(options, LoadOptions(**of_loads), where)


def _with_loads(options: SweepOptions, asked: LoadOptions, where: Where) -> SweepOptions:
    scenario = options.scenario
    find_max = options.find_max or scenario == "server"
    if find_max and not options.objective:
        search = "--scenario server" if scenario else where("find_max")
        raise PlanError(f"{search} needs --slo: the objective to hold, like p99<50ms")
    loads = loads_of(asked, scenario, where)
    options = replace(
        options,
        loads=() if find_max and loads is None else loads,
        find_max=find_max,
        peers=tuple(replace(peer, meter=options.peer_meter) for peer in options.peers),
        least_requests=scenarios.named(scenario).least_requests if scenario else 0,
    )
    if isinstance(options, RunOptions):
        _check_that_it_is_one_point(options)
    return options


def _plan_to_resume(values: dict[str, Any]) -> Path | None:
    """The plan that the folder to be resumed holds, so that its flags need not be repeated."""
    if "resume" not in values or "out" not in values:
        return None
    path: Path = values["out"] / PLAN_FILE
    return path if path.is_file() else None


def _check_what_is_needed(options_class: type[SweepOptions], values: dict[str, Any]) -> None:
    if "target" not in values and "peers" not in values:
        if "resume" in values and "out" in values:
            raise PlanError(f"{values['out']}: no sweep was begun there: it holds no {PLAN_FILE} to resume")
        raise PlanError("--target is missing: the server's gRPC address, HOST:PORT")
    for key, item in options_of(options_class).items():
        if item.default is MISSING and item.name not in values:
            raise PlanError(f"--{key} is missing: {item.metadata['help']}")


def _check_together(options: SweepOptions, where: Where) -> None:
    if options.resume and options.force:
        raise PlanError("--resume continues what --out holds and --force replaces it: choose one")
    if options.peer_meter and not options.peers:
        raise PlanError(f"{where('peer_meter')} needs --peer")
    names = [peer.name for peer in options.peers]
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise PlanError(
            f"{where('peers')}: the name {twice} is given twice; list the models of one server together"
        )
    if options.objective:
        _check_objective(options, where)
    _check_tls(options, where)


def _check_objective(options: SweepOptions, where: Where) -> None:
    from wattserve_loadgen.figures.limits import parse_limits
    from wattserve_loadgen.figures.slo import parse_objectives

    try:
        if not parse_limits(options.objective):
            parse_objectives(options.objective)
        elif options.find_max:
            raise PlanError(
                f"--slo {options.objective}: {where('find_max')} needs objectives of percentiles, like"
                " p99<50ms: limits on each answer have no rate at which they hold"
            )
    except PlanError as error:
        raise PlanError(str(error).replace("--slo", where("objective"), 1)) from None


def _check_tls(options: SweepOptions, where: Where) -> None:
    files = {name: getattr(options, name) for name in ("tls_ca", "tls_cert", "tls_key")}
    files = {name: path for name, path in files.items() if path is not None}
    given = [*files, *(("tls_server_name",) if options.tls_server_name else ())]
    if options.tls is False and given:
        raise PlanError(f"--no-tls and {where(given[0])} contradict each other")
    if options.tls_server_name and not options.target:
        raise PlanError(f"{where('tls_server_name')} is of --target, and none is given")
    if ("tls_cert" in files) != ("tls_key" in files):
        have, lack = ("cert", "key") if "tls_cert" in files else ("key", "cert")
        raise PlanError(f"{where(f'tls_{have}')} needs --tls-{lack}")
    for name, path in files.items():
        if not path.is_file():
            raise PlanError(f"{where(name)}: {path}: no such file")


def _check_that_it_is_one_point(options: RunOptions) -> None:
    if options.target and not options.variants:
        raise PlanError("--variant is missing: which one to measure (`wattserve variants` lists them)")
    if bool(options.target) + sum(len(peer.models) for peer in options.peers) != 1:
        raise PlanError(
            "`loadgen run` measures one variant or one peer's model; for several use `loadgen sweep`"
        )
    if options.loads is None:
        raise PlanError("a load is missing: for example --concurrency 8 or --rate 100")
    if len(options.loads) != 1:
        raise PlanError(
            f"`loadgen run` measures under one load, not {len(options.loads)};"
            " for several use `loadgen sweep`"
        )


def measure(options: SweepOptions) -> int:
    """Run a sweep, write its report and say how it ended; a dry run prints its plan and has no results."""
    from wattserve_loadgen.sweeping.progress import make_display
    from wattserve_loadgen.sweeping.sweep import run_sweep, sigterm_as_ctrl_c

    if options.scenario:
        print(scenarios.remark(options.scenario), file=sys.stderr)
    try:
        with sigterm_as_ctrl_c():
            results = asyncio.run(run_sweep(options, make_display()))
    except KeyboardInterrupt:
        kept = f"; `loadgen report {options.out}` draws the finished cells" if options.out.is_dir() else ""
        print(f"loadgen: stopped at once{kept}", file=sys.stderr)
        return INTERRUPTED
    if results is None:
        return DONE
    from wattserve_loadgen.report.page import write_report

    return say_how_it_ended(results, write_report(options.out))


def say_how_it_ended(results: Results, report: Path) -> int:
    """On the console: the table, what speaks against its figures, where the rest is. The exit code."""
    from wattserve_loadgen.report import console, text

    for line in console.summary(results):
        print(line)
    if verdicts := text.verdicts_sentence(results):
        print(verdicts)
    if results.checks:
        print(checks_line(results, report.parent))
    measured = f"{text.progress(results)}: {report}"
    if results.complete and not any(point.answered for point in results.points):
        print(f"loadgen: no request was answered; {measured}", file=sys.stderr)
        return FAILED
    if results.complete:
        without = "" if any(point.figures for point in results.points) else ", without figures"
        print(f"done{without}: {measured}")
        return DONE
    print(f"loadgen: ended early: {results.ended}; {measured}", file=sys.stderr)
    return INTERRUPTED if results.ended.startswith("interrupted") else FAILED


def checks_line(results: Results, folder: Path) -> str:
    """`2 of 13 checks failed: steady power, sensor samples`, and where to read why."""
    judged = [check for check in results.checks if check.passed is not None]
    failed = [check.name for check in judged if not check.passed]
    if not failed:
        return f"all checks passed ({len(judged)})"
    why = f"{', '.join(failed)} (`loadgen validate {folder}` says why)"
    return f"{len(failed)} of {len(judged)} checks failed: {why}"
