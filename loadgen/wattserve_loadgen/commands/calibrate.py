"""`loadgen calibrate`: what this client reaches against a server that does nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from wattserve_loadgen.arguments import positive_float, positive_int

if TYPE_CHECKING:
    from wattserve_loadgen.arguments import Commands

_HELP = """\
Measures how many requests per second this client can send at all, against a server on this machine that
answers nothing but canned bytes, and keeps the result: a point whose rate is above half of it is not valid.
`run` and `sweep` do it by themselves for the size of their own requests, where no result is kept.
"""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "calibrate",
        help="measure this client's own ceiling, and keep it",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=positive_float, default=5.0, metavar="S", help="of load in all (default: 5)"
    )
    parser.add_argument(
        "--processes", type=positive_int, default=1, metavar="N", help="of this client (default: 1)"
    )
    parser.add_argument("--stream", action="store_true", help="requests by one stream instead of calls")
    parser.add_argument(
        "--request-bytes",
        type=positive_int,
        default=256,
        metavar="N",
        help="size of a request, rounded up to a power of two (default: 256)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=_calibrate)


def _calibrate(options: argparse.Namespace) -> int:
    from wattserve_loadgen.drive.calibration import measure_ceiling
    from wattserve_loadgen.drive.ceiling import store_ceiling

    kind = "stream" if options.stream else "unary"
    found = asyncio.run(
        measure_ceiling(kind, options.request_bytes, options.processes, seconds=options.seconds)
    )
    print(json.dumps(asdict(found), indent=2) if options.json else found.describe())
    note = store_ceiling(found)
    if note:
        print(f"loadgen: {note}", file=sys.stderr)
    return 0
