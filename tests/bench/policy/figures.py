"""What a run of the simulation says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench.policy.world import Request, Run

WARM_UP = 0.05
"""The part of the requests that is left out of waits and latencies, from the start."""


@dataclass(frozen=True)
class Figures:
    """Times in ms. padding: computed over real tokens. throughput: sequences per second. wait: from being
    queued to the start of its batch. latency: as the client sees it. misses: of requests with a deadline, the
    part not answered by then; None where there is none. waits: the p99 by variant or by priority, where there
    is more than one. batch_size: the mean.
    """

    padding: float
    throughput: float
    wait_p50: float
    wait_p99: float
    longest_wait: float
    latency_p50: float
    tail: float  # p99 / p50 of latency
    misses: float | None
    waits: dict[str, float]
    batch_size: float


def figures(run: Run) -> Figures:
    ran = [request for request in run.requests if request.started_ns >= 0]
    counted = [request for request in ran if request.number >= int(WARM_UP * len(run.requests))]
    waits = [_wait_ms(request) for request in counted]
    latencies = [(request.answered_ns - request.sent_ns) / 1e6 for request in counted]
    timed = [request for request in run.requests if request.deadline_ns is not None]
    return Figures(
        padding=run.computed_tokens / run.real_tokens,
        throughput=len(ran) / run.end_ns * 1e9,
        wait_p50=quantile(waits, 0.5),
        wait_p99=quantile(waits, 0.99),
        longest_wait=max(waits),
        latency_p50=quantile(latencies, 0.5),
        tail=quantile(latencies, 0.99) / quantile(latencies, 0.5),
        misses=sum(map(_is_missed, timed)) / len(timed) if timed else None,
        waits=_by(counted, lambda request: request.variant)
        or _by(counted, lambda request: str(request.priority)),
        batch_size=len(ran) / run.batches,
    )


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]


def _wait_ms(request: Request) -> float:
    return (request.started_ns - request.queued_ns) / 1e6


def _is_missed(request: Request) -> bool:
    assert request.deadline_ns is not None
    return request.is_expired or request.answered_ns > request.deadline_ns


def _by(requests: Sequence[Request], key: Callable[[Request], str]) -> dict[str, float]:
    """p99 of the wait by key; nothing where all have the same."""
    groups: dict[str, list[float]] = {}
    for request in requests:
        groups.setdefault(key(request), []).append(_wait_ms(request))
    if len(groups) == 1:
        return {}
    return {name: quantile(groups[name], 0.99) for name in sorted(groups)}
