"""The command line: reads arguments, prints the outcome, and turns every user mistake into one line.

Exit codes:
    0    done
    1    the sweep ended early because the server was lost; what was measured is written
    2    a mistake in the arguments, the dataset or the folder, or nobody answers
    130  Ctrl-C; what was measured is written
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from wattserve_loadgen.arguments import listed, pixel_shape, positive_float, positive_int, target
from wattserve_loadgen.errors import LoadgenError

if TYPE_CHECKING:
    from wattserve_loadgen.results.schema import Results

    _Commands = argparse._SubParsersAction["_Parser"]

_LOST, _MISTAKE, _INTERRUPTED = 1, 2, 130

_EPILOG = """\
a first sweep, against a server started with `wattserve serve`:

  loadgen prepare --input reviews.csv --text-column text --label-column label \\
                  --tokenizer distilbert-base-uncased-finetuned-sst-2-english --out data/reviews
  loadgen sweep   --target 127.0.0.1:50051 --dataset data/reviews --preset look --out results/first
"""

_SWEEP_HELP = """\
Replays the dataset against every variant at every concurrency and writes three files into --out:
records.jsonl (one line per request), results.json (every figure) and report.html (the pictures).

A sweep runs in blocks. Each block runs every variant at every concurrency once, in its own random order,
after one heat-up block that is not counted. `--preset look` takes a minute or two and its points say that
they are too short to publish; `quick` gives 36 s to each point, `full` more than the 600 s that a published
figure needs.
"""

_PREPARE_HELP = """\
Makes a dataset folder (input_ids.pt, attention_mask.pt, labels.pt, dataset.json) from a file of texts with
the model's own tokenizer; or of random tokens or images, for a model with random weights. A folder of real
images is pixel_values.pt ([rows, channels, height, width] floats, preprocessed) and labels.pt ([rows]
integers), both written by torch.save.
"""


class _Parser(argparse.ArgumentParser):
    """argparse, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message} (see `{self.prog} --help`)")


class _UsageError(LoadgenError):
    pass


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parser().parse_args(arguments)
        options.argv = ["loadgen", *arguments]
        return int(options.run(options))
    except LoadgenError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return _MISTAKE
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("wattserve_loadgen"):
            raise
        print(f"loadgen: {error.name} is not installed: pip install 'wattserve[loadgen]'", file=sys.stderr)
        return _MISTAKE
    except KeyboardInterrupt:
        print("loadgen: stopped", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="loadgen",
        description="Measures a Wattserve server: latency, joules and accuracy of the same timed requests.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"loadgen {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_prepare(commands)
    _add_sweep(commands)
    _add_report(commands)
    return parser


def _add_prepare(commands: _Commands) -> None:
    parser = commands.add_parser(
        "prepare",
        help="make a dataset folder from a file of texts, or of random tokens or images",
        description=_PREPARE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--input", type=Path, metavar="FILE", help="a .csv, .jsonl, .parquet or .txt file (one text a line)"
    )
    kind.add_argument(
        "--random-rows", type=int, metavar="N", help="N rows of random tokens instead of a file"
    )
    kind.add_argument("--random-images", type=int, metavar="N", help="N random images instead of a file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the dataset folder to make")
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="cut longer rows (default: the tokenizer's limit; random: 128)",
    )
    texts = parser.add_argument_group("from a file")
    texts.add_argument(
        "--tokenizer", metavar="MODEL", help="the model's name or folder: its tokenizer and label names"
    )
    texts.add_argument(
        "--text-column", default="text", metavar="NAME", help="where the text is (default: text)"
    )
    texts.add_argument(
        "--label-column",
        metavar="NAME",
        help="where the label is (default: `label` if there; without it, no accuracy)",
    )
    texts.add_argument("--limit", type=positive_int, metavar="N", help="only the first N rows")
    tokens = parser.add_argument_group("random tokens")
    tokens.add_argument("--vocabulary-size", type=int, metavar="V", help="token ids below V")
    tokens.add_argument("--seed", type=int, default=0, help="same seed, same rows or images (default: 0)")
    parser.add_argument_group("random images").add_argument(
        "--pixel-shape",
        type=pixel_shape,
        default=(3, 224, 224),
        metavar="C,H,W",
        help="channels, height, width, as the model takes them (default: 3,224,224)",
    )
    parser.set_defaults(run=_prepare)


def _add_sweep(commands: _Commands) -> None:
    parser = commands.add_parser(
        "sweep",
        help="measure variants at several concurrencies, and write a report",
        description=_SWEEP_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--target", required=True, metavar="HOST:PORT", type=target, help="the server's gRPC address"
    )
    parser.add_argument(
        "--dataset", type=Path, required=True, metavar="DIR", help="a folder made by `loadgen prepare`"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go")
    parser.add_argument(
        "--variants",
        type=listed(str),
        metavar="A,B",
        help="which variants; the first is what the others are compared with (default: all of the server's)",
    )
    parser.add_argument(
        "--concurrency",
        type=listed(int),
        metavar="1,2,4",
        help="requests in flight at once (default: 1,2,4,8,16,32; look: 1,4,16)",
    )
    parser.add_argument(
        "--preset",
        choices=("look", "quick", "full"),
        default="quick",
        help="how long and how often (default: quick; full for figures to publish)",
    )
    parser.add_argument(
        "--blocks", type=int, help="repetitions of the whole plan (full: 5; quick and look: 3)"
    )
    parser.add_argument("--seconds", type=float, help="of each cell's window (full: 125; quick: 12; look: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of cells and rows (default: 0)")
    parser.add_argument(
        "--deadline",
        type=positive_float,
        default=30.0,
        metavar="SECONDS",
        help="of each request (default: 30)",
    )
    parser.add_argument("--force", action="store_true", help="replace the results that --out holds")
    parser.set_defaults(run=_sweep)


def _add_report(commands: _Commands) -> None:
    parser = commands.add_parser("report", help="make report.html again from a results folder")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --out folder of a sweep")
    parser.set_defaults(run=_report)


def _prepare(options: argparse.Namespace) -> int:
    from wattserve_loadgen.data import prepare

    if options.input is not None:
        if options.tokenizer is None:
            raise _UsageError("--input needs --tokenizer: the model's name or folder")
        made = prepare.prepare_file(
            options.input,
            options.out,
            tokenizer=options.tokenizer,
            text_column=options.text_column,
            label_column=options.label_column,
            max_length=options.max_length,
            limit=options.limit,
        )
    elif options.random_images is not None:
        made = prepare.prepare_random_images(
            options.out, rows=options.random_images, pixel_shape=options.pixel_shape, seed=options.seed
        )
    else:
        if options.vocabulary_size is None:
            raise _UsageError("--random-rows needs --vocabulary-size (vocab_size in the model's config.json)")
        made = prepare.prepare_random(
            options.out,
            rows=options.random_rows,
            vocabulary_size=options.vocabulary_size,
            seed=options.seed,
            max_length=128 if options.max_length is None else options.max_length,
        )
    print(f"{made.folder}: {made.rows} rows, {made.truncated} of them truncated; labels: {made.labels}")
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from wattserve_loadgen.report.page import write_report
    from wattserve_loadgen.sweeping.progress import make_display
    from wattserve_loadgen.sweeping.sweep import SweepOptions, run_sweep

    wanted = SweepOptions(
        target=options.target,
        dataset=options.dataset,
        out=options.out,
        preset=options.preset,
        variants=options.variants,
        concurrencies=options.concurrency,
        blocks=options.blocks,
        seconds=options.seconds,
        seed=options.seed,
        deadline_seconds=options.deadline,
        force=options.force,
        command=tuple(options.argv),
    )
    try:
        results = asyncio.run(run_sweep(wanted, make_display()))
    except KeyboardInterrupt:
        kept = f"; `loadgen report {options.out}` draws the finished cells" if options.out.is_dir() else ""
        print(f"loadgen: stopped at once{kept}", file=sys.stderr)
        return _INTERRUPTED
    report = write_report(options.out)
    return _say_how_it_ended(results, report)


def _say_how_it_ended(results: Results, report: Path) -> int:
    measured = f"{len(results.cells)} of {results.cells_planned} cells are in {report}"
    if results.complete and not any(point.rate_per_second for point in results.points):
        print(f"loadgen: no request was answered; {measured}", file=sys.stderr)
        return _LOST
    if results.complete:
        print(f"done: {measured}")
        return 0
    print(f"loadgen: ended early: {results.ended}; {measured}", file=sys.stderr)
    return _INTERRUPTED if results.ended.startswith("interrupted") else _LOST


def _report(options: argparse.Namespace) -> int:
    from wattserve_loadgen.report.page import write_report

    print(write_report(options.folder))
    return 0


def _version() -> str:
    try:
        return metadata.version("wattserve")
    except metadata.PackageNotFoundError:
        return "unknown"
