"""No meter: for servers that were told to do without one, or that have nothing honest to read.

Knows only the reason. Every figure is unknown, never 0.
"""

from __future__ import annotations

from wattserve_server.energy.reading import Quality, Reading, Source
from wattserve_server.energy.units import Energy
from wattserve_server.errors import MeterError


class NoMeter:
    """Every reading raises MeterError with the reason."""

    wraps_at: Energy | None = None
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

    def close(self) -> None:
        """Nothing is held."""
