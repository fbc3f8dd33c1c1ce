"""The commands `wattserve inspect ...` and `wattserve bench seed-table`: flags in, reports out.

torch is imported by the commands, not by their flags.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattserve_server.config import ServerConfig, add_flags
from wattserve_server.errors import ConfigError

MODEL_SETTINGS = {"model", "task", "device", "trust_remote_code", "threads"}
SETTINGS = MODEL_SETTINGS | {"variants", "calibration"}
BENCH_SETTINGS = SETTINGS | {
    "meter", "estimate_watts_per_core", "estimate_idle_watts", "simulated_idle_watts", "simulated_busy_watts",
    "powercap_root", "replay_file",
}  # fmt: skip
TABLE_FILES = ("seed-table.md", "seed-table.json")


def add_inspection_commands(commands: Any) -> None:
    """commands: what `add_subparsers` gave."""
    inspect = commands.add_parser(
        "inspect",
        help="hold the precisions of a model against fp32: layers, outliers, memory, accuracy, kernels",
        description="What each precision does to a model, offline and without a server. See docs/inspect.md.",
    )
    actions = inspect.add_subparsers(title="commands", required=True, metavar="COMMAND")
    layers = _command(
        actions, "layers", _layers, SETTINGS, "where a variant departs from fp32, layer by layer, worst first"
    )
    _add_examples(layers)
    outliers = _command(
        actions, "outliers", _outliers, MODEL_SETTINGS, "features with outliers, in each linear layer's input"
    )
    _add_examples(outliers)
    outliers.add_argument("--threshold", default="6.0", metavar="X", help="magnitude above which a feature "
                          "is an outlier (default: 6.0)")  # fmt: skip
    _command(
        actions, "memory", _memory, SETTINGS, "bytes of each variant: in theory, its tensors, the process"
    )
    accuracy = _command(
        actions, "accuracy", _accuracy, SETTINGS, "accuracy, agreement with fp32 and errors, on a dataset"
    )
    accuracy.add_argument("--dataset", required=True, metavar="DIR", help="a folder by `loadgen prepare`")
    accuracy.add_argument("--rows", metavar="N", help="the first N rows only (default: all)")
    _command(
        actions,
        "kernels",
        _kernels,
        SETTINGS,
        "the kernels that each variant runs, as the profiler sees them",
    )
    _add_bench(commands)


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure precisions side by side, without a server",
        description="Offline measurements of a model's precisions. See docs/inspect.md.",
    )
    actions = bench.add_subparsers(title="commands", required=True, metavar="COMMAND")
    words = "precision, latency, energy, accuracy and size of a model in one honest table"
    parser = actions.add_parser("seed-table", help=words, description=f"Measure: {words}.")
    parser.add_argument("--dataset", required=True, metavar="DIR", help="a folder by `loadgen prepare`")
    parser.add_argument("--rows", metavar="N", help="the first N rows only (default: all)")
    parser.add_argument("--batch-size", default="1", metavar="N", help="rows in a run (default: 1)")
    parser.add_argument("--warmup", default="50", metavar="N", help="runs before, untimed (default: 50)")
    parser.add_argument("--iterations", default="500", metavar="N", help="timed runs (default: 500)")
    parser.add_argument("--seed", default="0", metavar="N", help="of the order of blocks (default: 0)")
    parser.add_argument("--out", metavar="DIR", help=f"write {' and '.join(TABLE_FILES)} there")
    add_flags(parser, BENCH_SETTINGS)
    parser.set_defaults(run=_seed_table)


def _command(actions: Any, name: str, run: Any, settings: set[str], words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=words, description=f"Show {words}.")
    parser.add_argument(
        "--json", metavar="FILE", help="write it as JSON, for programs; - prints that instead of tables"
    )
    add_flags(parser, settings)
    parser.set_defaults(run=run)
    return parser


def _add_examples(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset", metavar="DIR", help="a folder by `loadgen prepare` (default: made-up examples)"
    )
    parser.add_argument("--rows", default="64", metavar="N", help="how many examples (default: 64)")
    parser.add_argument("--seed", default="0", metavar="N", help="of made-up examples (default: 0)")
    parser.add_argument("--figure", metavar="FILE", help="draw it: FILE.png or FILE.svg")


def _layers(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.inspection.layers import inspect_layers

    return _with_figure(
        config, arguments, lambda subject, examples, seed: inspect_layers(subject, examples, seed)
    )


def _outliers(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.inspection.outliers import inspect_outliers

    threshold = _positive("--threshold", arguments.threshold)
    return _with_figure(
        replace(config, variants="fp32", calibration=""),
        arguments,
        lambda subject, examples, seed: inspect_outliers(subject, examples, threshold, seed),
    )


def _with_figure(config: ServerConfig, arguments: argparse.Namespace, look: Any) -> int:
    """look: of a subject, examples and a seed, a report and a chart."""
    from wattserve_server.inspection.data import examples_of, made_up
    from wattserve_server.inspection.figures import check_figure, draw
    from wattserve_server.inspection.output import emit

    rows, seed = _whole("--rows", arguments.rows, 1), _whole("--seed", arguments.seed, 0)
    check_figure(arguments.figure)
    _check_outputs(arguments)
    model, dataset, calibration = _open(config, arguments)
    subject = _subject(config, model, calibration)
    if dataset is None:
        examples = made_up(model, rows, seed)
    else:
        examples = examples_of(dataset, min(rows, len(dataset.rows)))
    report, chart = look(subject, examples, seed)
    if arguments.figure:
        draw(chart, arguments.figure)
    emit(report, arguments.json)
    return 0


def _memory(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.inspection.memory import inspect_memory
    from wattserve_server.inspection.output import emit

    _check_outputs(arguments)
    model, _, calibration = _open(config, arguments)
    emit(inspect_memory(_subject(config, model, calibration)), arguments.json)
    return 0


def _accuracy(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.inspection.accuracy import inspect_accuracy
    from wattserve_server.inspection.data import examples_of
    from wattserve_server.inspection.output import emit

    rows = None if arguments.rows is None else _whole("--rows", arguments.rows, 1)
    _check_outputs(arguments)
    model, dataset, calibration = _open(config, arguments)
    examples = examples_of(dataset, rows)
    subject = _subject(config, model, calibration)
    scales = subject.materials.activation_scales
    described = None
    if calibration is not None:
        described = {
            "origin": scales.origin if scales else "not used: no chosen variant needs it",
            "sha256": calibration.sha256,
        }
    emit(inspect_accuracy(subject, examples, described), arguments.json)
    return 0


def _kernels(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.inspection.kernels import inspect_kernels
    from wattserve_server.inspection.output import emit

    _check_outputs(arguments)
    model, _, calibration = _open(config, arguments)
    subject = _subject(config, model, calibration, allow_emulated=False, against_fp32=False)
    emit(inspect_kernels([each.variant for each in subject.build()]), arguments.json)
    return 0


def _seed_table(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.inspection.data import examples_of
    from wattserve_server.inspection.output import plain_json, write_text
    from wattserve_server.inspection.seed_markdown import markdown
    from wattserve_server.inspection.seed_table import Plan, measure

    plan = Plan(
        batch_size=_whole("--batch-size", arguments.batch_size, 1),
        warmup=_whole("--warmup", arguments.warmup, 0),
        iterations=_whole("--iterations", arguments.iterations, 1),
        seed=_whole("--seed", arguments.seed, 0),
    )
    rows = None if arguments.rows is None else _whole("--rows", arguments.rows, 1)
    out = _out_folder(arguments.out)
    model, dataset, calibration = _open(config, arguments)
    examples = examples_of(dataset, rows)
    if plan.batch_size > len(examples.items):
        raise ConfigError(f"--batch-size {plan.batch_size}: there are {len(examples.items)} rows")
    subject = _subject(config, model, calibration, allow_emulated=False)
    result = measure(config, subject, examples, plan)
    text = markdown(result)
    print(text, end="")
    if out is not None:
        for name, content in zip(TABLE_FILES, (text, plain_json(result) + "\n"), strict=True):
            write_text(out / name, content, "--out")
    return 0


def _open(config: ServerConfig, arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The model, the dataset and the calibration data; None for what was not given."""
    from wattserve_server.inspection.data import read_calibration, read_dataset
    from wattserve_server.inspection.subject import open_model

    model = open_model(config)
    folder = getattr(arguments, "dataset", None)
    dataset = read_dataset(folder, model) if folder else None
    calibration = read_calibration(config.calibration, model, dataset) if config.calibration else None
    return model, dataset, calibration


def _subject(
    config: ServerConfig,
    model: Any,
    calibration: Any,
    *,
    allow_emulated: bool = True,
    against_fp32: bool = True,
) -> Any:
    from wattserve_server.inspection.subject import choose_subject

    return choose_subject(
        config, model, allow_emulated=allow_emulated, against_fp32=against_fp32, calibration=calibration
    )


def _check_outputs(arguments: argparse.Namespace) -> None:
    from wattserve_server.inspection.output import check_writable

    check_writable(arguments.json, "--json")
    check_writable(getattr(arguments, "figure", None), "--figure")


def _out_folder(text: str | None) -> Path | None:
    if text is None:
        return None
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {text}: cannot be made ({error.strerror})") from None
    return Path(text)


def _whole(flag: str, text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{flag} {text!r}: must be a whole number, {least} or more")
    return number


def _positive(flag: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"{flag} {text!r}: must be a number above 0")
    return number
