"""What `wattserve variants` prints: every precision, and what this device makes of it."""

from __future__ import annotations

from rich.table import Table

from wattserve_server.config import ServerConfig
from wattserve_server.engine.device import describe_device, resolve_device
from wattserve_server.engine.model import load_model
from wattserve_server.engine.sources import kinds_of
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.variant import build_variant
from wattserve_server.errors import ConfigError
from wattserve_server.inspection.output import wide_console


def print_catalogue(config: ServerConfig) -> None:
    device = resolve_device(config.device)
    model = load_model(config.model, task_named(config.task), trust_remote_code=config.trust_remote_code)
    table = Table(title=f"Variants of {model.name} on {describe_device(device)}", title_justify="left")
    for heading in ("variant", "device", "native", "why", "kernels"):
        table.add_column(heading, overflow="fold")
    table.add_column("parameter bytes", justify="right")
    kinds, only = kinds_of(config.model, model.task, config.trust_remote_code)
    for kind in kinds.values():
        support = kind.support(device)
        native, why, size = "no", support.why, "-"
        if support.native and kind.needs_calibration:  # what it takes depends on data that is not here
            native, why = "yes", f"{why}; needs calibration data"
        elif support.native:
            try:
                size = f"{build_variant(model, Choice(kind.name, kind, device)).parameter_bytes:,}"
                native = "yes"
            except ConfigError as error:  # the device could, this model cannot
                why = str(error)
        if kind.proxy:
            why += f"; a PROXY: {kind.proxy}"
        kernels = support.kernels if native == "yes" else "-"
        table.add_row(kind.name, str(device), native, why, kernels, size)
    console = wide_console()
    console.print(table)
    if only:
        words = f"No other precision: {only}, and nothing else can be made from it."
        console.print(words, markup=False, highlight=False, soft_wrap=True)
