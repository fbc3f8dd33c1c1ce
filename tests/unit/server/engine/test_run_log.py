"""When a device ran what, as its accountant is told: batches, and what ran beside them."""

from __future__ import annotations

import pytest

from wattserve_server.energy.receipt import Window
from wattserve_server.engine import lane
from wattserve_server.engine.lane import RunLog


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lane, "time", clock)
    return clock


def run(log: RunLog, clock: Clock, end_ns: int) -> int:
    """A batch that starts now; for how long nothing had run before it, in nanoseconds."""
    start_ns, rested_ns = log.start()
    clock.now_ns = end_ns
    log.finish(Window("fp32", start_ns, end_ns, (8,), 8, rested_ns=rested_ns))
    return rested_ns


def drained(log: RunLog) -> tuple[list[tuple[str, int, int]], int]:
    """Variant, start and end of each window, and until when all are known."""
    windows, known_until_ns = log.drain()
    return [(window.variant, window.start_ns, window.end_ns) for window in windows], known_until_ns


def test_batches_make_a_device_busy_and_between_them_it_rests(clock: Clock) -> None:
    log = RunLog()
    clock.now_ns = 100
    assert run(log, clock, end_ns=130) == 100
    clock.now_ns = 150
    assert run(log, clock, end_ns=160) == 20
    assert log.busy_ns() == 40
    clock.now_ns = 170
    assert drained(log) == ([("fp32", 100, 130), ("fp32", 150, 160)], 170)


def test_the_busy_time_never_decreases_though_a_lane_says_late_that_its_batch_has_ended(clock: Clock) -> None:
    log = RunLog()
    start_ns, _ = log.start()
    clock.now_ns = 50
    assert log.busy_ns() == 50
    log.finish(Window("fp32", start_ns, 30, (8,), 8))
    assert log.busy_ns() == 50
    run(log, clock, end_ns=80)
    assert log.busy_ns() == 60


def test_every_reader_gets_every_window_once(clock: Clock) -> None:
    log = RunLog()
    other = log.add_reader()
    clock.now_ns = 100
    run(log, clock, end_ns=130)
    assert [len(log.drain()[0]), len(log.drain()[0])] == [1, 0]
    assert [len(log.drain(other)[0]), len(log.drain(other)[0])] == [1, 0]


def test_nothing_is_known_after_the_start_of_a_running_batch(clock: Clock) -> None:
    log = RunLog()
    clock.now_ns = 100
    log.start()
    clock.now_ns = 110
    assert drained(log) == ([], 100)
    assert log.busy_ns() == 10


def test_what_runs_beside_batches_is_a_warm_up_of_which_nothing_is_learned(clock: Clock) -> None:
    log = RunLog()
    clock.now_ns = 100
    with log.beside("int8"):
        clock.now_ns = 200
    (window,), _ = log.drain()
    assert (window.variant, window.start_ns, window.end_ns) == ("int8", 100, 200)
    assert window.is_warmup
    assert window.is_first_run


def test_what_runs_beside_batches_does_not_make_the_device_busy_nor_let_it_rest(clock: Clock) -> None:
    log = RunLog()
    with log.beside("int8"):
        clock.now_ns = 100
        assert run(log, clock, end_ns=130) == 0
        assert log.busy_ns() == 30
        clock.now_ns = 200
    clock.now_ns = 230
    assert run(log, clock, end_ns=240) == 30  # since the end of what ran beside
    assert log.busy_ns() == 40


def test_nobody_waits_for_the_end_of_what_runs_beside(clock: Clock) -> None:
    log = RunLog()
    clock.now_ns = 100
    with log.beside("int8"):
        clock.now_ns = 150
        assert drained(log) == ([("int8", 100, 150)], 150)
        clock.now_ns = 160
        log.start()
        clock.now_ns = 170
        assert drained(log) == ([("int8", 150, 170)], 160)
        clock.now_ns = 200
    assert drained(log) == ([("int8", 170, 200)], 160)
    assert drained(log) == ([], 160)


def test_what_fails_has_run_too(clock: Clock) -> None:
    log = RunLog()

    def build() -> None:
        with log.beside("int8"):
            clock.now_ns = 50
            raise MemoryError

    with pytest.raises(MemoryError):
        build()
    clock.now_ns = 60
    assert drained(log) == ([("int8", 0, 50)], 60)
