"""Alarms: what is to be told when its time is over, of which nearly all ends before.

A timer of the event loop for each call takes longer than most of what the call does. So those that end at
about the same time share one, which stays: it is one of a few hundred.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Generic, TypeVar

# An alarm may ring so much later than it should: 2 to that power, in nanoseconds (8 ms), or, of what is far
# away, up to 1 / 128 of the time until then.
LEAST_SHIFT = 23
PART_SHIFT = 8

T = TypeVar("T")


class Alarms(Generic[T]):
    """ring: called on the event loop with what is due."""

    def __init__(self, ring: Callable[[T], object]) -> None:
        self._ring = ring
        self._slots: dict[int, dict[T, None]] = {}  # by the instant when they ring

    def set(self, what: T, at_ns: int) -> int:
        """Ring at that instant of the monotonic clock, or soon after it; the slot, for `clear`."""
        shift = max(LEAST_SHIFT, (at_ns - time.monotonic_ns()).bit_length() - PART_SHIFT)
        slot = (at_ns >> shift) + 1 << shift
        held = self._slots.get(slot)
        if held is None:
            held = self._slots[slot] = {}
            # Else the timer would keep all that the first of these calls holds until it rings.
            asyncio.get_running_loop().call_at(slot / 1e9, self._due, slot, context=Context())
        held[what] = None
        return slot

    def clear(self, what: T, slot: int) -> None:
        """It has ended. That it has rung makes no difference."""
        if slot in self._slots:
            self._slots[slot].pop(what, None)

    def _due(self, slot: int) -> None:
        for what in self._slots.pop(slot):
            self._ring(what)
