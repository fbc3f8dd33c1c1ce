"""What a meter says: a value of a cumulative counter, and what kind of figure it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from wattserve_server.energy.units import Energy


class Quality(Enum):
    """How far a figure may be trusted; shown with every figure."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    SIMULATED = "simulated"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Source:
    """Where figures come from.

    name: which meter, e.g. ``nvml:GPU-5f0c`` or ``estimate``.
    method: how requests get their figures from it, e.g. ``apportioned counter``.
    note: what a reader must know, e.g. the configured watts.
    boundary: which hardware the figure covers.
    counts_server: the server's own work beside its batches is in the figure, as on the host's CPU.
    """

    name: str
    method: str
    quality: Quality
    note: str = ""
    boundary: str = ""
    counts_server: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """The counter's value at an instant of the host's monotonic clock (`time.monotonic_ns`).

    `energy` counts from an arbitrary origin and only grows, but for the wrap-around that the
    meter declares and for faults.
    """

    at_ns: int
    energy: Energy


@dataclass(frozen=True, slots=True)
class MeterStatus:
    """What is known of the meter at an instant. Times in seconds; None where not known yet.

    last_read_ns: when it was last read successfully, on the monotonic clock.
    """

    source: Source
    poll_period_s: float
    read_cost_s: float | None
    update_period_s: float | None
    idle_watts: float | None
    idle_origin: str
    last_error: str
    reads: int
    failed_reads: int
    lag_s: float | None = None
    ramp_s: float | None = None
    neighbours: int | None = None
    last_read_ns: int | None = None
