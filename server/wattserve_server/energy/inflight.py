"""Who was in flight, and what of the device's idle draw is theirs by the time that they were: the idle policy
`by-time`.

A request is in flight from its acceptance to its end, waiting or running. What was booked as idle draw at an
edge of the meter is shared among those who were in flight since the edge before it. Where there was nobody,
it stays nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from wattserve_server.energy.attribution import split_exact
from wattserve_server.energy.receipt import IdleShare, Receipt


class Visit(NamedTuple):
    """A request has come, or has left. Instants are on the host's monotonic clock, in the order of calls."""

    receipt: Receipt
    at_ns: int
    has_left: bool = False
    ran: bool = False  # whether any of it did; of one that left without, there is no receipt


@dataclass(slots=True)
class _Stay:
    receipt: Receipt
    since_ns: int
    until_ns: int | None = None  # None: it is still here
    ran: bool = False
    idle_uj: int | None = None  # its share so far; None: of no interval that was counted


class InFlight:
    """Of the devices of one counter."""

    def __init__(self) -> None:
        self._stays: dict[str, _Stay] = {}  # by receipt id
        self._reached_ns: int | None = None

    def __len__(self) -> int:
        """Requests that have left and still wait for their share."""
        return sum(stay.until_ns is not None for stay in self._stays.values())

    def hear(self, visits: Iterable[Visit]) -> None:
        for receipt, at_ns, has_left, ran in visits:
            if not has_left:
                self._stays[receipt.receipt_id] = _Stay(receipt, at_ns)
            elif (stay := self._stays.get(receipt.receipt_id)) is not None:
                stay.until_ns, stay.ran = at_ns, ran

    def reach(self, start_ns: int, end_ns: int, idle_uj: int) -> list[IdleShare]:
        """Share what was booked as idle draw of this interval; what those are told who had left by then."""
        since_ns = start_ns if self._reached_ns is None else max(start_ns, self._reached_ns)
        self._reached_ns = max(since_ns, end_ns)
        here, overlaps_ns = [], []
        for stay in self._stays.values():
            until_ns = end_ns if stay.until_ns is None else min(stay.until_ns, end_ns)
            overlap_ns = until_ns - max(stay.since_ns, since_ns)
            if overlap_ns > 0:
                here.append(stay)
                overlaps_ns.append(float(overlap_ns))
        if here:
            for stay, share_uj in zip(here, split_exact(idle_uj, overlaps_ns), strict=True):
                stay.idle_uj = (stay.idle_uj or 0) + share_uj
        return self.dismiss(end_ns)

    def dismiss(self, before_ns: float = float("inf")) -> list[IdleShare]:
        """What those are told who had left by then: of them nothing more is counted."""
        gone = [
            stay for stay in self._stays.values() if stay.until_ns is not None and stay.until_ns <= before_ns
        ]
        for stay in gone:
            del self._stays[stay.receipt.receipt_id]
        return [IdleShare(stay.receipt, stay.idle_uj) for stay in gone if stay.ran]
