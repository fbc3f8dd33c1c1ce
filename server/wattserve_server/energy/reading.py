"""What a meter says: a value of a cumulative counter, and what kind of figure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Energy:
    """An amount of energy in whole microjoules; negative only as a difference."""

    uj: int

    @classmethod
    def from_joules(cls, joules: float) -> Self:
        return cls(round(joules * 1e6))

    @classmethod
    def from_millijoules(cls, millijoules: int) -> Self:
        """NVML's unit."""
        return cls(millijoules * 1000)

    @property
    def joules(self) -> float:
        return self.uj / 1e6

    def __add__(self, other: Energy) -> Energy:
        return Energy(self.uj + other.uj)

    def __sub__(self, other: Energy) -> Energy:
        return Energy(self.uj - other.uj)

    def __bool__(self) -> bool:
        return self.uj != 0


ZERO = Energy(0)


def where_all_known(fold: Callable[[list[T]], T], values: Sequence[T | None]) -> T | None:
    """What `fold` makes of them; None where one is not known."""
    known = [value for value in values if value is not None]
    return fold(known) if len(known) == len(values) else None


class Quality(StrEnum):
    """How far a figure may be trusted; shown with every figure."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    SIMULATED = "simulated"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Source:
    """Where figures come from."""

    name: str  # which meter, e.g. ``nvml:GPU-5f0c`` or ``estimate``
    method: str  # how requests get their figures from it, e.g. ``apportioned counter``
    quality: Quality
    note: str = ""  # what a reader must know, e.g. the configured watts
    boundary: str = ""  # which hardware the figure covers
    counts_server: bool = False  # the server's own work beside its batches is in it, as on the host's CPU
    cpu_watts: float | None = (
        None  # of a busy core, where that times this process's CPU time is what it counts
    )
    averages_s: float = 0.0  # it counts the mean power of the last so long: a trial must outlast that to show


@dataclass(frozen=True, slots=True)
class Reading:
    """The counter's value at an instant of the host's monotonic clock (`time.monotonic_ns`).

    `energy` counts from an arbitrary origin and only grows, except for the wrap-around that the
    meter declares and for faults.
    """

    at_ns: int
    energy: Energy


@dataclass(frozen=True, slots=True)
class MeterStatus:
    """What is known of the meter at an instant; None where not known yet."""

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
    average_s: float | None = None
    unresolved: str = ""  # why the counter's response could not be found; empty where it was
    neighbours: int | None = None
    others_at_work: float | None = None  # how much of the device other processes used lately
    restarts: int = 0  # errors after which the accounts began again
    last_restart: str = ""  # what the last of them said
    consistency: float | None = None  # see `filter.EnergyFilter`
    edges: int = 0  # of the counter, with batches, from which the filter learned
    covered_edges: int = 0  # of these, those off by no more than the 95 % interval that receipts would tell
    last_read_ns: int | None = None  # when it was last read successfully, on the monotonic clock
