"""The commands `wattserve variants`, a list of the precisions, and `wattserve variants export`, which
writes one of them to a folder to serve from.

torch is imported by the commands, not by their flags.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattserve_common.machine import usable_cores
from wattserve_server.config import ServerConfig, add_flags
from wattserve_server.console import say, wide_console
from wattserve_server.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from wattserve_server.engine.model import LoadedModel
    from wattserve_server.engine.variants.port import Kind

LIST_SETTINGS = {"model", "task", "device", "trust_remote_code"}
EXPORT_SETTINGS = {*LIST_SETTINGS, "calibration", "threads"}


def add_variant_commands(commands: Any) -> None:
    """commands: what `add_subparsers` gave."""
    listing = commands.add_parser(
        "variants",
        help="list the precisions and whether this device runs them natively",
        description="List every precision, whether this device runs it natively and why, and its bytes.",
    )
    add_flags(listing, LIST_SETTINGS)
    listing.add_argument("--json", action="store_true", help="for programs; what is not known is null")
    listing.set_defaults(run=_list)
    actions = listing.add_subparsers(title="commands", metavar="COMMAND")
    parser = actions.add_parser(
        "export",
        help="write one precision of a model to a folder, to be served from there",
        description="Convert a model to one precision and write it to a folder. `wattserve serve "
        "--model DIR` then serves that precision, bit for bit, without ever holding the fp32 weights.",
    )
    parser.add_argument("--variant", required=True, metavar="NAME", help="the precision, e.g. int8")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="where to: a folder that is not there yet"
    )
    add_flags(parser, EXPORT_SETTINGS)
    parser.set_defaults(run=_export)


@dataclass(frozen=True)
class _Row:
    """A precision, as this device and this model have it."""

    variant: str
    device: str
    native: bool
    why: str
    kernels: str  # empty: not native
    parameter_bytes: int | None  # None: not native
    proxy: str  # what really runs; empty: it is what it is called
    needs_calibration: bool
    by_default: bool  # whether it is served where nothing is named


def _list(config: ServerConfig, arguments: argparse.Namespace) -> int:
    """Every precision, and what this device makes of it."""
    from wattserve_server.engine.device import describe_device, resolve_device
    from wattserve_server.engine.model import kinds_of, load_model, task_of

    device = resolve_device(config.device)
    task = task_of(config.model, config.task)
    model = load_model(config.model, task, trust_remote_code=config.trust_remote_code)
    kinds, only = kinds_of(config.model, task, config.trust_remote_code)
    rows = [_row(kind, model, device) for kind in kinds.values()]
    if arguments.json:
        variants = [asdict(row) for row in rows]
        print(json.dumps({"model": model.name, "variants": variants}, indent=2, ensure_ascii=False))
    else:
        _print_table(rows, f"Variants of {model.name} on {describe_device(device)}", only)
    return 0


def _row(kind: Kind, model: LoadedModel, device: torch.device) -> _Row:
    from wattserve_server.engine.variants.catalogue import Choice, is_offered
    from wattserve_server.engine.variants.linears import linear_paths
    from wattserve_server.engine.variants.port import ActivationScales, Materials
    from wattserve_server.engine.variants.variant import build_variant

    support = kind.support(device)
    native, why, size = support.native, support.why, None
    if native:
        # Neither whether the model can be converted nor what it takes depends on the scales' values.
        ones = ActivationScales(dict.fromkeys(linear_paths(model.weights.module), 1.0), "")
        materials = Materials(model.weights, ones)
        try:
            size = build_variant(model, Choice(kind.name, kind, device), materials).parameter_bytes
        except ConfigError as error:  # the device could, this model cannot
            native, why = False, str(error)
    kernels = support.kernels if native else ""
    by_default = native and is_offered(kind, device, is_calibrated=False, generates=model.task.generates)
    return _Row(
        kind.name, str(device), native, why, kernels, size, kind.proxy, kind.needs_calibration, by_default
    )


def _print_table(rows: Sequence[_Row], title: str, only: str) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in ("variant", "device", "native", "why", "kernels"):
        table.add_column(heading, overflow="fold")
    table.add_column("parameter bytes", justify="right")
    for row in rows:
        why = f"{row.why}; needs calibration data" if row.native and row.needs_calibration else row.why
        if row.proxy:
            why += f"; a PROXY: {row.proxy}"
        size = "-" if row.parameter_bytes is None else f"{row.parameter_bytes:,}"
        native = "yes" if row.native else "no"
        table.add_row(row.variant, row.device, native, why, row.kernels or "-", size)
    console = wide_console()
    console.print(table)
    if only:
        words = f"No other precision: {only}, and nothing else can be made from it."
        console.print(words, markup=False, highlight=False, soft_wrap=True)


def _export(config: ServerConfig, arguments: argparse.Namespace) -> int:
    import torch

    from wattserve_server.engine.device import resolve_device
    from wattserve_server.engine.exported import check_out, export
    from wattserve_server.engine.model import load_model, made_of, task_of
    from wattserve_server.engine.variants.catalogue import choose
    from wattserve_server.engine.variants.port import Materials
    from wattserve_server.engine.variants.variant import build_variant
    from wattserve_server.starting import calibration_scales

    out = Path(arguments.out)
    if "," in arguments.variant:
        raise ConfigError(f"--variant {arguments.variant!r}: one at a time, each to a folder of its own")
    check_out(out)
    task = task_of(config.model, config.task)
    made = made_of(config.model, task, config.trust_remote_code)
    if made is not None:
        raise ConfigError(f"{made.words}: there is nothing to convert")
    choice = choose(arguments.variant, resolve_device(config.device), bool(config.calibration))[0]
    torch.set_num_threads(config.threads or usable_cores())
    model = load_model(config.model, task, trust_remote_code=config.trust_remote_code)
    scales = calibration_scales(config, model) if choice.kind.needs_calibration else None
    variant = build_variant(model, choice, Materials(model.weights, scales))
    manifest = export(variant, scales, out)
    say(f"exported {manifest.kind} of {manifest.made_from}: {manifest.detail}")
    say(f"{variant.parameter_bytes:,} bytes of weights, sha256 {manifest.sha256}")
    print(out)
    return 0
