"""Windows by a GPU's own events: where they lie, how far off they may be, when the host's stamps count."""

from __future__ import annotations

import logging

import pytest
import torch

from tests.fixtures.event_gpu import Batch, EventGpu
from wattserve_server.engine.gputime import DRIFT_OVER_NS, RENEWED_AFTER_NS, GpuTime, timing_of
from wattserve_server.engine.lane import HostTime

MS = 1_000_000


def timed(gpu: EventGpu) -> GpuTime[float]:
    return GpuTime("cuda:0", gpu, gpu.clock_ns)


def run(gpu: EventGpu, timing: GpuTime[float], for_ns: float = 2 * MS) -> tuple[Batch, tuple[int, int]]:
    """A batch, and where its window was placed."""
    timing.get_ready()
    batch = gpu.batch(timing.around, for_ns)
    return batch, timing.placed(*batch.host_ns)


def test_a_window_is_when_the_gpu_computed_and_not_when_the_host_waited() -> None:
    gpu = EventGpu()
    timing = timed(gpu)
    batch, (start_ns, end_ns) = run(gpu, timing)
    assert start_ns == pytest.approx(batch.gpu_ns[0], abs=10_000)
    assert end_ns == pytest.approx(batch.gpu_ns[1], abs=10_000)
    assert start_ns - batch.host_ns[0] > 20_000
    assert batch.host_ns[1] - end_ns > 10_000


@pytest.mark.parametrize("drift_ppm", [-60.0, 60.0])
def test_clocks_that_drift_apart_do_not_move_windows(drift_ppm: float) -> None:
    gpu = EventGpu(drift_ppm)
    timing = timed(gpu)
    for rest_s in (0.0, 0.2, 3.0, 3600.0, 0.1):
        gpu.now_ns += round(rest_s * 1e9)
        batch, (start_ns, end_ns) = run(gpu, timing)
        assert start_ns == pytest.approx(batch.gpu_ns[0], abs=20_000)
        assert end_ns - start_ns == pytest.approx(2 * MS, rel=1e-4, abs=20_000)


def test_the_drift_is_told_once_it_can_be(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gpu = EventGpu(drift_ppm=40.0)
    timing = timed(gpu)
    run(gpu, timing)
    assert timing.drift_ppm is None
    for _ in range(3):
        gpu.now_ns += DRIFT_OVER_NS
        run(gpu, timing)
    assert timing.drift_ppm == pytest.approx(40.0, abs=1.0)
    (said,) = caplog.messages
    assert "cuda:0 are timed by its own events" in said
    assert "ppm" in said


def test_references_are_renewed_now_and_then_and_not_before_each_batch() -> None:
    gpu = EventGpu()
    timing = timed(gpu)
    timing.get_ready()
    after_first_ns = gpu.now_ns
    timing.get_ready()
    assert gpu.now_ns == after_first_ns
    gpu.now_ns += RENEWED_AFTER_NS
    timing.get_ready()
    assert gpu.now_ns > after_first_ns + RENEWED_AFTER_NS


def test_a_poor_look_does_not_replace_a_good_reference() -> None:
    gpu = EventGpu()
    timing = timed(gpu)
    timing.get_ready()
    good_ns = timing.doubt_ns
    gpu.jitter_ns = 50 * MS
    gpu.now_ns += RENEWED_AFTER_NS
    timing.get_ready()
    assert good_ns is not None
    assert timing.doubt_ns is not None
    assert timing.doubt_ns < 50 * good_ns


def test_windows_are_ordered_and_apart_however_poor_the_references_are() -> None:
    gpu = EventGpu(drift_ppm=80.0)
    gpu.jitter_ns = 5 * MS
    timing = timed(gpu)
    last_ns = 0
    for index in range(300):
        if index == 150:
            gpu.began_ns -= 1e9  # the GPU's clock jumps
        batch, (start_ns, end_ns) = run(gpu, timing, for_ns=1_000.0 + 7_919 * index)
        assert last_ns <= batch.host_ns[0] <= start_ns <= end_ns <= batch.host_ns[1]
        assert end_ns - start_ns == pytest.approx(1_000 + 7_919 * index, rel=1e-4, abs=20_000)
        last_ns = end_ns


def test_after_a_jump_of_the_gpus_clock_a_new_reference_is_taken() -> None:
    gpu = EventGpu()
    timing = timed(gpu)
    run(gpu, timing)
    gpu.began_ns -= 1e9
    run(gpu, timing)
    batch, (start_ns, _) = run(gpu, timing)
    assert start_ns == pytest.approx(batch.gpu_ns[0], abs=10_000)


@pytest.mark.parametrize("method", ["note", "wait_for", "between_ns"])
def test_where_events_fail_the_hosts_stamps_count_and_the_log_says_so_once(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = EventGpu()
    timing = timed(gpu)
    run(gpu, timing)
    gpu.now_ns += RENEWED_AFTER_NS
    gpu.fails = method
    for _ in range(3):
        batch, placed = run(gpu, timing)
        assert placed == batch.host_ns
    assert timing.doubt_ns is None
    assert gpu.failed == 1
    (said,) = caplog.messages
    assert said == (
        "batches on cuda:0 are timed by the host's clock from now on: its events failed with RuntimeError: "
        "CUDA error: invalid resource handle"
    )


def test_a_batch_whose_end_was_not_noted_has_the_hosts_stamps() -> None:
    gpu = EventGpu()
    timing = timed(gpu)
    run(gpu, timing)
    with pytest.raises(ValueError, match="the model"), timing.around():
        raise ValueError("the model")
    assert timing.placed(5, 9) == (5, 9)


def test_a_cpu_does_what_it_is_told_at_once() -> None:
    timing = timing_of(torch.device("cpu"))
    assert isinstance(timing, HostTime)
    timing.get_ready()
    with timing.around():
        pass
    assert timing.placed(5, 9) == (5, 9)


def test_a_gpu_is_asked_by_cuda_events() -> None:
    assert isinstance(timing_of(torch.device("cuda", 1)), GpuTime)
