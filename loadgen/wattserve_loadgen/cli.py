"""The command line: reads arguments, prints the outcome, and turns every user mistake into one line.

Exit codes:
    0    done
    1    the measurement ended early because the server was lost, or nothing was answered (what was measured
         is written); a check of `loadgen validate` failed; `loadgen compare` found no point in both
    2    a mistake in the arguments, the plan, the dataset or the folder; nobody answers; or `loadgen compare`
         refuses results of unlike environments
    130  Ctrl-C or SIGTERM; what was measured is written
    141  whoever read its output left, as `| head` does
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from wattserve_common.arguments import Parser, check_output, nobody_reads
from wattserve_common.errors import UserError, incomplete, shortage
from wattserve_common.machine import version_of
from wattserve_loadgen.commands import add_calibrate, add_compare, add_prepare, add_report, add_validate
from wattserve_loadgen.sweep_commands import INTERRUPTED, MISTAKE, add_run, add_sweep

_EPILOG = """\
a first sweep, against a server started with `wattserve serve`:

  loadgen prepare --input reviews.csv --text-column text --label-column label \\
                  --tokenizer distilbert-base-uncased-finetuned-sst-2-english --out data/reviews
  loadgen sweep   --target 127.0.0.1:50051 --dataset data/reviews --preset look --out results/first
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        check_output()
        options = _parser().parse_args(arguments)
        options.argv = ["loadgen", *arguments]
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return MISTAKE
    except MemoryError:
        print("loadgen: not enough memory for this; take fewer rows", file=sys.stderr)
        return MISTAKE
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("wattserve_loadgen"):
            raise
        print(f"loadgen: {incomplete(error, 'loadgen')}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("loadgen: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return nobody_reads()
    except OSError as error:  # as standard output may raise it; files have words of their own
        if not (told := shortage(error)):
            raise
        print(f"loadgen: {told}", file=sys.stderr)
        return MISTAKE


def _parser() -> Parser:
    parser = Parser(
        prog="loadgen",
        description="Measures a Wattserve server: latency, joules and accuracy of the same timed requests.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = version_of("wattserve") or "unknown"
    parser.add_argument("--version", action="version", version=f"loadgen {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        add_prepare, add_calibrate, add_run, add_sweep, add_validate, add_compare, add_report,
    ):  # fmt: skip
        add(commands)
    return parser
