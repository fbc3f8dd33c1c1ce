"""Foreign load: when to believe that something else draws on the device, and when no longer.

Seen through the driver's list of processes, or only by a floor that neither idle draw nor batches explain.
Decides; `filter` estimates how much it draws.
"""

from __future__ import annotations

from dataclasses import dataclass

UNEXPLAINED = 4.0
"""An edge this many standard deviations above everything known."""

BEYOND_LAWS = 0.4
"""No law is off by more than this part of what it predicts: what is, is something else."""

QUIET_EDGES = 10
"""Edges without a sign of it after which it is taken to have ended."""

SETTLES_AFTER_S = 60.0
"""An unexplained floor that stays this long, with nobody seen, has become the device's idle draw."""


SEEN_LOAD = "other processes ({count}) used the device meanwhile: what they drew was estimated and taken off"
UNSEEN_LOAD = "the device drew more than its idle draw and its batches explain: the excess was taken off"


@dataclass(slots=True)
class ForeignLoad:
    """neighbours: other processes on the device, None where nobody can tell. watches_floor: an unexplained
    floor speaks of foreign load; not where the server's own work beside its batches makes one."""

    watches_floor: bool = True
    neighbours: int | None = None
    is_open: bool = False
    for_s: float = 0.0
    _quiet: int = 0

    @property
    def warning(self) -> str:
        """What the receipts of batches beside it say."""
        return SEEN_LOAD.format(count=self.neighbours) if self.neighbours else UNSEEN_LOAD

    def is_suspected(self, off_j: float, deviation_j: float, expected_j: float) -> bool:
        """Whether an edge this far above what is known speaks of it. expected_j: of batches."""
        if self.neighbours:
            return True
        if not self.watches_floor:
            return False
        return off_j > UNEXPLAINED * deviation_j and off_j > BEYOND_LAWS * expected_j

    def begin(self) -> None:
        self.is_open, self.for_s, self._quiet = True, 0.0, 0

    def has_ended(self, watts: float, deviation_w: float, idle_w: float, dt_s: float) -> bool:
        """After an edge at which it seemed to draw `watts`, give or take."""
        self.for_s += dt_s
        is_quiet = not self.neighbours and watts < max(2 * deviation_w, 0.05 * idle_w)
        self._quiet = self._quiet + 1 if is_quiet else 0
        return self._quiet >= QUIET_EDGES

    def has_settled(self) -> bool:
        """Whether what it draws is the device's idle draw by now."""
        return self.for_s > SETTLES_AFTER_S and not self.neighbours
