"""Exit codes, and how a measurement is run to its end and what is said then."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from wattserve_loadgen.plan import scenarios
from wattserve_loadgen.plan.options import SweepOptions

if TYPE_CHECKING:
    from wattserve_loadgen.results.schema import Results

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def measure(options: SweepOptions) -> int:
    """Run a sweep, write its report and say how it ended; a dry run prints its plan and has no results."""
    from wattserve_loadgen.sweeping.progress import make_display
    from wattserve_loadgen.sweeping.signals import sigterm_as_ctrl_c
    from wattserve_loadgen.sweeping.sweep import run_sweep

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
    if results.checks:
        print(checks_line(results, report.parent))
    measured = f"{len(results.cells)} of {results.cells_planned} cells are in {report}"
    if results.complete and not any(point.answered for point in results.points):
        print(f"loadgen: no request was answered; {measured}", file=sys.stderr)
        return FAILED
    if results.complete:
        print(f"done: {measured}")
        return DONE
    print(f"loadgen: ended early: {results.ended}; {measured}", file=sys.stderr)
    return INTERRUPTED if results.ended.startswith("interrupted") else FAILED


def checks_line(results: Results, folder: Path) -> str:
    """`checks: 11 of 13 passed; not: steady power, sensor samples`, and where to read why."""
    judged = [check for check in results.checks if check.passed is not None]
    failed = [check.name for check in judged if not check.passed]
    text = f"checks: {len(judged) - len(failed)} of {len(judged)} passed"
    return f"{text}; not: {', '.join(failed)} (`loadgen validate {folder}` says why)" if failed else text
