"""The port that every meter implements."""

from __future__ import annotations

from typing import Protocol

from wattserve_server.energy.reading import Reading, Source
from wattserve_server.energy.units import Energy


class Meter(Protocol):
    """A cumulative energy counter of one device.

    source: what the figures are.
    wraps_at: the value at which the counter starts again from 0, or None if it never does.
    idle_watts: the device's idle draw where it is declared, not measured; None: to be measured.
    poll_period_s: how often to read it; no faster than its value changes usefully.
    """

    @property
    def source(self) -> Source: ...

    @property
    def wraps_at(self) -> Energy | None: ...

    @property
    def idle_watts(self) -> float | None: ...

    @property
    def poll_period_s(self) -> float: ...

    def read(self) -> Reading:
        """The counter now. Called from one thread only. Raises MeterError when it cannot be read;
        a later call may succeed again."""
        ...

    def neighbours(self) -> int | None:
        """How many other processes use the metered device now; None where the meter cannot tell.
        Called from the thread that reads. Never raises."""
        ...

    def close(self) -> None:
        """Release what the meter holds. Reading it afterwards is an error."""
        ...
