"""The command `wattserve variants export`: one precision of a model, written to a folder to serve from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from wattserve_server.config import ServerConfig, add_flags
from wattserve_server.errors import ConfigError

SETTINGS = {"model", "task", "device", "calibration", "threads", "trust_remote_code"}


def add_export_command(listing: argparse.ArgumentParser) -> None:
    """listing: the parser of `wattserve variants`, which lists when no command comes after it."""
    actions: Any = listing.add_subparsers(title="commands", metavar="COMMAND")
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
    add_flags(parser, SETTINGS)
    parser.set_defaults(run=_export)


def _export(config: ServerConfig, arguments: argparse.Namespace) -> int:
    # torch is imported by the command, not by its flags.
    import torch

    from wattserve_server.engine.device import resolve_device, usable_cores
    from wattserve_server.engine.export import check_out, export
    from wattserve_server.engine.model import load_model
    from wattserve_server.engine.sources import made_of
    from wattserve_server.engine.tasks import task_named
    from wattserve_server.engine.variants.catalogue import choose
    from wattserve_server.engine.variants.port import Materials
    from wattserve_server.engine.variants.variant import build_variant
    from wattserve_server.starting import calibration_scales, say

    out, task = Path(arguments.out), task_named(config.task)
    if "," in arguments.variant:
        raise ConfigError(f"--variant {arguments.variant!r}: one at a time, each to a folder of its own")
    check_out(out)
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
