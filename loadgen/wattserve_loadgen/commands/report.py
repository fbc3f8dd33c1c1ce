"""`loadgen report`: report.html from a results folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattserve_loadgen.arguments import Commands


def add(commands: Commands) -> None:
    parser = commands.add_parser("report", help="make report.html again from a results folder")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --out folder of a sweep")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from wattserve_loadgen.report.page import write_report

    print(write_report(options.folder))
    return 0
