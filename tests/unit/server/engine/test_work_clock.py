"""A batch took the CPU time of its own work, and its part of what the event loop does for all."""

import threading
import time

from wattserve_server.engine.lane import WorkClock, this_thread

MS = 1_000_000


class Process:
    """Its event loop and its other threads, whose CPU time is spent by hand."""

    def __init__(self) -> None:
        self.loop_ns = self.others_ns = 0
        self.clock = WorkClock(lambda: self.loop_ns, lambda: self.loop_ns + self.others_ns)

    def batch(self, own_ms: float, loop_ms: float, answered: int, is_after_rest: bool = False) -> float:
        """Milliseconds that it is said to have taken."""
        self.clock.start(is_after_rest)
        self.others_ns += round(own_ms * MS)
        self.loop_ns += round(loop_ms * MS)
        return self.clock.took_ns(answered) / MS


def test_what_the_loop_does_beside_a_trial_is_not_the_trials() -> None:
    assert Process().batch(own_ms=3, loop_ms=2, answered=0) == 3


def test_all_that_the_loop_did_is_told_once_and_by_the_sequence() -> None:
    process = Process()
    told = 0.0
    for _ in range(200):  # the loop answers four while two are computed, and the other way round
        four, two = process.batch(4, 1, answered=4), process.batch(1, 2, answered=2)
        told += four + two
    assert abs(told - 200 * 8) < 0.01 * 200 * 8
    assert abs(four - (4 + 4 * 0.5)) < 0.1
    assert abs(two - (1 + 2 * 0.5)) < 0.1


def test_work_between_two_batches_is_for_requests_and_during_a_rest_for_none() -> None:
    busy, rested = Process(), Process()
    for process in (busy, rested):
        process.batch(1, 0, answered=1)
        process.loop_ns += 4 * MS
    assert busy.batch(1, 0, answered=1) > 2.9
    assert rested.batch(1, 0, answered=1, is_after_rest=True) == 1


def test_the_clock_is_of_the_thread_that_made_it() -> None:
    clock = this_thread()
    read: list[int] = []

    def look() -> None:
        for _ in range(2):
            read.append(clock())
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert 0 <= read[1] - read[0] < 10 * MS  # this thread only waited
