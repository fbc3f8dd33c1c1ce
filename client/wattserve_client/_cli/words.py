"""Figures as the command line shows them. An energy that is not known is "unknown", never 0. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import numpy as np

from wattserve_client.results import EnergySource, Receipt, format_joules, joules

UNKNOWN = "unknown"
NOTHING = "-"


def energy(uj: int | None) -> str:
    """Microjoules in joules, without the unit; large ones in full."""
    return UNKNOWN if uj is None else format_joules(uj)


def ledger_energy(uj: int | None) -> str:
    """Microjoules in joules with three decimals, so that a column of them can be added up by eye."""
    return UNKNOWN if uj is None else f"{uj / 1e6:,.3f}"


def counted(number: int, thing: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def percent(part: int | None, whole: int | None) -> str:
    if part is None or not whole:
        return NOTHING
    return "<0.1 %" if 0 < part / whole < 0.0005 else f"{100 * part / whole:.1f} %"


def watts(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f} W"


def seconds(value: float | None) -> str:
    """In s, ms or µs."""
    if value is None:
        return UNKNOWN
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def megabytes(count: int) -> str:
    """0 bytes: nothing is loaded."""
    return f"{count / 1e6:,.1f} MB" if count else NOTHING


def moment(unix_ns: int) -> str:
    """In UTC, to the second."""
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def source(of: EnergySource) -> str:
    """Its quality first, then which one, how, and what must be known of it."""
    told = str(of).removesuffix(f" by {of.quality}")  # a meter called as its quality is not said twice
    if of.method not in ("", "none"):
        told += f", {of.method}"
    return f"{told}: {of.note}" if of.note else told


def interval(receipt: Receipt) -> str:
    if receipt.energy_low_uj is None or receipt.energy_high_uj is None:
        return ""
    low, high = energy(receipt.energy_low_uj), energy(receipt.energy_high_uj)
    return f"95 % {low} to {high} J of the apportioning, without the sensor's own error"


def caveats(receipt: Receipt) -> list[tuple[str, str]]:
    """What nobody may miss beside the figure, as (name, words)."""
    told = (
        [("PROXY", f"{receipt.variant} only stands in for a precision: {receipt.proxy}")]
        if receipt.proxy
        else []
    )
    if receipt.unverified:
        told.append(
            ("UNVERIFIED", f"nobody has checked that {receipt.variant} ran at the precision of its name")
        )
    return told + [("warning", each) for each in receipt.warnings]


def plain(value: Any) -> Any:
    """A result as JSON holds it: its own fields, whose names end in their units; what is not known is null.

    Where a field `energy_uj` stands, `energy_joules` stands beside it.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if "energy_uj" in told:
            told["energy_joules"] = joules(told["energy_uj"])
        return told
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
