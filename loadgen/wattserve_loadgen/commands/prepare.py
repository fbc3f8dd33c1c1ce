"""`loadgen prepare`: a dataset folder from a file of texts, or of random tokens or images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from wattserve_loadgen.arguments import UsageError, pixel_shape, positive_int

if TYPE_CHECKING:
    from wattserve_loadgen.arguments import Commands

_PREPARE_HELP = """\
Makes a dataset folder (input_ids.pt, attention_mask.pt, labels.pt, dataset.json) from a file of texts with
the model's own tokenizer; or of random tokens or images, for a model with random weights. A folder of real
images is pixel_values.pt ([rows, channels, height, width] floats, preprocessed) and labels.pt ([rows]
integers), both written by torch.save.
"""


def add(commands: Commands) -> None:
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


def _prepare(options: argparse.Namespace) -> int:
    from wattserve_loadgen.data import prepare

    if options.input is not None:
        if options.tokenizer is None:
            raise UsageError("--input needs --tokenizer: the model's name or folder")
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
            raise UsageError("--random-rows needs --vocabulary-size (vocab_size in the model's config.json)")
        made = prepare.prepare_random(
            options.out,
            rows=options.random_rows,
            vocabulary_size=options.vocabulary_size,
            seed=options.seed,
            max_length=128 if options.max_length is None else options.max_length,
        )
    print(f"{made.folder}: {made.rows} rows, {made.truncated} of them truncated; labels: {made.labels}")
    return 0
