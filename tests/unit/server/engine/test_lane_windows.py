"""The window that a lane gives a batch: the device's own time where it tells it; and of one that fails."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.event_gpu import EventGpu
from wattserve_server.energy.costlaw import LawView
from wattserve_server.engine import lane as lanes
from wattserve_server.engine.gputime import GpuTime
from wattserve_server.engine.lane import Lane, RunLog
from wattserve_server.engine.worktime import Served, WorkClock

MS = 1_000_000
DEVICE = torch.device("cpu")  # for which there is nothing to wait: the test sees to that


class GpuVariant:
    """A variant whose batches take 2 ms of the GPU. failure: what it raises with the GPU still at it."""

    name, device = "fp32", DEVICE
    model = SimpleNamespace(task=SimpleNamespace(length=len))

    def __init__(self, gpu: EventGpu, failure: Exception | None = None) -> None:
        self._gpu = gpu
        self._failure = failure

    def prepare(self, items: list[Any], packs: bool) -> Any:
        return SimpleNamespace(length=max(map(len, items)), packed_rows=0)

    def run(self, batch: Any, timed: AbstractContextManager[object]) -> Any:
        with timed:
            self._gpu.work(2 * MS)
            if self._failure is not None:
                raise self._failure
        self._gpu.answer()
        return np.zeros((1, 2), np.float32)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> EventGpu:
    gpu = EventGpu()
    monkeypatch.setattr(lanes, "time", SimpleNamespace(**{**vars(time), "monotonic_ns": gpu.clock_ns}))
    monkeypatch.setattr(lanes, "wait_for", lambda device: gpu.answer())
    return gpu


@pytest.fixture
def lane(gpu: EventGpu) -> Lane:
    batcher: Any = SimpleNamespace(limits=None)
    laws: Any = {"accelerator": SimpleNamespace(law=LawView({}))}
    timing = GpuTime("cuda:0", gpu, gpu.clock_ns)
    work_clock = WorkClock(Served(lambda: 0))
    work_clock.begin()
    return Lane("cpu", batcher, RunLog(), laws, timing, work_clock, lambda result: None, lambda error: None)


def test_a_window_is_the_gpus_and_the_hosts_stays_known(gpu: EventGpu, lane: Lane) -> None:
    variant: Any = GpuVariant(gpu)
    began_ns = gpu.now_ns
    window = lane.run(variant, [np.zeros(4)]).window
    lane.run_log.finish(window)
    assert window.duration_ns == pytest.approx(2 * MS, abs=10_000)
    assert window.host_ns is not None
    assert window.host_ns[0] < window.start_ns < window.end_ns < window.host_ns[1] == gpu.now_ns
    assert window.host_ns[0] > began_ns + 10_000  # taking a reference is no part of it
    assert window.held_ns == lane.run_log.busy_ns() > window.duration_ns + 10_000


@pytest.mark.parametrize("words", ["out of memory", "a kernel is missing"])
def test_a_batch_that_fails_ends_when_the_gpu_is_done_with_what_it_was_told(
    gpu: EventGpu, lane: Lane, words: str
) -> None:
    variant: Any = GpuVariant(gpu, RuntimeError(words))
    ran = lane.run(variant, [np.zeros(4)])
    assert ran.failure is not None
    assert ran.window.duration_ns > 2 * MS
    assert ran.window.end_ns == gpu.now_ns
