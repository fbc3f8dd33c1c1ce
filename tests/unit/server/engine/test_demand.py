"""How much callers have asked for lately, and what is to be expected of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.fixtures.queued import request
from tests.fixtures.shared_device import Call, SharedDevice
from wattserve_server.engine.fair import Ahead, FairQueue, ToCome, within
from wattserve_server.engine.pace import LOOK_NS, MOST_ASKED, MOST_EXPECTED, Demand, Expected
from wattserve_server.engine.policy import NORMAL_PRIORITY

SECOND_NS = 1_000_000_000


@dataclass
class Asking:
    """Requests at an even pace."""

    demand: Demand = field(default_factory=Demand)
    now_ns: int = 0

    def ask(self, caller: str, count: int, tokens: int = 100, every_ns: int = SECOND_NS // 10) -> None:
        for _ in range(count):
            self.demand.came(caller, self.now_ns)
            self.demand.let_in(caller, "fp32", tokens, self.now_ns)
            self.now_ns += every_ns

    def expected_tokens_s(self) -> dict[str, float]:
        return {name: each.rate * 1e9 for name, each in self.demand.expected(self.now_ns).items()}


def test_as_much_is_expected_as_was_asked_for_lately() -> None:
    asking = Asking()
    asking.ask("steady", 200)
    assert asking.expected_tokens_s() == {"steady": pytest.approx(1000, rel=0.1)}


@pytest.mark.parametrize("every_s", [0.2, 0.5])
def test_who_stays_away_for_longer_than_between_his_requests_is_expected_no_more(every_s: float) -> None:
    asking = Asking()
    asking.ask("steady", 50, every_ns=round(every_s * SECOND_NS))
    asking.now_ns += round(3 * every_s * SECOND_NS)
    assert 0.2 * 100 / every_s < asking.expected_tokens_s()["steady"] < 100 / every_s
    asking.now_ns += round(10 * every_s * SECOND_NS)
    assert not asking.expected_tokens_s()


def test_a_few_calls_at_once_are_soon_over() -> None:
    asking = Asking()
    asking.ask("burst", 4, every_ns=SECOND_NS // 1000)
    assert asking.expected_tokens_s()
    asking.now_ns += LOOK_NS + SECOND_NS // 1000
    assert not asking.expected_tokens_s()


def test_nothing_is_expected_of_who_has_come_once() -> None:
    asking = Asking()
    asking.ask("once", 1, tokens=100_000)
    assert not asking.expected_tokens_s()


def test_of_who_has_just_begun_as_much_is_expected_as_of_who_began_long_ago() -> None:
    asking = Asking()
    asking.ask("new", 11)
    assert asking.expected_tokens_s()["new"] == pytest.approx(1000, rel=0.15)


def test_two_requests_at_once_are_not_taken_for_a_flood() -> None:
    asking = Asking()
    asking.ask("two", 2, every_ns=0)
    assert asking.expected_tokens_s()["two"] < 220


def test_what_is_expected_of_the_caller_itself_does_not_go_before_it() -> None:
    queue = FairQueue()
    for number in range(20):
        for caller in ("who asks", "other"):
            queue.demand.came(caller, number * SECOND_NS // 10)
            queue.demand.let_in(caller, "fp32", 100, number * SECOND_NS // 10)
    (to_come,) = queue.to_come("who asks", NORMAL_PRIORITY, 2 * SECOND_NS, 1000)
    assert to_come.most == 1000
    most = queue.most_to_come("who asks", 2 * SECOND_NS, 3 * SECOND_NS)
    assert most == pytest.approx(to_come.expected.rate * SECOND_NS)
    assert queue.most_to_come("a third", 2 * SECOND_NS, 3 * SECOND_NS) == pytest.approx(2 * most)


def test_who_asks_for_less_than_others_do_at_a_time_has_none_of_them_before_it() -> None:
    queue = FairQueue()
    for number in range(20):
        queue.demand.came("large", number)
        queue.demand.let_in("large", "fp32", 100, number)
    assert queue.to_come("small", NORMAL_PRIORITY, 20, 101)
    assert not queue.to_come("small", NORMAL_PRIORITY, 20, 100)


def test_of_a_request_that_was_refused_before_it_was_looked_at_the_size_is_the_callers_others() -> None:
    asking = Asking()
    asking.ask("flood", 20, tokens=500)
    for _ in range(20):
        asking.demand.refused("flood", 1, asking.now_ns)
    assert asking.demand.expected(asking.now_ns)["flood"].size == pytest.approx(500)


def test_who_is_refused_asks_again_and_who_is_let_in_with_little_of_it_for_no_more_than_his_part() -> None:
    asking = Asking()
    asking.ask("flood", 50)
    all_let_in = asking.expected_tokens_s()["flood"]
    for factor, refused in ((2.0, 50), (MOST_ASKED, 1000)):
        other = Asking()
        for _ in range(50):
            for _ in range(refused // 50):
                other.demand.came("flood", other.now_ns)
                other.demand.refused("flood", 100, other.now_ns)
            other.ask("flood", 1)
        assert other.expected_tokens_s()["flood"] == pytest.approx(factor * all_let_in, rel=0.1)


def test_of_very_many_callers_the_last_ones_are_expected() -> None:
    asking = Asking()
    for _ in range(2):
        for number in range(MOST_EXPECTED + 50):
            asking.ask(f"caller {number}", 1, every_ns=1000)
    expected = asking.expected_tokens_s()
    assert [*expected][:1] == [f"caller {MOST_EXPECTED + 49}"]
    assert len(expected) == MOST_EXPECTED


def test_what_is_expected_is_reckoned_anew_after_a_moment() -> None:
    asking = Asking()
    asking.ask("first", 2, every_ns=0)
    assert [*asking.expected_tokens_s()] == ["first"]
    asking.ask("second", 2, every_ns=0)
    assert [*asking.expected_tokens_s()] == ["first"]
    asking.now_ns += LOOK_NS
    assert [*asking.expected_tokens_s()] == ["second", "first"]


def test_no_more_is_expected_than_what_is_its_part() -> None:
    to_come = [ToCome(Expected("int8", size=50.0, rate=1e-6), most=400.0)] * 2
    assert within(100_000_000, to_come) == [Ahead("int8", 4.0, 200.0)]
    assert within(10 * SECOND_NS, to_come) == [Ahead("int8", 16.0, 800.0)]


def test_nothing_is_expected_of_who_is_never_let_in() -> None:
    device = SharedDevice(max_queue=1)
    assert device.put(request([32], at_ns=0), 0)
    for _ in range(3):
        assert not device.put(request([32, 32], at_ns=device.now_ns, caller="asks"), device.now_ns)
    assert not device.queue._waiting.demand.expected(device.now_ns)


@pytest.mark.parametrize("leaves", ["cancelled", "late"])
def test_what_leaves_without_having_run_is_not_expected_again(leaves: str) -> None:
    device = SharedDevice(max_queue=100)
    device.serve([Call(0, "before", (32,))])
    device.put(request([32] * 40, at_ns=device.now_ns, caller="others"), device.now_ns)
    device.run()
    for _ in range(20):
        limit_ns = None if leaves == "cancelled" else device.now_ns + 500_000_000
        made = request([32], at_ns=device.now_ns, caller="ghost", deadline_ns=limit_ns)
        assert device.put(made, device.now_ns)
        if leaves == "cancelled":
            assert device.queue.withdraw(made) == 1
        device.now_ns += 50_000_000
    assert "ghost" in device.queue._waiting.demand._comers
    if leaves == "late":
        device.now_ns += 500_000_000
        device.run()
        assert device.late["ghost"] == 20
    device.now_ns += LOOK_NS
    assert not device.queue._waiting.demand.expected(device.now_ns)


def test_what_has_begun_to_run_is_expected_again_though_the_rest_is_withdrawn() -> None:
    device = SharedDevice(max_queue=100)
    made = [request([32] * 40, at_ns=0, caller="leaves") for _ in range(2)]
    for each in made:
        device.put(each, 0)
        device.run()
        device.queue.withdraw(each)
    assert device.queue._waiting.demand._comers["leaves"].asked.requests > 1.5
