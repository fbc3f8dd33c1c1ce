"""The commands `wattserve inspect ...` and `wattserve bench seed-table`: flags in, reports out.

torch is imported by the commands, not by their flags.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattserve_common.arguments import int_of, positive
from wattserve_server.config import ServerConfig, add_flags, flag_reader
from wattserve_server.errors import ConfigError

if TYPE_CHECKING:
    from wattserve_common.dataset import Dataset
    from wattserve_server.engine.rows import Examples
    from wattserve_tools.inspect.report import Report
    from wattserve_tools.inspect.subject import Subject

MODEL_SETTINGS = {"model", "task", "device", "trust_remote_code", "threads"}
SETTINGS = MODEL_SETTINGS | {"variants", "calibration"}
BENCH_SETTINGS = SETTINGS | {
    "meter", "estimate_watts_per_core", "estimate_idle_watts", "simulated_idle_watts", "simulated_busy_watts",
    "powercap_root", "replay_file",
}  # fmt: skip
TABLE_FILES = ("seed-table.md", "seed-table.json")

Command = Callable[[ServerConfig, argparse.Namespace], int]


def add_inspection_commands(commands: Any) -> None:
    """commands: what `add_subparsers` gave."""
    inspect = commands.add_parser(
        "inspect",
        help="compare a model's precisions with fp32: layers, outliers, memory, accuracy, kernels",
        description="What each precision does to a model, offline and without a server. See docs/inspect.md.",
    )
    actions = inspect.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, run: Command, words: str, settings: set[str] = SETTINGS) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(name, help=words, description=f"Show {words}.")
        parser.add_argument(
            "--json", metavar="FILE", help="write it as JSON, for programs; - prints that instead of tables"
        )
        add_flags(parser, settings)
        parser.set_defaults(run=run)
        return parser

    layers = add("layers", _layers, "where a variant departs from fp32, layer by layer, worst first")
    outliers = add(
        "outliers", _outliers, "features with outliers, in each linear layer's input", MODEL_SETTINGS
    )
    for parser in (layers, outliers):
        parser.add_argument(
            "--dataset",
            metavar="DIR",
            help="a folder that `loadgen prepare` made (default: made-up examples)",
        )
        _add_number(parser, "--rows", 64, "how many examples", least=1)
        _add_number(parser, "--seed", 0, "seed of made-up examples")
        parser.add_argument("--figure", metavar="FILE", help="draw it: FILE.png or FILE.svg")
    outliers.add_argument(
        "--threshold", type=flag_reader("--threshold", positive), default=6.0, metavar="X",
        help="magnitude above which a feature is an outlier (default: 6.0)",
    )  # fmt: skip
    add("memory", _memory, "bytes of each variant: in theory, its tensors, the process")
    _add_dataset(add("accuracy", _accuracy, "accuracy, agreement with fp32 and errors, on a dataset"))
    perplexity = add(
        "perplexity",
        _perplexity,
        "how well each variant of a language model foresees a text, and what reading it costs",
        BENCH_SETTINGS,
    )
    perplexity.add_argument(
        "--text",
        required=True,
        metavar="FILE",
        help="documents separated by empty lines; or .jsonl, one a line in the field `text`",
    )
    _add_number(perplexity, "--documents", None, "the first N documents only", least=1)
    _add_number(perplexity, "--window", None, "tokens seen at once", least=2, shown="what the model takes")
    _add_number(perplexity, "--stride", None, "tokens by which a window moves on", least=1, shown="half")
    add("kernels", _kernels, "the kernels that each variant runs, as the profiler sees them")
    _add_bench(commands)


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure precisions side by side, without a server",
        description="Offline measurements of a model's precisions. See docs/inspect.md.",
    )
    actions = bench.add_subparsers(title="commands", required=True, metavar="COMMAND")
    words = "precision, latency, energy, accuracy and size of a model in one table"
    parser = actions.add_parser("seed-table", help=words, description=f"Measure: {words}.")
    _add_dataset(parser)
    _add_number(parser, "--batch-size", 1, "rows in a run", least=1)
    _add_number(parser, "--warmup", 50, "runs before, untimed")
    _add_number(parser, "--iterations", 500, "timed runs", least=1)
    _add_number(parser, "--seed", 0, "seed of the order of blocks")
    parser.add_argument("--out", metavar="DIR", help=f"write {' and '.join(TABLE_FILES)} there")
    add_flags(parser, BENCH_SETTINGS)
    parser.set_defaults(run=_seed_table)


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset", required=True, metavar="DIR", help="a folder that `loadgen prepare` made"
    )
    _add_number(parser, "--rows", None, "the first N rows only", least=1)


def _add_number(
    parser: argparse.ArgumentParser,
    flag: str,
    default: int | None,
    words: str,
    least: int = 0,
    shown: str = "all",
) -> None:
    """shown: what None stands for."""

    def read(text: str) -> int:
        try:
            number = int_of(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise ConfigError(f"{flag} {text!r}: must be a whole number, {least} or more")
        return number

    told = shown if default is None else default
    parser.add_argument(flag, type=read, default=default, metavar="N", help=f"{words} (default: {told})")


def _layers(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_tools.inspect.layers import inspect_layers

    return _with_examples(config, arguments, inspect_layers)


def _outliers(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_tools.inspect.outliers import inspect_outliers

    fp32_only = replace(config, variants="fp32", calibration="")
    return _with_examples(fp32_only, arguments, partial(inspect_outliers, threshold=arguments.threshold))


def _with_examples(
    config: ServerConfig, arguments: argparse.Namespace, inspect: Callable[[Subject, Examples, int], Report]
) -> int:
    from wattserve_server.engine.rows import examples_of, made_up
    from wattserve_tools.inspect.figures import check_figure, draw
    from wattserve_tools.inspect.report import emit

    check_figure(arguments.figure)
    subject, dataset, _ = _open(config, arguments)
    if dataset is None:
        examples = made_up(subject.model, arguments.rows, arguments.seed)
    else:
        examples = examples_of(dataset, min(arguments.rows, len(dataset.rows)))
    report = inspect(subject, examples, arguments.seed)
    if arguments.figure and report.chart:
        draw(report.chart, arguments.figure)
    emit(report, arguments.json)
    return 0


def _memory(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_tools.inspect.memory import inspect_memory
    from wattserve_tools.inspect.report import emit

    subject, _, _ = _open(config, arguments)
    emit(inspect_memory(subject), arguments.json)
    return 0


def _accuracy(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.engine.rows import examples_of
    from wattserve_tools.inspect.accuracy import inspect_accuracy
    from wattserve_tools.inspect.report import emit

    subject, dataset, calibration = _open(config, arguments)
    assert dataset is not None  # --dataset is required
    emit(inspect_accuracy(subject, examples_of(dataset, arguments.rows), calibration), arguments.json)
    return 0


def _perplexity(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_tools.inspect.perplexity import Reading, inspect_perplexity
    from wattserve_tools.inspect.report import emit
    from wattserve_tools.inspect.texts import read_documents, spans, tokenised

    path = Path(arguments.text)
    texts = read_documents(path, arguments.documents)
    subject, _, _ = _open(config, arguments)
    facts = subject.model.facts
    window = arguments.window or facts.max_tokens
    stride = arguments.stride or max(1, window // 2)
    if window > facts.max_tokens:
        raise ConfigError(f"--window {window}: the model takes at most {facts.max_tokens} tokens")
    if stride >= window:
        raise ConfigError(f"--stride {stride}: must be less than the window, which is {window}")
    documents = tokenised(texts, subject.model.tokenizer, facts.vocabulary_size)
    reading = Reading(path.name, documents, spans(documents, window, stride), window, stride)
    emit(inspect_perplexity(config, subject, reading), arguments.json)
    return 0


def _kernels(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_tools.inspect.kernels import inspect_kernels
    from wattserve_tools.inspect.report import emit

    subject, _, _ = _open(config, arguments, allow_emulated=False, against_fp32=False)
    emit(inspect_kernels([examined.variant for examined in subject.build()]), arguments.json)
    return 0


def _seed_table(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.engine.rows import examples_of
    from wattserve_tools.inspect.report import plain_json, write_text
    from wattserve_tools.inspect.seed_markdown import markdown
    from wattserve_tools.inspect.seed_table import SeedPlan, measure

    plan = SeedPlan(arguments.batch_size, arguments.warmup, arguments.iterations, arguments.seed)
    out = None if arguments.out is None else Path(arguments.out)
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be made ({error.strerror})") from None
    subject, dataset, _ = _open(config, arguments, allow_emulated=False)
    assert dataset is not None  # --dataset is required
    examples = examples_of(dataset, arguments.rows)
    if plan.batch_size > len(examples.items):
        raise ConfigError(f"--batch-size {plan.batch_size}: there are {len(examples.items)} rows")
    result = measure(config, subject, examples, plan)
    text = markdown(result)
    print(text, end="")
    if out is not None:
        for name, content in zip(TABLE_FILES, (text, plain_json(result) + "\n"), strict=True):
            write_text(out / name, content, "--out")
    return 0


def _open(
    config: ServerConfig,
    arguments: argparse.Namespace,
    *,
    allow_emulated: bool = True,
    against_fp32: bool = True,
) -> tuple[Subject, Dataset | None, Dataset | None]:
    """The model with its variants, the dataset and the calibration data; None for what was not given."""
    from wattserve_server.engine.rows import read_calibration, read_dataset
    from wattserve_tools.inspect.report import check_writable
    from wattserve_tools.inspect.subject import choose_subject, open_model

    for name in ("json", "figure"):
        check_writable(getattr(arguments, name, None), f"--{name}")
    model = open_model(config)
    folder = getattr(arguments, "dataset", None)
    dataset = read_dataset(folder, model) if folder else None
    calibration = read_calibration(config.calibration, model, dataset) if config.calibration else None
    subject = choose_subject(
        config, model, allow_emulated=allow_emulated, against_fp32=against_fp32, calibration=calibration
    )
    return subject, dataset, calibration
