"""What a tenant may use, by a clock of the test's own."""

from __future__ import annotations

from contextlib import ExitStack

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
    with ExitStack() as flying:
        flying.enter_context(quotas.prediction(shop))
        flying.enter_context(quotas.prediction(caller(in_flight=2)))
        with pytest.raises(OverloadedError, match="tenant shop has 2 predictions in flight") as caught:
            flying.enter_context(quotas.prediction(shop))
        assert caught.value.limit == "tenant_in_flight"
        assert quotas.in_flight == {"shop": 2}
    with quotas.prediction(shop):
        assert quotas.in_flight == {"shop": 1}


def test_without_a_limit_and_without_a_key_everything_passes(clock: Clock) -> None:
    quotas = Quotas(clock)
    assert taken(quotas, caller(), most=1000) == 1000
    quotas.take(Caller("unix:"))
