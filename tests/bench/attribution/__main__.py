"""`python -m tests.bench.attribution`: evaluate the shipped attribution against ground truth."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.attribution.random_worlds import random_scenario
from tests.bench.attribution.report import render
from tests.bench.attribution.run import run
from tests.bench.attribution.scenarios import scenarios

QUICK = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.attribution", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="only scenarios whose name contains NAME")
    parser.add_argument("--worlds", type=int, default=24, help="how many random worlds (default 24)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time, 6 random worlds at most")
    args = parser.parse_args()
    worlds = min(args.worlds, 6) if args.quick else args.worlds
    chosen = scenarios() + [random_scenario(number, args.seed) for number in range(worlds)]
    if args.only:
        chosen = [scenario for scenario in chosen if args.only in scenario.name]
    if not chosen:
        parser.error(f"no scenario's name contains {args.only!r}")
    if args.quick:
        chosen = [scenario.shortened(QUICK) for scenario in chosen]
    tasks = [(scenario, args.seed) for scenario in chosen]
    processes = min(2, os.cpu_count() or 1, len(tasks))
    if processes > 1:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            results = pool.map(run, tasks, chunksize=1)
    else:
        results = [run(task) for task in tasks]
    text = render(chosen, results)
    print(text)
    if args.markdown:
        args.markdown.write_text(text + "\n")
    if args.json:
        figures = [_finite(asdict(result)) for result in results]
        args.json.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """The same with None for figures that do not exist, which JSON cannot write."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
