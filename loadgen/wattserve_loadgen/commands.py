"""The commands of `loadgen` beside `run` and `sweep`: of a dataset, the client's ceiling, results folders."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wattserve_common.arguments import count, int_of, positive, whole
from wattserve_loadgen.errors import LoadgenError
from wattserve_loadgen.option import NUMBER, SWITCH, TEXT, WHOLE, WHOLES, add_options, given, option
from wattserve_loadgen.sweep_commands import DONE, FAILED, add_command

if TYPE_CHECKING:
    from wattserve_loadgen.sweep_commands import Commands

_PREPARE_HELP = """\
Makes a dataset folder (input_ids.pt, attention_mask.pt, labels.pt, dataset.json) from a file of texts with
the model's own tokenizer; or of random tokens or images, for a model with random weights. A folder of real
images is pixel_values.pt ([rows, channels, height, width] floats, preprocessed) and labels.pt ([rows]
integers), both written by torch.save. For a language model it holds prompts, and max_new_tokens.pt: how many
tokens are to follow each. DIST is a distribution of lengths: 64, uniform:16-64, lognormal:40,0.8 or
recorded:FILE (a number a line).
"""

_CALIBRATE_HELP = """\
Measures how many requests per second this client can send at all, against a server on this machine that
answers nothing but canned bytes, and keeps the result: above half of it a point gets a verdict, no figures.
`run` and `sweep` do it by themselves for the size of their own requests, where no result is kept.
"""


def _pixel_shape(text: str) -> tuple[int, ...]:
    """C,H,W."""
    try:
        channels, height, width = (int_of(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not C,H,W, like 3,224,224") from None
    return channels, height, width


_texts, _tokens, _images, _prompts = (
    partial(option, group=group) for group in ("from a file", "random tokens", "random images", "prompts")
)


# fmt: off
@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Beside where the rows come from and go to."""

    max_length: int | None = option(
        None, WHOLE, "cut longer rows, and count them (default: what the model takes; random: 128)",
        "TOKENS")
    tokenizer: str = _texts("", TEXT, "the model's name or folder: its tokenizer and label names", "MODEL")
    text_column: str = _texts("text", TEXT, "the column of texts (default: text)", "NAME")
    label_column: str | None = _texts(
        None, TEXT, "the column of labels (default: `label`, if there; without labels there is no accuracy)",
        "NAME")
    limit: int | None = _texts(None, WHOLE, "only the first N rows", "N", read=count)
    vocabulary_size: int | None = _tokens(
        None, WHOLE, "how many token ids the model has (vocab_size in its config.json)", "V")
    seed: int = _tokens(0, WHOLE, "same seed, same rows or images", "N")
    pixel_shape: tuple[int, int, int] = _images(
        (3, 224, 224), WHOLES, "channels, height, width, as the model takes them (default: 3,224,224)",
        "C,H,W", read=_pixel_shape)
    prompt_tokens: str = _prompts("", TEXT, "lengths of random prompts, in tokens", "DIST")
    output_tokens: str = _prompts(
        "", TEXT, "tokens to be generated behind each prompt (default of conversations: as recorded)", "DIST")


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    seconds: float = option(5.0, NUMBER, "seconds of load in all", "S", read=positive)
    processes: int = option(1, WHOLE, "processes of this client that share the load", "N", read=count)
    stream: bool = option(False, SWITCH, "send requests over streams instead of calls", in_file=False)
    request_bytes: int = option(
        256, WHOLE, "size of a request, rounded up to a power of two", "N", read=count)
    json: bool = option(False, SWITCH, "print the result as JSON", in_file=False)
# fmt: on


def add_prepare(commands: Commands) -> None:
    text = "make a dataset folder from a file of texts, or of random tokens or images"
    parser = add_command(commands, "prepare", _prepare, text, description=_PREPARE_HELP)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--input", type=Path, metavar="FILE", help="a .csv, .jsonl, .parquet or .txt file (one text a line)"
    )
    kind.add_argument(
        "--random-rows", type=whole, metavar="N", help="N rows of random tokens instead of a file"
    )
    kind.add_argument("--random-images", type=whole, metavar="N", help="N random images instead of a file")
    kind.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts of a language model: a text each (as --input), or conversations (.json, .jsonl)",
    )
    kind.add_argument(
        "--random-prompts", type=whole, metavar="N", help="N prompts of random tokens instead of a file"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the dataset folder to make")
    add_options(parser, PrepareOptions)


def _prepare(flags: argparse.Namespace) -> int:
    from wattserve_loadgen import words
    from wattserve_loadgen.data import prepare, prompts
    from wattserve_loadgen.data.lengths import FORMS, parse_lengths

    options = PrepareOptions(**given(flags, PrepareOptions))
    needs_lengths = flags.prompts is not None or flags.random_prompts is not None
    for name in ("prompt_tokens", "output_tokens"):
        flag = f"--{name.replace('_', '-')}"
        if getattr(options, name) and not needs_lengths:
            raise LoadgenError(f"{flag} needs --prompts or --random-prompts")
        if flags.random_prompts is not None and not getattr(options, name):
            raise LoadgenError(f"--random-prompts needs {flag}: {FORMS}")
    for flag, path in (("--input", flags.input), ("--prompts", flags.prompts)):
        if path is not None and not options.tokenizer:
            raise LoadgenError(f"{flag} needs --tokenizer: the model's name or folder")
    if flags.random_rows is not None or flags.random_prompts is not None:
        flag = "--random-rows" if flags.random_prompts is None else "--random-prompts"
        if options.vocabulary_size is None:
            raise LoadgenError(f"{flag} needs --vocabulary-size (vocab_size in the model's config.json)")
    output_tokens = parse_lengths("--output-tokens", options.output_tokens) if options.output_tokens else None
    if flags.prompts is not None:
        if options.prompt_tokens:
            raise LoadgenError(
                "--prompt-tokens needs --random-prompts: the file's prompts have their lengths"
            )
        made = prompts.prepare_prompts(
            flags.prompts,
            flags.out,
            tokenizer=options.tokenizer,
            output_tokens=output_tokens,
            text_column=options.text_column,
            max_length=options.max_length,
            limit=options.limit,
            seed=options.seed,
        )
    elif flags.random_prompts is not None:
        assert options.vocabulary_size is not None
        assert output_tokens is not None
        made = prompts.prepare_random_prompts(
            flags.out,
            rows=flags.random_prompts,
            vocabulary_size=options.vocabulary_size,
            prompt_tokens=parse_lengths("--prompt-tokens", options.prompt_tokens),
            output_tokens=output_tokens,
            seed=options.seed,
        )
    elif flags.input is not None:
        made = prepare.prepare_file(
            flags.input,
            flags.out,
            tokenizer=options.tokenizer,
            text_column=options.text_column,
            label_column=options.label_column,
            max_length=options.max_length,
            limit=options.limit,
        )
    elif flags.random_images is not None:
        made = prepare.prepare_random_images(
            flags.out, rows=flags.random_images, pixel_shape=options.pixel_shape, seed=options.seed
        )
    else:
        assert options.vocabulary_size is not None
        made = prepare.prepare_random(
            flags.out,
            rows=flags.random_rows,
            vocabulary_size=options.vocabulary_size,
            seed=options.seed,
            max_length=128 if options.max_length is None else options.max_length,
        )
    to = f" to {made.max_length} tokens" if made.truncated else ""
    print(f"{made.folder}: {made.rows} rows, {made.truncated} of them truncated{to}; labels: {made.labels}")
    if 0 < made.unlabelled < made.rows:
        print(f"loadgen: {words.unlabelled(made.unlabelled, made.rows)}", file=sys.stderr)
    elif made.unlabelled and not made.labels.startswith("none"):
        print("loadgen: every label is -1: the dataset has no labels, so no accuracy", file=sys.stderr)
    return DONE


def add_calibrate(commands: Commands) -> None:
    text = "measure this client's own ceiling, and keep it"
    parser = add_command(commands, "calibrate", _calibrate, text, description=_CALIBRATE_HELP)
    add_options(parser, CalibrateOptions)


def _calibrate(flags: argparse.Namespace) -> int:
    from wattserve_loadgen.drive.calibration import kept_in, measure_ceiling, store_ceiling

    options = CalibrateOptions(**given(flags, CalibrateOptions))
    kind = "stream" if options.stream else "unary"
    ceiling = asyncio.run(
        measure_ceiling(kind, options.request_bytes, options.processes, whole_s=options.seconds)
    )
    print(json.dumps(asdict(ceiling), indent=2) if options.json else ceiling.describe())
    print(f"loadgen: {store_ceiling(ceiling) or kept_in()}", file=sys.stderr)
    return DONE


def add_validate(commands: Commands) -> None:
    text = "check results against the list of what makes them worth showing"
    about = (
        "Checks a results folder, as every sweep does at its end. A check is passed, weak (passed, but the\n"
        "sweep is too coarse to tell), FAILED, or does not apply. Ends with 1 when one fails."
    )
    parser = add_command(commands, "validate", _validate, text, description=about)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --out folder of a run or sweep")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def _validate(flags: argparse.Namespace) -> int:
    from wattserve_loadgen.results.validate import failed, validate_folder

    checks = validate_folder(flags.folder)
    if flags.json:
        print(json.dumps([asdict(check) for check in checks], indent=2, ensure_ascii=False))
    else:
        for check in checks:
            print(f"{check.outcome:<15}{check.name}: {check.text}")
    return FAILED if failed(checks) else DONE


def add_compare(commands: Commands) -> None:
    about = (
        "Compares B with A, point by point. Refuses results of unlike environments, and a folder with\n"
        "itself. Ends with 1 when no point is in both."
    )
    parser = add_command(
        commands, "compare", _compare, "compare two results of like environments", description=about
    )
    parser.add_argument("first", type=Path, metavar="A", help="a results folder: what B is compared with")
    parser.add_argument("second", type=Path, metavar="B", help="a results folder")
    parser.add_argument("--force", action="store_true", help="compare in spite of unlike environments")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def _compare(flags: argparse.Namespace) -> int:
    from wattserve_loadgen.model.codec import plain
    from wattserve_loadgen.results.compare import answers_of, compare, comparison_text
    from wattserve_loadgen.results.folder import read_results
    from wattserve_loadgen.results.records import read_records

    if flags.first.resolve() == flags.second.resolve():
        raise LoadgenError(f"{flags.first}: compared with itself; name two folders")
    first, second = read_results(flags.first), read_results(flags.second)
    answers = answers_of(
        read_records(flags.first, first.dataset.rows), read_records(flags.second, second.dataset.rows)
    )
    comparison = compare(first, second, flags.force, answers)
    if flags.json:
        print(json.dumps(plain(comparison), indent=2, ensure_ascii=False))
    else:
        print(comparison_text(comparison))
    return DONE if comparison.pairs else FAILED


def add_report(commands: Commands) -> None:
    about = "Draws report.html anew from the other files of a results folder, finished or not."
    text = "make report.html again from a results folder"
    parser = add_command(commands, "report", _report, text, description=about)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --out folder of a sweep")


def _report(flags: argparse.Namespace) -> int:
    from wattserve_loadgen.report.page import write_report

    print(write_report(flags.folder))
    return DONE
