"""Windows by CUDA events on a real GPU, against what the host sees by asking it all the time."""

from __future__ import annotations

import logging
import time

import pytest
import torch

from wattserve_server.engine import gputime
from wattserve_server.engine.gputime import CudaEvents, GpuTime

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
CYCLES = 30_000_000  # of a kernel that only waits: 15 to 30 ms
SLACK_NS = 300_000
"""The host hears of an event some microseconds late; more where its core is shared."""


def seen_ns(event: torch.cuda.Event) -> int:
    """When the host saw it happen."""
    while not event.query():
        pass
    return time.monotonic_ns()


def test_a_window_begins_and_ends_when_the_host_sees_it() -> None:
    events = CudaEvents(CUDA)
    timing = GpuTime(str(CUDA), events)
    for _ in range(5):
        timing.get_ready()
        start_ns = time.monotonic_ns()
        torch.cuda._sleep(CYCLES)  # the GPU comes to the batch long after it was told to
        before = events.note()
        with timing.around():
            torch.cuda._sleep(CYCLES)
        after = events.note()
        began_ns, ended_ns = seen_ns(before), seen_ns(after)
        placed = timing.placed(start_ns, time.monotonic_ns())
        assert timing.doubt_ns is not None, "the events failed: see the log"
        assert timing.doubt_ns < SLACK_NS
        assert placed[0] == pytest.approx(began_ns, abs=SLACK_NS)
        assert placed[1] == pytest.approx(ended_ns, abs=SLACK_NS)
        assert placed[0] - start_ns > 5_000_000


def test_both_clocks_drift_apart_by_parts_per_million(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gputime, "DRIFT_OVER_NS", 2_000_000_000)
    caplog.set_level(logging.INFO)
    timing = GpuTime(str(CUDA), CudaEvents(CUDA))
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        timing.get_ready()
        time.sleep(0.05)
    assert timing.drift_ppm is not None
    assert abs(timing.drift_ppm) < gputime.DRIFT_AT_MOST * 1e6, caplog.messages


def test_events_are_of_the_device_and_not_of_torchs_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    other = torch.device("cuda", 1)
    timing = GpuTime(str(other), CudaEvents(other))
    with torch.cuda.device(0):
        timing.get_ready()
        start_ns = time.monotonic_ns()
        with timing.around():
            torch.ones(1 << 20, device=other).sum()
        torch.cuda.synchronize(other)
        end_ns = time.monotonic_ns()
        placed = timing.placed(start_ns, end_ns)
    assert timing.doubt_ns is not None
    assert start_ns <= placed[0] < placed[1] <= end_ns
