"""Where a window begins and ends, against servers of known throughput, on a clock that jumps."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.fixtures.fake_server.law import Law
from tests.fixtures.law_runs import ARM, Run, arrivals_ns, cell_of, plan_of
from tests.fixtures.virtual_time import run_in_virtual_time
from wattserve_loadgen.drive.closed import ClosedLoop
from wattserve_loadgen.drive.job import Job, LoopResult
from wattserve_loadgen.drive.open import OpenLoop
from wattserve_loadgen.plan.load import CONSTANT, Load, closed
from wattserve_loadgen.sweeping.cells import open_window_s
from wattserve_loadgen.target.wire import Connection
from wattserve_proto.v1 import inference_pb2 as pb

PHASES = 10


class BatchServer:
    """Answers `size` requests at once, `seconds` after the last of them arrived; never fewer."""

    def __init__(self, size: int, seconds: float) -> None:
        self._size, self._seconds = size, seconds
        self._waiting: list[asyncio.Future[bytes]] = []

    async def __call__(self, request: bytes, /, *, timeout: float) -> bytes:  # noqa: ASYNC109
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        if len(self._waiting) == self._size:
            batch, self._waiting = self._waiting, []
            asyncio.get_running_loop().call_later(self._seconds, self._answer, batch)
        return await answer

    @staticmethod
    def _answer(batch: list[asyncio.Future[bytes]]) -> None:
        for answer in batch:
            answer.set_result(b"")


def closed_loop(batch_seconds: float, seconds: float, phase: float, least: int = 0) -> ClosedLoop:
    """32 slots at a server of such batches; the window begins `phase` of a batch after one has ended."""
    job = Job(
        Connection("h:1"),
        [b""],
        closed(32),
        deadline_s=60.0,
        warmup_s=(3 + phase) * batch_seconds,
        window_s=seconds,
        most_requests=100_000,
        least_requests=least,
    )
    return ClosedLoop(job, [BatchServer(32, batch_seconds)] * 32)


def batched(batch_seconds: float, seconds: float, phase: float, least: int = 0) -> LoopResult:
    return run_in_virtual_time(closed_loop(batch_seconds, seconds, phase, least).run())


def mean_rate(batch_seconds: float, seconds: float) -> float:
    phases = (np.arange(PHASES) + 0.5) / PHASES
    found = [batched(batch_seconds, seconds, one).done_per_second for one in phases]
    return float(np.mean(found))


@pytest.mark.parametrize("seconds", [2.0, 2.1, 0.8, 0.3])
def test_a_closed_loop_finds_the_throughput_of_a_batching_server(
    seconds: float,
) -> None:
    """32 answers every 0.25 s are 128 per second, wherever the window lies and however few batches it has."""
    assert mean_rate(0.25, seconds) == pytest.approx(128, rel=0.02)


def test_the_ratio_of_two_arms_is_that_of_their_batches() -> None:
    ratio = mean_rate(0.2, 2.1) / mean_rate(0.5, 2.1)
    assert ratio == pytest.approx(2.5, rel=0.02)


def test_a_closed_window_lasts_its_time_though_no_request_is_sent_at_its_edges() -> None:
    """Two batches of 0.25 s and a bit begin in a window of 0.6 s that begins in the middle of one."""
    found = batched(0.25, 0.6, 0.5)
    assert found.window_s == 0.6
    assert found.in_window().sum() == found.done_in_window().sum() == 64
    assert found.sent_ns[found.in_window()].min() > found.window_start_ns + 100_000_000
    assert found.sent_ns.max() < found.window_end_ns < found.done_ns.max()


def test_a_window_goes_on_after_its_time_until_its_last_request_needed_is_sent() -> None:
    found = batched(0.25, 0.3, 0.5, least=96)
    assert found.in_window().sum() == 96
    assert found.window_end_ns == found.sent_ns[-1]
    assert found.window_s == pytest.approx(0.625, abs=0.001)
    assert batched(0.25, 0.9, 0.5, least=96).window_s == 0.9


def test_a_window_that_is_stopped_ends_there() -> None:
    async def run() -> LoopResult:
        loop = closed_loop(0.25, 3600.0, 0.5)
        asyncio.get_running_loop().call_later(3.5 * 0.25 + 1.0, loop.stop, "interrupted")
        return await loop.run()

    found = run_in_virtual_time(run())
    assert found.stopped == "interrupted"
    assert found.window_s == pytest.approx(1.0, abs=0.001)
    assert found.done_in_window().sum() == 4 * 32


CELLS = [
    (rate, seconds, warmup, latency)
    for rate in (1, 2, 3, 5, 8, 0.7, 2.3)
    for seconds, warmup in ((5.0, 1.0), (4.9, 0.5))
    for latency in (0.0005, 0.01, 0.4)
]


@pytest.mark.parametrize(("rate", "seconds", "warmup", "latency"), CELLS)
def test_a_constant_rate_is_offered_as_asked_and_a_perfect_server_is_not_behind_it(
    rate: float, seconds: float, warmup: float, latency: float
) -> None:
    async def answer(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        await asyncio.sleep(latency)
        return pb.PredictResponse(variant=ARM.variant).SerializeToString()

    load = Load(CONSTANT, rate=rate)
    plan, cell = plan_of(load, seconds), cell_of(load, seconds, warmup)
    arrivals, window_seconds = arrivals_ns(plan, cell), open_window_s(plan, cell)

    async def run() -> LoopResult:
        rows = [b""] * len(arrivals)
        job = Job(Connection("h:1"), rows, load, 60.0, warmup, window_seconds, arrivals_ns=arrivals)
        return await OpenLoop(job, [answer]).run()

    loop = run_in_virtual_time(run())
    found = Run(plan, cell, Law(), loop)
    assert found.result.offered_per_second == pytest.approx(rate, rel=1e-6)
    assert found.result.rate_per_second == found.result.offered_per_second
    assert "behind offer" not in found.verdicts
    assert seconds - 1e-6 < loop.window_s < seconds + 1 / rate


def test_an_open_window_lasts_longer_than_its_last_arrival() -> None:
    """And the loop with it: what a meter counts after the last answer is still of the window."""

    async def at_once(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        return request

    async def run() -> tuple[LoopResult, float]:
        arrivals = np.array([0, 100, 600]) * 1_000_000
        load = Load(CONSTANT, rate=1.0)
        job = Job(Connection("h:1"), [b""], load, 60.0, warmup_s=0.2, window_s=5.0, arrivals_ns=arrivals)
        loop = OpenLoop(job, [at_once])
        begun = asyncio.get_running_loop().time()
        return await loop.run(), asyncio.get_running_loop().time() - begun

    found, took = run_in_virtual_time(run())
    assert found.scheduled_ns is not None
    assert found.window_start_ns - found.scheduled_ns[0] == 200_000_000
    assert found.window_s == 5.0
    assert took >= 5.2
    assert (found.in_window().tolist(), found.done_in_window().tolist()) == ([False, False, True],) * 2
