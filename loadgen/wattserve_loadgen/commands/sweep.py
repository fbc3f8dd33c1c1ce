"""`loadgen sweep`: variants x loads."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from wattserve_loadgen.arguments import Parser, listed
from wattserve_loadgen.commands import flags

if TYPE_CHECKING:
    from wattserve_loadgen.arguments import Commands

_HELP = """\
Replays the dataset against every variant under every load and writes a folder: records.jsonl (one line per
request), results.json (every figure), results.csv (its points), plan.toml (repeats the sweep) and report.html
(the pictures).

A sweep runs in blocks. Each block runs every variant under every load once, in its own random order, after
one heat-up block that is not counted. `--preset look` takes a minute or two and its points say that they are
too short to publish; `quick` gives 36 s to each point, `full` more than the 600 s that a published figure
needs. The first variant is measured twice under two names, to see how far two equal things differ here.

Loads of several flags are all measured.
"""

_EPILOG = """\
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


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "sweep",
        help="measure variants under several loads, and write a report",
        description=_HELP,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_places(parser)
    parser.add_argument(
        "--variants",
        type=listed(str),
        metavar="A,B",
        help="which variants; the first is what the others are compared with (default: all of the server's)",
    )
    flags.add_running(parser)
    flags.add_loads(parser)
    parser.add_argument(
        "--find-max",
        action=argparse.BooleanOptionalAction,
        help="search each variant's highest Poisson rate that holds --slo, and measure there",
    )
    flags.add_time(parser)
    flags.add_peers(parser)
    flags.add_client(parser)
    parser.set_defaults(run=partial(_sweep, parser))


def _sweep(parser: Parser, options: argparse.Namespace) -> int:
    from wattserve_loadgen.commands.asked import sweep_options
    from wattserve_loadgen.commands.ending import measure

    return measure(sweep_options(options, parser))
