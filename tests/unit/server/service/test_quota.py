"""What a tenant may use, by a clock of the test's own."""

from __future__ import annotations

import asyncio

import pytest

from wattserve_server.errors import OverloadedError
from wattserve_server.service.caller import Caller
from wattserve_server.service.keys import new_key
from wattserve_server.service.quota import Quotas
from wattserve_server.service.status import failure_of


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def caller(tenant: str = "shop", rate: float = 0.0, in_flight: int = 0) -> Caller:
    _, key = new_key(tenant, ["predict"], rate, in_flight, [])
    return Caller(tenant, key.may, tenant, key)


def taken(quotas: Quotas, who: Caller, most: int = 100) -> int:
    """How many requests pass now."""
    for count in range(most):
        try:
            quotas.take(who)
        except OverloadedError:
            return count
    return most


def test_a_second_holds_as_many_requests_as_it_says(clock: Clock) -> None:
    quotas, shop = Quotas(clock), caller(rate=10)
    assert taken(quotas, shop) == 10
    clock.now_s += 0.5
    assert taken(quotas, shop) == 5
    clock.now_s += 3600
    assert taken(quotas, shop) == 10, "a rest earns one second's, no more"


def test_less_than_one_a_second_lets_one_through_at_a_time(clock: Clock) -> None:
    quotas, shop = Quotas(clock), caller(rate=0.25)
    assert taken(quotas, shop) == 1
    clock.now_s += 3.9
    assert taken(quotas, shop) == 0
    clock.now_s += 0.1
    assert taken(quotas, shop) == 1


def test_who_is_refused_is_told_when_to_come_and_then_passes(clock: Clock) -> None:
    quotas, shop = Quotas(clock), caller(rate=4)
    taken(quotas, shop)
    with pytest.raises(OverloadedError) as caught:
        quotas.take(shop)
    assert caught.value.limit == "tenant_rate"
    failure = failure_of(caught.value)
    assert failure.reaction.code.name == "RESOURCE_EXHAUSTED"
    assert failure.retry_after_ms == 250
    clock.now_s += failure.retry_after_ms / 1000
    quotas.take(shop)


def test_keys_of_one_tenant_share_its_time_and_other_tenants_have_their_own(clock: Clock) -> None:
    quotas = Quotas(clock)
    assert taken(quotas, caller(rate=10), most=5) == 5
    assert taken(quotas, caller(rate=100)) == 50, "half of the second was left"
    assert taken(quotas, caller("bank", rate=10)) == 10


def test_only_so_many_predictions_are_in_flight(clock: Clock) -> None:
    quotas, shop = Quotas(clock), caller(in_flight=2)
    quotas.begin(shop)
    quotas.begin(caller(in_flight=2))
    with pytest.raises(
        OverloadedError, match="tenant shop has as many predictions in flight as it may: 2"
    ) as caught:
        quotas.begin(shop)
    assert caught.value.limit == "tenant_in_flight"
    assert quotas.in_flight == {"shop": 2}
    quotas.end(shop)
    quotas.end(shop)
    quotas.begin(shop)
    assert quotas.in_flight == {"shop": 1}


async def test_a_stream_is_read_twice_as_fast_as_its_tenant_may_ask_and_once_a_second_at_least(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_s = list[float]()

    async def sleep(seconds: float) -> None:
        waited_s.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    quotas, shop, slow = Quotas(clock), caller(rate=2), caller("slow", rate=0.001)
    for _ in range(6):
        await quotas.turn(shop)
    assert waited_s == [0.25, 0.5]
    clock.now_s += 10
    await quotas.turn(shop)
    for _ in range(3):
        await quotas.turn(slow)
    assert waited_s == [0.25, 0.5, 1.0, 2.0]
    for free in (caller("free"), Caller("ipv4:10.0.0.1")):
        await quotas.turn(free)
        await quotas.turn(free)
    assert len(waited_s) == 4


async def test_a_stream_that_ends_while_it_waits_gives_its_turn_back(clock: Clock) -> None:
    quotas, slow = Quotas(clock), caller(rate=0.001)
    await quotas.turn(slow)
    for _ in range(1000):
        waiting = asyncio.create_task(quotas.turn(slow))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    clock.now_s += 1
    await asyncio.wait_for(quotas.turn(slow), timeout=60)


def test_a_request_that_costs_more_keeps_the_next_one_waiting(clock: Clock) -> None:
    quotas, shop = Quotas(clock), caller(rate=10)
    quotas.take(shop)
    quotas.take_more(shop, 29)
    with pytest.raises(OverloadedError) as caught:
        quotas.take(shop)
    assert caught.value.retry_after_s == pytest.approx(2.1)
    quotas.take_more(caller("free"), 29)
    quotas.take(caller("free"))


def test_without_a_limit_and_without_a_key_everything_passes(clock: Clock) -> None:
    quotas = Quotas(clock)
    assert taken(quotas, caller(), most=1000) == 1000
    quotas.take(Caller("unix:"))
