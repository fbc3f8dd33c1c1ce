"""A load as plain data: what is to be sent where, how it goes, and what came of it.

Everything here can be pickled, and shared between processes. Stamps are `time.perf_counter_ns`: on Linux
CLOCK_MONOTONIC, one clock for every process of a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.plan.load import CLOSED, Load
from wattserve_loadgen.target.wire import CallFailure, Connection

Stamps = npt.NDArray[np.int64]
Outcome = bytes | CallFailure
_OPEN_CALLS = 256


@dataclass(frozen=True)
class Job:
    """One load. Entry i replays request `(first + i * step) % len(requests)`."""

    connection: Connection
    requests: Sequence[bytes]
    load: Load
    deadline_s: float  # of each request
    warmup_s: float = 0.0
    window_s: float = 0.0  # a burst's lasts until its last answer
    most_requests: int = 0  # of a closed loop, warm-up included; a burst sends exactly so many
    least_requests: int = 0  # in the window of a closed loop, which goes on until it has them
    # Of an open loop: offsets from the start, not decreasing, warm-up included; none comes after the window.
    arrivals_ns: Stamps | None = None
    most_in_flight: int = 20_000  # of an open loop
    first: int = 0
    step: int = 1

    @property
    def slots(self) -> int:
        """How many calls to open."""
        return self.load.concurrency or _OPEN_CALLS

    @property
    def capacity(self) -> int:
        """The most requests that are sent."""
        return self.most_requests if self.arrivals_ns is None else len(self.arrivals_ns)


def split(job: Job, processes: int) -> list[Job]:
    """One job for each of at most `processes`: none without a slot or an arrival of its own.

    Arrivals and a burst's requests are dealt out one by one, so that together they replay what one process
    would. The shares of a closed loop each walk through all the requests, from different places.
    """
    slots = job.load.concurrency
    count = min(processes, slots or processes, max(1, job.capacity))
    dealt_out = job.load.shape != CLOSED
    return [
        replace(
            job,
            load=replace(job.load, concurrency=slots and _share(slots, place, count)),
            most_requests=_share(job.most_requests, place, count),
            least_requests=_share(job.least_requests, place, count),
            arrivals_ns=None if job.arrivals_ns is None else job.arrivals_ns[place::count],
            most_in_flight=_share(job.most_in_flight, place, count),
            first=place if dealt_out else place * len(job.requests) // count,
            step=count if dealt_out else 1,
        )
        for place in range(count)
    ]


def _share(total: int, place: int, count: int) -> int:
    """How many of `total` go to `place` of `count` when they are dealt out one by one."""
    return len(range(place, total, count))


@dataclass(frozen=True)
class Progress:
    """How a load goes: for the screen, not for results."""

    rate_per_second: float | None  # answers so far in the window; None before it opens
    services_ns: Stamps  # done - sent of the last few hundred answers

    def percentile_ns(self, percentile: float) -> int | None:
        """Of the recent service times; None without any."""
        return int(np.percentile(self.services_ns, percentile)) if len(self.services_ns) else None


def join_progress(parts: Sequence[Progress]) -> Progress:
    """Of several processes together."""
    rates = [part.rate_per_second for part in parts if part.rate_per_second is not None]
    services_ns = [np.zeros(0, dtype=np.int64), *(part.services_ns for part in parts)]
    return Progress(sum(rates) if rates else None, np.concatenate(services_ns))


@dataclass(frozen=True)
class LoopResult:
    """Everything that was sent, in the order of sending; nothing is sent, or due, after the window."""

    sent_ns: Stamps
    done_ns: Stamps
    outcomes: tuple[Outcome, ...]
    window_start_ns: int  # both 0: the loop ended before its window opened
    window_end_ns: int
    client_cpu_s: float  # of all the client's processes, during the window
    stopped: str  # why the loop ended before its time, or ""
    scheduled_ns: Stamps | None = None  # None: a closed loop has no schedule
    # Which of the job's requests each entry replayed.
    request_index: Stamps = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    # CPU seconds per second of the window, of the process where they are most: above 1 when gRPC's own
    # threads run beside its loop; None without a window.
    client_cpu_share_max: float | None = None

    @property
    def window_s(self) -> float:
        return (self.window_end_ns - self.window_start_ns) / 1e9

    @property
    def done_per_second(self) -> float:
        """Requests that ended within the window, failed ones too; 0 without a window."""
        return int(self.done_in_window().sum()) / self.window_s if self.window_s > 0 else 0.0

    def in_window(self) -> npt.NDArray[np.bool_]:
        """Requests whose latency, energy and answers count: scheduled within the window where there is a
        schedule, sent within it where there is none.
        """
        begun = self.sent_ns if self.scheduled_ns is None else self.scheduled_ns
        return (self.window_start_ns > 0) & (begun >= self.window_start_ns)

    def done_in_window(self) -> npt.NDArray[np.bool_]:
        """Requests that ended within the window, whenever they were sent: what throughput counts."""
        return (self.done_ns > self.window_start_ns) & (self.done_ns <= self.window_end_ns)


def merge(results: Sequence[LoopResult]) -> LoopResult:
    """One result of the shares of one load: in the order of sending, over the union of their windows.

    A share that ended before its window opened adds its requests and no window.
    """
    sent = np.concatenate([result.sent_ns for result in results])
    order = np.argsort(sent, kind="stable")
    outcomes = [outcome for result in results for outcome in result.outcomes]
    schedules = [result.scheduled_ns for result in results if result.scheduled_ns is not None]
    opened = [result for result in results if result.window_start_ns]
    shares = [result.client_cpu_share_max for result in opened if result.client_cpu_share_max is not None]
    return replace(
        results[0],
        sent_ns=sent[order],
        done_ns=np.concatenate([result.done_ns for result in results])[order],
        outcomes=tuple(outcomes[place] for place in order.tolist()),
        window_start_ns=min((result.window_start_ns for result in opened), default=0),
        window_end_ns=max((result.window_end_ns for result in opened), default=0),
        client_cpu_s=sum(result.client_cpu_s for result in results),
        stopped=next((result.stopped for result in results if result.stopped), ""),
        scheduled_ns=np.concatenate(schedules)[order] if schedules else None,
        request_index=np.concatenate([result.request_index for result in results])[order],
        client_cpu_share_max=max(shares, default=None),
    )
