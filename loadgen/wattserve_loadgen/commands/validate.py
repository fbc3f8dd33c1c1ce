"""`loadgen validate`: the checklist of a results folder."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from wattserve_loadgen.commands.ending import DONE, FAILED

if TYPE_CHECKING:
    from wattserve_loadgen.arguments import Commands

_MARKS = {True: "ok", False: "FAILED", None: "does not apply"}


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "validate",
        help="check results against the list of what makes them worth showing",
        description="Checks a results folder; ends with 1 when a check fails.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --out folder of a run or sweep")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.set_defaults(run=_validate)


def _validate(options: argparse.Namespace) -> int:
    from wattserve_loadgen.results.validate import failed, validate_folder

    checks = validate_folder(options.folder)
    if options.json:
        print(json.dumps([asdict(check) for check in checks], indent=2, ensure_ascii=False))
    else:
        for check in checks:
            print(f"{_MARKS[check.passed]:<15}{check.name}: {check.text}")
    return FAILED if failed(checks) else DONE
