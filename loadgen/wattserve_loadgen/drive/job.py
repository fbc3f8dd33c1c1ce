"""A load as plain data: where to, what, in which shape. It can be pickled, and shared between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wattserve_loadgen.drive.closed import Burst, ClosedLoop
from wattserve_loadgen.drive.loop import Loop
from wattserve_loadgen.drive.open import MOST_IN_FLIGHT, OpenLoop
from wattserve_loadgen.drive.outcome import Stamps
from wattserve_loadgen.target.channel import Call, Connection

_OPEN_CALLS = 256


@dataclass(frozen=True)
class ClosedShape:
    """See `ClosedLoop`."""

    concurrency: int
    warmup_seconds: float
    seconds: float
    capacity: int
    least_requests: int = 0


@dataclass(frozen=True)
class OpenShape:
    """See `OpenLoop`."""

    arrivals_ns: Stamps
    warmup_seconds: float
    seconds: float
    most_in_flight: int = MOST_IN_FLIGHT


@dataclass(frozen=True)
class BurstShape:
    """See `Burst`."""

    concurrency: int
    count: int


Shape = ClosedShape | OpenShape | BurstShape


@dataclass(frozen=True)
class Job:
    """One load. `first` and `step`: entry i replays request `(first + i * step) % len(requests)`."""

    connection: Connection
    requests: Sequence[bytes]
    shape: Shape
    deadline_seconds: float
    first: int = 0
    step: int = 1

    def slots(self) -> int:
        """How many calls to open."""
        return _OPEN_CALLS if isinstance(self.shape, OpenShape) else self.shape.concurrency

    def make_loop(self, calls: Sequence[Call]) -> Loop:
        """One for each of `slots()` calls; its arrays have room for the whole job."""
        match self.shape:
            case ClosedShape() as shape:
                return ClosedLoop(
                    calls,
                    self.requests,
                    warmup_seconds=shape.warmup_seconds,
                    seconds=shape.seconds,
                    deadline_seconds=self.deadline_seconds,
                    capacity=shape.capacity,
                    least_requests=shape.least_requests,
                    first=self.first,
                    step=self.step,
                )
            case OpenShape() as shape:
                return OpenLoop(
                    calls,
                    self.requests,
                    shape.arrivals_ns,
                    warmup_seconds=shape.warmup_seconds,
                    seconds=shape.seconds,
                    deadline_seconds=self.deadline_seconds,
                    most_in_flight=shape.most_in_flight,
                    first=self.first,
                    step=self.step,
                )
            case BurstShape() as shape:
                return Burst(
                    calls,
                    self.requests,
                    count=shape.count,
                    deadline_seconds=self.deadline_seconds,
                    first=self.first,
                    step=self.step,
                )


def split(job: Job, processes: int) -> list[Job]:
    """One job for each of at most `processes`: none without a slot or an arrival of its own.

    Arrivals and a burst's requests are dealt out one by one, so that together they replay what one process
    would. The shares of a closed loop each walk through all the requests, from different places.
    """
    match job.shape:
        case ClosedShape() as shape:
            count = min(processes, shape.concurrency, shape.capacity)
            return [
                replace(
                    job,
                    first=place * len(job.requests) // count,
                    shape=replace(
                        shape,
                        concurrency=_share(shape.concurrency, place, count),
                        capacity=_share(shape.capacity, place, count),
                        least_requests=_share(shape.least_requests, place, count),
                    ),
                )
                for place in range(count)
            ]
        case OpenShape() as shape:
            count = min(processes, max(1, len(shape.arrivals_ns)))
            return [
                replace(
                    job,
                    first=place,
                    step=count,
                    shape=replace(
                        shape,
                        arrivals_ns=shape.arrivals_ns[place::count],
                        most_in_flight=_share(shape.most_in_flight, place, count),
                    ),
                )
                for place in range(count)
            ]
        case BurstShape() as shape:
            count = min(processes, shape.concurrency, shape.count)
            return [
                replace(
                    job,
                    first=place,
                    step=count,
                    shape=BurstShape(
                        concurrency=_share(shape.concurrency, place, count),
                        count=_share(shape.count, place, count),
                    ),
                )
                for place in range(count)
            ]


def _share(total: int, place: int, count: int) -> int:
    """How many of `total` go to `place` of `count` when they are dealt out one by one."""
    return len(range(place, total, count))
