"""What a load left behind: stamps and answers, request by request. Pure data: it knows no loop and no wire.

Stamps are `time.perf_counter_ns`: on Linux CLOCK_MONOTONIC, one clock for every process of a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Stamps = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Failure:
    """A request without an answer: a gRPC status code and what the server said."""

    code: str
    message: str


Outcome = bytes | Failure


def _nothing() -> Stamps:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class LoopResult:
    """Everything that was sent, in the order of sending; nothing is sent, or due, after the window."""

    sent_ns: Stamps
    done_ns: Stamps
    outcomes: tuple[Outcome, ...]
    window_start_ns: int  # both 0: the loop ended before its window opened
    window_end_ns: int
    client_cpu_seconds: float  # of all the client's processes, during the window
    stopped: str  # why the loop ended before its time, or ""
    scheduled_ns: Stamps | None = None  # None: a closed loop has no schedule
    request_index: Stamps = field(default_factory=_nothing)  # which of the job's requests each entry replayed
    # CPU seconds per second of the window, of the process where they are most: above 1 when gRPC's own
    # threads run beside its loop; None without a window.
    client_cpu_share_max: float | None = None

    @property
    def window_seconds(self) -> float:
        return (self.window_end_ns - self.window_start_ns) / 1e9

    @property
    def done_per_second(self) -> float:
        """Requests that ended within the window, failed ones too; 0 without a window."""
        return int(self.done_in_window().sum()) / self.window_seconds if self.window_seconds > 0 else 0.0

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
    sent = np.concatenate([one.sent_ns for one in results])
    order = np.argsort(sent, kind="stable")
    outcomes = [outcome for one in results for outcome in one.outcomes]
    schedules = [one.scheduled_ns for one in results if one.scheduled_ns is not None]
    opened = [one for one in results if one.window_start_ns]
    return replace(
        results[0],
        sent_ns=sent[order],
        done_ns=np.concatenate([one.done_ns for one in results])[order],
        outcomes=tuple(outcomes[place] for place in order.tolist()),
        window_start_ns=min((one.window_start_ns for one in opened), default=0),
        window_end_ns=max((one.window_end_ns for one in opened), default=0),
        client_cpu_seconds=sum(one.client_cpu_seconds for one in results),
        stopped=next((one.stopped for one in results if one.stopped), ""),
        scheduled_ns=np.concatenate(schedules)[order] if schedules else None,
        request_index=np.concatenate([one.request_index for one in results])[order],
        client_cpu_share_max=_highest([one.client_cpu_share_max for one in opened]),
    )


def _highest(shares: Sequence[float | None]) -> float | None:
    return max((share for share in shares if share is not None), default=None)
