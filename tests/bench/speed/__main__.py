"""`python -m tests.bench.speed`: the table of figures to reach."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.speed import __doc__ as about
from tests.bench.speed import machine, paths, quiet, rows, scenes
from tests.bench.speed.figures import BenchError, Line
from tests.bench.speed.options import MANY, PLAIN_VARIANTS, VARIANTS, Options
from tests.bench.speed.table import markdown, record

ROWS = ("engine", "limit", "tiny", "echo", "calls", "latency", "tail", "padding", "energy", "int8")
ECHO_CONCURRENCY = 64


def measure(options: Options) -> tuple[list[Line], dict[str, Sequence[float]]]:
    """In the order of the table. Raises BenchError."""
    figures: dict[str, Sequence[float]] = {}
    lines: list[Line] = []
    plain = [variant for variant in options.variants if variant in PLAIN_VARIANTS]
    if "engine" in options.rows and plain:
        figures |= scenes.overhead_figures(options, plain)
        lines += rows.engine_lines(figures)
    if turns := rows.base_turns(options.rows, options.variants):
        figures |= scenes.model_figures("base", options, turns)
    if "limit" in options.rows:
        lines += rows.limit_lines(figures, "limit", "base", (32, 64))
    if "tiny" in options.rows:
        figures |= scenes.model_figures("tiny", options, rows.tiny_turns())
        lines += rows.limit_lines(figures, "tiny", "tiny", (64,))
    if {"echo", "calls"} & options.rows:
        figures |= call_figures(options)
    if "echo" in options.rows:
        lines += rows.echo_lines(figures, ECHO_CONCURRENCY)
    if "calls" in options.rows:
        lines += rows.call_lines(figures, ECHO_CONCURRENCY)
    for row, lines_of in (
        ("latency", rows.latency_lines), ("tail", rows.tail_lines), ("padding", rows.padding_lines),
    ):  # fmt: skip
        if row in options.rows:
            lines += lines_of(figures)
    if "energy" in options.rows:
        cases = [*(("base", variant, 32) for variant in plain[-1:]), ("tiny", "fp32", 64)]
        for model, variant, concurrency in cases:
            figures |= scenes.metering_figures(options, model, variant, concurrency)
            lines += rows.metering_lines(figures, model, variant, concurrency)
    if "int8" in options.rows:
        lines += rows.int8_lines(figures)
    if options.against:
        figures |= scenes.against_figures(options, plain)
        lines += rows.against_lines(figures)
    return [replace(line, is_disturbed=quiet.is_disturbed(figures, line.turns)) for line in lines], figures


def call_figures(options: Options) -> dict[str, Sequence[float]]:
    """Of an empty call and of our server without a model, by `tests.bench.echo`: requests per second, and
    microseconds of the server's CPU for each."""
    from tests.bench import echo  # which imports torch

    watch = quiet.Watch()
    loads = echo.loads_of(ECHO_CONCURRENCY)
    programs = echo.metered_programs()
    turns = echo.measure(loads, programs, options.rounds, options.seconds / 2)
    figures: dict[str, Sequence[float]] = {"echo" + quiet.FOREIGN: [watch.foreign_cores()]}
    for load in loads:
        for server in programs:
            name = f"echo.{load.kind}.{'empty' if server == echo.EMPTY else 'ours'}"
            figures[name] = [turn.per_second for turn in turns[load.name, server]]
            figures[f"{name}.cpu_us"] = [turn.cpu_us for turn in turns[load.name, server]]
    return figures


def parsed(arguments: Sequence[str] | None = None) -> tuple[Options, Path | None]:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speed", description=about)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)} (default: all)")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="those that this CPU runs natively")
    parser.add_argument("--rounds", type=int, default=5, help=f"{MANY} times as many for engine and energy")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn, at the least")
    parser.add_argument("--sequences", type=int, default=1000, help="in the set that each turn runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--against", default="", metavar="DIR", help="another checkout: its server as well")
    parser.add_argument("--out", type=Path, metavar="FILE", help="FILE gets the table, FILE.json every round")
    options = parser.parse_args(arguments)
    names, variants = options.rows.split(","), options.variants.split(",")
    for name, known in [*((name, ROWS) for name in names if name), *((name, VARIANTS) for name in variants)]:
        if name not in known:
            parser.error(f"unknown: {name!r}; known: {', '.join(known)}")
    if options.rounds < 1 or options.sequences < 32 or options.seconds < 0:
        parser.error("rounds must be 1 or more, sequences 32 or more, seconds 0 or more")
    if options.against and not (Path(options.against) / "server" / "wattserve_server").is_dir():
        parser.error(f"--against {options.against}: no checkout of this repository")
    if not options.against and not options.rows:
        parser.error("--rows is empty, and there is no --against: nothing to measure")
    against = str(Path(options.against).resolve()) if options.against else ""
    return (
        Options(
            frozenset(filter(None, names)), tuple(variants), options.rounds, options.seconds,
            options.sequences, options.seed, against,
        ),
        options.out,
    )  # fmt: skip


def main() -> int:
    options, out = parsed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no process is left behind
    described: dict[str, Any] = machine.describe()
    begun = time.monotonic()
    try:
        described |= paths.describe()
        stolen, ticks = machine.stolen_and_all()
        lines, figures = measure(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    stolen_after, ticks_after = machine.stolen_and_all()
    described["stolen by the host meanwhile"] = f"{(stolen_after - stolen) / (ticks_after - ticks):.1%}"
    described["cores that others kept busy"] = quiet.summary(figures)
    described["minutes"] = f"{(time.monotonic() - begun) / 60:.1f}"
    notes = [
        f"{options.sequences:,} sequences, seed {options.seed}, mean length 28; turns of {options.seconds:g} "
        "s or of the whole set, whichever is longer; the client is a process on the same cores. Verdicts: "
        "reached or missed when both quartiles say so, else not shown."
    ]
    if options.against:
        notes.append(f"The other tree: {options.against}.")
    page = markdown(lines, described, notes)
    print(page, end="")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
        details = record(
            lines, figures, {**described, "options": {**vars(options), "rows": sorted(options.rows)}}
        )
        out.with_suffix(out.suffix + ".json").write_text(
            json.dumps(details, indent=1) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
