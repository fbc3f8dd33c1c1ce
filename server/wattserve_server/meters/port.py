"""The port that every meter implements, and the meter of a server that has none."""

from __future__ import annotations

from typing import Protocol

from wattserve_server.energy.edges import MOST_WATTS
from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.errors import MeterError


class Meter(Protocol):
    """A cumulative energy counter of one device."""

    @property
    def source(self) -> Source:
        """What the figures are."""

    @property
    def wraps_at(self) -> Energy | None:
        """The value at which the counter starts again from 0; None if it never does."""

    @property
    def idle_watts(self) -> float | None:
        """The device's idle draw where it is declared; None where it is to be measured."""

    @property
    def most_watts(self) -> float | None:
        """The most that the device can be set to draw; None where the meter cannot tell. A counter that goes
        far beyond is taken for wrong."""

    @property
    def poll_period_s(self) -> float:
        """How often to read it: no faster than its value changes usefully."""

    def read(self) -> Reading:
        """The counter now. Called from one thread only. Raises MeterError when it cannot be read;
        a later call may succeed again."""

    def neighbours(self) -> int | None:
        """How many other processes use the metered device now; None where the meter cannot tell.
        Called from the thread that reads. Never raises."""

    def others_at_work(self) -> float | None:
        """How much other processes used the metered device since this was last asked, in device-seconds per
        second: of a GPU a share from 0 to 1, of a host its cores. None where nobody can tell, as the first
        time. Called from the thread that reads. Never raises."""

    def clock_mhz(self) -> int | None:
        """How fast the metered device works now; None where it rests or nobody can tell. Called from the
        thread that reads. Never raises."""

    def close(self) -> None:
        """Release what the meter holds. Reading it afterwards is an error."""


def counted_uj(before_uj: int, now_uj: int, wraps_at_uj: int | None, elapsed_ns: int) -> int | None:
    """What was counted from one value to the next; None where it stepped back without wrapping around, which
    would have taken more than any device draws."""
    gain_uj = now_uj - before_uj
    if gain_uj >= 0 or wraps_at_uj is None:
        return gain_uj if gain_uj >= 0 else None
    gain_uj += wraps_at_uj
    return gain_uj if 0 <= gain_uj * 1000 <= MOST_WATTS * elapsed_ns else None


class NoMeter:
    """For a server that was told to do without a meter, or that has nothing honest to read.

    Every reading raises MeterError with the reason: every figure is unknown, never 0.
    """

    wraps_at: Energy | None = None
    most_watts: float | None = None
    idle_watts: float | None = None
    poll_period_s: float = 0.05  # so that receipts learn soon that there is nothing to wait for

    def __init__(self, reason: str = "no meter was asked for (--meter none)") -> None:
        self._reason = reason
        self.source = Source(
            name="none", method="none", quality=Quality.NONE, note=reason, boundary="no hardware is metered"
        )

    def read(self) -> Reading:
        raise MeterError(self._reason)

    def neighbours(self) -> int | None:
        return None  # there is nothing to ask

    def others_at_work(self) -> float | None:
        return None

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is held."""
