"""`python -m tests.bench.attribution`: evaluate the shipped attribution against ground truth.

--worlds low-load,idle --seeds 1-8,42 runs some of the worlds, each with nine seeds. --recorded DIR shares
what a real machine recorded.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.attribution.hard_worlds import hard_worlds
from tests.bench.attribution.random_worlds import random_scenario
from tests.bench.attribution.recorded import render as render_recorded
from tests.bench.attribution.recorded import share_again
from tests.bench.attribution.report import render
from tests.bench.attribution.run import run
from tests.bench.attribution.scenarios import Scenario, scenarios


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.attribution", description=__doc__)
    parser.add_argument(
        "--worlds",
        metavar="NAME,...",
        help="only worlds whose name contains one of these; - is a blank",
    )
    parser.add_argument(
        "--seeds", type=seeds_of, default="1-3", metavar="1-8,42", help="of every world (default 1-3)"
    )
    parser.add_argument(
        "--random", type=int, default=8, help="how many random worlds of each seed (default 8)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    parser.add_argument("--quick", action="store_true", help="only the first of the seeds")
    parser.add_argument(
        "--recorded", type=Path, metavar="DIR", help="share what `wattserve meter verify` recorded, instead"
    )
    args = parser.parse_args()
    if args.recorded:
        print(render_recorded(share_again(args.recorded)))
        return
    seeds = args.seeds[:1] if args.quick else args.seeds
    tasks = [
        (scenario, seed) for seed in seeds for scenario in chosen(worlds(seed, args.random), args.worlds)
    ]
    if not tasks:
        names = "\n  ".join(scenario.name for scenario in worlds(seeds[0], args.random))
        parser.error(f"no world's name contains one of {args.worlds!r}; there are\n  {names}")
    processes = min(2, os.cpu_count() or 1, len(tasks))
    if processes > 1:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            results = pool.map(run, tasks, chunksize=1)
    else:
        results = [run(task) for task in tasks]
    text = render([scenario for scenario, _ in tasks], results)
    print(text)
    if args.markdown:
        args.markdown.write_text(text + "\n")
    if args.json:
        figures = [_finite(asdict(result)) for result in results]
        args.json.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")


def worlds(seed: int, random: int) -> list[Scenario]:
    return scenarios() + hard_worlds() + [random_scenario(number, seed) for number in range(random)]


def chosen(among: Sequence[Scenario], names: str | None) -> list[Scenario]:
    """names: parts of names, with commas between them; None: all."""
    if names is None:
        return list(among)
    parts = [_plain(part) for part in names.split(",")]
    return [scenario for scenario in among if any(part in _plain(scenario.name) for part in parts)]


def seeds_of(words: str) -> list[int]:
    """Of `1-8,42`. Raises ValueError for anything else."""
    seeds: list[int] = []
    for part in words.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


def _plain(name: str) -> str:
    """Words alone, with - between them: names have blanks and commas, which a shell and `--worlds` split."""
    return re.sub(r"[\s,-]+", "-", name.strip().lower())


def _finite(value: Any) -> Any:
    """The same with None for figures that do not exist, which JSON cannot write."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
