"""When a batch really ran on a GPU: by CUDA events around its forward, placed on the host's monotonic clock.

A GPU runs what it is told some time after it was told. An event is its own note of when it came to a place
in its queue; two of them tell how much of its time lay between, to half a microsecond. A *reference* ties
that to the host's clock: an event that the host waited for, looking at its own clock before and after, so
that the event lies between the two looks. The clocks drift apart by some parts per million, so references
are renewed.

The host knows for certain that a batch began after it was told to, and was over when its answer was there.
What the events say is moved into that window and never out of it: windows of one device stay ordered and
apart, and a poor reference costs no more than the host's own stamps would.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from wattserve_server.engine.lane import HostTime, Timing

log = logging.getLogger(__name__)

Note = TypeVar("Note")

# A reference is renewed after so long, by the best of so many looks: some 50 us of the lane's time.
RENEWED_AFTER_NS, LOOKS = 250_000_000, 3

# What a reference may be wrong by more for each nanosecond of its age, and what two events may be wrong by.
# Crystals are told to within some 50 ppm; an event's clock ticks every half microsecond.
DRIFT_AT_MOST, TICK_NS = 1e-4, 1_000

DRIFT_OVER_NS = 10_000_000_000  # references that are compared to tell the drift lie so far apart at least


class Events(Protocol[Note]):
    """A device's own notes of when it came to a place in its queue. Whatever fails raises."""

    def note(self) -> Note:
        """Have the device note when it is done with all that it has been told so far."""

    def wait_for(self, note: Note) -> None:
        """Until the device has come to it."""

    def between_ns(self, first: Note, last: Note) -> float:
        """How much of the device's time lies between two notes that it has come to."""


class CudaEvents:
    """Of the stream on which the calling thread runs batches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def note(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))  # which is not that of torch's current device
        return event

    def wait_for(self, note: torch.cuda.Event) -> None:
        note.synchronize()

    def between_ns(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        return float(first.elapsed_time(last)) * 1e6


@dataclass(frozen=True, slots=True)
class Reference(Generic[Note]):
    """An event, when it was on the host's clock, and what that may be wrong by."""

    note: Note
    at_ns: int
    doubt_ns: int

    def doubt_at_ns(self, now_ns: int) -> float:
        return self.doubt_ns + TICK_NS + DRIFT_AT_MOST * abs(now_ns - self.at_ns)


class GpuTime(Generic[Note]):
    """By a device's events; from the first that fails on by the host's stamps, and the log says so, once."""

    def __init__(
        self, name: str, events: Events[Note], clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.drift_ppm: float | None = None  # of the device's clock against the host's, once it is known
        self._name = name
        self._events: Events[Note] | None = events
        self._clock_ns = clock_ns
        self._reference: Reference[Note] | None = None
        self._earlier: Reference[Note] | None = None  # against which the drift is told
        self._begun: Note | None = None
        self._ended: Note | None = None

    @property
    def doubt_ns(self) -> float | None:
        """What the place of a batch that ran now could be wrong by; None where the host's stamps are used."""
        return None if self._reference is None else self._reference.doubt_at_ns(self._clock_ns())

    def get_ready(self) -> None:
        now_ns, old = self._clock_ns(), self._reference
        if self._events is None or (old is not None and now_ns - old.at_ns < RENEWED_AFTER_NS):
            return
        try:
            best = min((self._look(self._events) for _ in range(LOOKS)), key=lambda look: look.doubt_ns)
            if old is None or best.doubt_at_ns(now_ns) <= old.doubt_at_ns(now_ns):
                self._reference = best
                self._compare(self._events, best)
        except Exception as error:
            self._give_up(error)

    @contextmanager
    def around(self) -> Iterator[None]:
        self._ended = None
        self._begun = self._note()
        yield
        self._ended = self._note()

    def placed(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        begun, ended, reference = self._begun, self._ended, self._reference
        self._begun = self._ended = None
        if self._events is None or reference is None or begun is None or ended is None:
            return start_ns, end_ns
        try:
            took_ns = self._events.between_ns(begun, ended)
            after_ns = self._events.between_ns(reference.note, begun)
        except Exception as error:
            self._give_up(error)
            return start_ns, end_ns
        most_ns = end_ns - start_ns
        if not 0 <= took_ns <= most_ns * (1 + DRIFT_AT_MOST) + TICK_NS:  # the clocks do not agree
            self._reference = self._earlier = None
            return start_ns, end_ns
        duration_ns = min(round(took_ns), most_ns)
        begun_ns = reference.at_ns + round(after_ns)
        placed_ns = min(max(begun_ns, start_ns), end_ns - duration_ns)
        if abs(begun_ns - placed_ns) > reference.doubt_at_ns(end_ns):  # one of them has jumped
            self._reference = self._earlier = None
        return placed_ns, placed_ns + duration_ns

    def _look(self, events: Events[Note]) -> Reference[Note]:
        before_ns = self._clock_ns()
        note = events.note()
        events.wait_for(note)
        half_ns = -(-(self._clock_ns() - before_ns) // 2)
        return Reference(note, before_ns + half_ns, half_ns)

    def _compare(self, events: Events[Note], now: Reference[Note]) -> None:
        earlier = self._earlier
        if earlier is None:
            self._earlier = now
            return
        host_ns = now.at_ns - earlier.at_ns
        if host_ns < DRIFT_OVER_NS:
            return
        is_new = self.drift_ppm is None
        self.drift_ppm = (events.between_ns(earlier.note, now.note) / host_ns - 1) * 1e6
        self._earlier = now
        if is_new:
            log.info(
                "batches on %s are timed by its own events, placed on this host's clock to +-%.0f us; its "
                "clock runs %+.1f ppm (+-%.1f) against the host's",
                self._name, now.doubt_ns / 1e3, self.drift_ppm,
                (now.doubt_ns + earlier.doubt_ns) / host_ns * 1e6,
            )  # fmt: skip

    def _note(self) -> Note | None:
        if self._events is None:
            return None
        try:
            return self._events.note()
        except Exception as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        self._events = self._reference = self._earlier = None
        log.warning(
            "batches on %s are timed by the host's clock from now on: its events failed with %s: %s",
            self._name, type(error).__name__, error,
        )  # fmt: skip


def timing_of(device: torch.device) -> Timing:
    """A GPU's own; the host's stamps for a CPU."""
    if device.type != "cuda":
        return HostTime()
    return GpuTime(str(device), CudaEvents(device))
