"""`python -m tests.bench.policy`: the server's batching against arrival order and a sorted window, simulated.

In virtual time, and the same for the same seed on every machine. A recording is played with --lengths and,
for its instants, --arrivals, a file of seconds as `loadgen` plays it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tests.bench.policy.cases import Case, cases, pipelining, run_case
from tests.bench.policy.figures import figures
from tests.bench.policy.report import table
from tests.bench.policy.rules import RULES, ours
from tests.bench.policy.traffic import recorded_lengths
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.arrivals import recorded


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.policy", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", help="only cases whose name contains TEXT")
    parser.add_argument("--requests", type=int, default=3000, help="of each run (default 3000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--lengths", type=Path, metavar="FILE", help="play these: tokens, one number per line"
    )
    parser.add_argument(
        "--arrivals", type=Path, metavar="FILE", help="at these instants, not in a closed loop"
    )
    parser.add_argument("--speed", type=float, default=1.0, help="play the arrivals so many times as fast")
    parser.add_argument("--slots", type=int, default=32, help="of the closed loop (default 32)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    args = parser.parse_args()
    if args.arrivals and not args.lengths:
        parser.error("--arrivals needs --lengths")
    begun = time.monotonic()
    try:
        compared, split = ([_played(args)], []) if args.lengths else (cases(), pipelining())
    except (PlanError, ValueError, OSError) as error:
        parser.error(str(error))
    if args.only:
        compared, split = ([case for case in group if args.only in case.name] for group in (compared, split))
    if not compared and not split:
        parser.error(f"no case's name contains {args.only!r}")
    text = _compare(compared, args.requests, args.seed) + _pipeline(split, args.requests, args.seed)
    print(text)
    print(f"{time.monotonic() - begun:.0f} s")
    if args.markdown:
        args.markdown.write_text(text)


def _played(args: argparse.Namespace) -> Case:
    lengths = recorded_lengths(args.lengths)
    if not args.arrivals:
        return Case(f"{lengths.name}, {args.slots} slots", lengths, slots=args.slots)
    arrivals = recorded(args.arrivals, speed=args.speed).offsets_ns
    return Case(f"{lengths.name} at {args.arrivals.name}", lengths, arrivals_ns=tuple(arrivals.tolist()))


def _compare(compared: list[Case], requests: int, seed: int) -> str:
    text = ""
    for case in compared:
        count = min(requests, len(case.arrivals_ns) or requests)
        rows = [
            (
                f"{name}, {'packed' if packs else 'padded'}",
                figures(run_case(case, rule, packs, count, seed)),
            )
            for packs in (False, True)
            for name, rule in RULES.items()
        ]
        devices = " and ".join(device.name for _, device in case.devices)
        text += f"### {case.name} ({devices}, front end {case.front_ms:g} ms)\n\n{table(rows)}\n\n"
    return text


def _pipeline(split: list[Case], requests: int, seed: int) -> str:
    if not split:
        return ""
    rows = [(case.name, figures(run_case(case, ours, True, requests, seed))) for case in split]
    return f"### Smaller batches, packed, SST-2\n\n{table(rows, 'case')}\n"


if __name__ == "__main__":
    main()
