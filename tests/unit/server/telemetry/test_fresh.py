"""A page is made once a second on the average, however many ask, and is never older than the question."""

from __future__ import annotations

import threading

from wattserve_server.telemetry.fresh import BURST, PERIOD_S, Fresh


class Maker:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.made = 0
        self.page = Fresh(self.make, lambda accept: accept, lambda: self.now_s, self.sleep)

    def make(self, accept: str) -> tuple[str, bytes]:
        self.made += 1
        return accept, str(self.made).encode()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_who_asks_without_an_end_gets_a_page_a_second() -> None:
    maker = Maker()
    for number in range(BURST):
        assert maker.page("") == ("", str(number + 1).encode())
    assert maker.now_s == 100.0
    for number in range(10):
        maker.page("")
        assert maker.now_s == 100.0 + (number + 1) * PERIOD_S


def test_after_a_rest_there_is_no_wait() -> None:
    maker = Maker()
    for _ in range(BURST):
        maker.page("")
    maker.now_s += PERIOD_S
    maker.page("")
    assert (maker.made, maker.now_s) == (BURST + 1, 100.0 + PERIOD_S)


def test_each_kind_of_page_is_its_own() -> None:
    maker = Maker()
    assert [maker.page(kind)[0] for kind in ("plain", "open", "plain")] == ["plain", "open", "plain"]


def test_those_who_wait_together_get_one_page() -> None:
    begun, may_end, came, made = threading.Event(), threading.Event(), threading.Semaphore(0), list[str]()

    def make(accept: str) -> tuple[str, bytes]:
        made.append(accept)
        begun.set()
        assert may_end.wait(30)
        return "", b""

    page = Fresh(make, lambda accept: came.release(), sleep=lambda seconds: None)
    threads = [threading.Thread(target=page, args=("",)) for _ in range(9)]
    threads[0].start()
    assert begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    for _ in threads:
        assert came.acquire(timeout=30)
    may_end.set()
    for thread in threads:
        thread.join()
    assert len(made) == 2
