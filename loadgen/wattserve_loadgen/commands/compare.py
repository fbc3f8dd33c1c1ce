"""`loadgen compare`: two results folders side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattserve_loadgen.arguments import Commands


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare two results of like environments",
        description="Compares B with A, point by point; refuses (2) results of unlike environments.",
    )
    parser.add_argument("first", type=Path, metavar="A", help="a results folder: what B is compared with")
    parser.add_argument("second", type=Path, metavar="B", help="a results folder")
    parser.add_argument("--force", action="store_true", help="compare in spite of unlike environments")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    from wattserve_loadgen.results.codec import plain
    from wattserve_loadgen.results.compare import answers_of, compare
    from wattserve_loadgen.results.compare_text import comparison_text
    from wattserve_loadgen.results.folder import read_results

    first, second = read_results(options.first), read_results(options.second)
    found = compare(first, second, options.force, answers_of(options.first, options.second))
    if options.json:
        print(json.dumps(plain(found), indent=2, ensure_ascii=False))
    else:
        print(comparison_text(found))
    return 0
