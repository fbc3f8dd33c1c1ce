"""`loadgen run`: one variant under one load."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from wattserve_loadgen.arguments import Parser, UsageError
from wattserve_loadgen.commands import flags
from wattserve_loadgen.errors import PlanError

if TYPE_CHECKING:
    from wattserve_loadgen.arguments import Commands
    from wattserve_loadgen.plan.options import SweepOptions

_HELP = """\
Measures one point: one variant under one load, in blocks, with the same checks and the same folder of results
as a sweep. There is nothing to compare it with, and no second arm that says how far two equal things differ.
"""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "run",
        help="measure one variant under one load",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_places(parser)
    parser.add_argument("--variant", metavar="NAME", help="as the server calls it (needed, but for a peer)")
    flags.add_running(parser)
    flags.add_one_load(parser)
    flags.add_time(parser)
    flags.add_peers(parser)
    flags.add_client(parser)
    parser.set_defaults(run=partial(_run, parser))


def _run(parser: Parser, options: argparse.Namespace) -> int:
    from wattserve_loadgen.commands.asked import sweep_options
    from wattserve_loadgen.commands.ending import measure

    wanted = sweep_options(options, parser, twin=False)
    _check_that_it_is_one_point(wanted)
    return measure(wanted)


def _check_that_it_is_one_point(wanted: SweepOptions) -> None:
    models = sum(len(peer.models) for peer in wanted.peers)
    if wanted.target and not wanted.variants:
        raise UsageError("--variant is missing: which one to measure (`wattserve variants` lists them)")
    if bool(wanted.target) + models != 1:
        raise UsageError(
            "`loadgen run` measures one variant or one peer's model; for several use `loadgen sweep`"
        )
    if wanted.loads is None:
        raise UsageError("a load is missing: for example --concurrency 8 or --rate 100")
    if len(wanted.loads) != 1:
        raise PlanError(
            f"`loadgen run` measures under one load, not {len(wanted.loads)}; for several use `loadgen sweep`"
        )
