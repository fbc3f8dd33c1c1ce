"""What `wattserve variants` prints: every precision, and what this device makes of it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from wattserve_server.config import ServerConfig
from wattserve_server.engine.device import describe_device, resolve_device
from wattserve_server.engine.model import load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.kinds import KINDS
from wattserve_server.engine.variants.variant import build_variant
from wattserve_server.errors import ConfigError

PIPED_WIDTH = 160


def print_catalogue(config: ServerConfig) -> None:
    device = resolve_device(config.device)
    model = load_model(config.model, task_named(config.task), trust_remote_code=config.trust_remote_code)
    table = Table(title=f"Variants of {model.name} on {describe_device(device)}", title_justify="left")
    for heading in ("variant", "device", "native", "why", "kernels"):
        table.add_column(heading, overflow="fold")
    table.add_column("parameter bytes", justify="right")
    for kind in KINDS.values():
        support = kind.support(device)
        native, why, size = "no", support.why, "-"
        if support.native:
            try:
                size = f"{build_variant(model, kind, device).parameter_bytes:,}"
                native = "yes"
            except ConfigError as error:  # the device could, this model cannot
                why = str(error)
        kernels = support.kernels if native == "yes" else "-"
        table.add_row(kind.name, str(device), native, why, kernels, size)
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=PIPED_WIDTH)).print(table)
