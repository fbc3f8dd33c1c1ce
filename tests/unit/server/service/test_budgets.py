"""Budgets of tenants: what counts, when they refuse, when they begin anew; on a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest

from tests.fixtures.account_books import finished
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt
from wattserve_server.errors import ConfigError, EnergyLimitError, LawUnknownError, SpentError
from wattserve_server.service.budget import Budget, begun_hour, seconds_left
from wattserve_server.service.budgets import MARGIN, Budgets
from wattserve_server.service.generation import Running
from wattserve_server.service.keys import ApiKey, Keys
from wattserve_server.service.spending import Spending

NOON_S = 1_800_014_400.0  # 2027-01-15T12:00Z
HOUR = int(NOON_S) // 3600


def key(*budgets: str, tenant: str = "shop") -> ApiKey:
    return ApiKey("0" * 12, "0" * 64, tenant, ("predict",), budgets=budgets)


@dataclass
class Rig:
    """A book that says what it is told, and a clock."""

    spent: dict[tuple[str, str, int], int] = field(default_factory=dict)  # by server, tenant, hour
    now_s: float = NOON_S + 600
    keys: list[ApiKey] = field(default_factory=list)

    def made(self) -> Budgets:
        return Budgets("here", lambda: Keys(self.keys), self.by, lambda: self.now_s)

    def by(self, first: int, end: int) -> dict[tuple[str, str], int]:
        sums: dict[tuple[str, str], int] = {}
        for (server, tenant, hour), uj in self.spent.items():
            if first <= hour < end:
                sums[server, tenant] = sums.get((server, tenant), 0) + uj
        return sums


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("hard 500 J/day", Budget("hard", 500_000_000, "day")),
        ("soft 0.5kWh / month", Budget("soft", 1_800_000 * 10**6, "month")),
        ("hard 2 Wh/hour", Budget("hard", 7200 * 10**6, "hour")),
    ],
)
def test_a_budget_is_read(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize(
    "text",
    ["", "500 J/day", "hard 500/day", "hard 500 J", "hard 5 J/week", "hard 1.2.3 J/day", "hard -1 J/day"],
)
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="such as `hard 500 J/day`"):
        key(text)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="to refuse a tenant, revoke its keys"):
        key("hard 0 J/day")


def test_periods_are_those_of_utc() -> None:
    assert begun_hour("hour", NOON_S + 600) == HOUR
    assert begun_hour("day", NOON_S + 600) == HOUR - 12
    assert begun_hour("month", NOON_S + 600) == HOUR - 12 - 14 * 24
    assert seconds_left("hour", NOON_S + 600) == 3000
    assert seconds_left("day", NOON_S + 600) == 12 * 3600 - 600
    assert seconds_left("month", NOON_S + 600) == 17 * 86400 - 12 * 3600 - 600


def test_what_was_used_before_counts_and_the_period_ends() -> None:
    rig = Rig({("here", "shop", HOUR): 300, ("there", "shop", HOUR - 5): 150, ("here", "lab", HOUR): 10**9})
    budgets = rig.made()
    spent = [budgets.spent_uj("shop", period) for period in ("hour", "day", "month")]
    assert spent == [300, 450, 450]
    assert budgets.check("shop", key("hard 0.001 J/day")) == ""
    with pytest.raises(SpentError, match=r"used 0\.00045 of 0\.0004 J/day") as caught:
        budgets.check("shop", key("hard 0.0004 J/day"))
    assert caught.value.retry_after_s == 12 * 3600 - 600
    rig.now_s += 12 * 3600
    assert budgets.check("shop", key("hard 0.0004 J/day")) == ""
    assert budgets.spent_uj("shop", "month") == 450


def test_a_clock_that_is_set_back_forgets_nothing_and_delays_no_period() -> None:
    rig = Rig({("here", "shop", HOUR): 300}, now_s=NOON_S + 400 * 86400)
    budgets = rig.made()
    budgets.final(finished("one", 200, 0, "shop"))
    rig.now_s = NOON_S + 600
    assert budgets.spent_uj("shop", "month") == 200
    budgets.final(finished("two", 50, 0, "shop"))
    rig.now_s = NOON_S + 3600
    assert [budgets.spent_uj("shop", period) for period in ("hour", "day")] == [0, 250]
    rig.now_s = NOON_S + 40 * 86400
    assert budgets.spent_uj("shop", "month") == 0


def test_a_restart_with_the_clock_set_back_forgets_nothing_of_the_day_and_the_month() -> None:
    later = {
        ("here", "shop", HOUR + 2): 300,
        ("there", "shop", HOUR + 1): 40,
        ("here", "shop", HOUR + 900): 7,
    }
    budgets = Rig(later).made()
    assert [budgets.spent_uj("shop", period) for period in ("hour", "day", "month")] == [0, 340, 340]


def test_a_soft_budget_warns() -> None:
    budgets = Rig({("here", "shop", HOUR): 300}).made()
    assert budgets.check_more("shop", key("soft 0.0004 J/hour"), "fp32", 200) == (
        "tenant shop has used 0.0003 of 0.0004 J/hour, and this would use 0.0002 J"
    )
    assert budgets.check("shop", key("soft 0.0003 J/hour")) == "tenant shop has used 0.0003 of 0.0003 J/hour"
    with pytest.raises(SpentError):
        budgets.check("shop", key("soft 0.0003 J/hour", "hard 0.0003 J/hour"))


def test_what_others_use_meanwhile_is_learned_and_never_counted_twice() -> None:
    rig = Rig()
    budgets = rig.made()
    budgets.final(finished("r1", 100, 10, "shop"))
    rig.spent = {("here", "shop", HOUR): 110, ("there", "shop", HOUR): 1000}  # it was written by now
    budgets.take(budgets.look())
    budgets.take(budgets.look())
    assert budgets.spent_uj("shop", "hour") == 1110
    looked = budgets.look()
    rig.now_s += 3600
    budgets.take(looked)  # of an hour that is over
    assert [budgets.spent_uj("shop", period) for period in ("hour", "day")] == [0, 1110]


def test_a_prediction_is_replaced_by_the_provisional_figure_and_that_by_the_settled_one() -> None:
    budgets = Rig().made()
    held = budgets.hold("shop", "fp32", 500)
    assert budgets.spent_uj("shop", "hour") == 500
    receipt = Receipt("r", "", "fp32", "cpu", 0, tenant="shop")
    receipt.lines.append(Line(receipt, 5))
    receipt.lines[0].enter(1)
    receipt.lines[0].ran(0, 1, (300,))
    budgets.opened(held, "r")
    budgets.ran(held, receipt)
    assert budgets.spent_uj("shop", "hour") == 300
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(receipt.lines[0], 200, 0.0, 20), ACCELERATOR)
    budgets.final(receipt)
    assert budgets.spent_uj("shop", "hour") == 220
    late = budgets.hold("shop", "fp32", 500)  # one that is final before its caller is told
    budgets.opened(late, "r2")
    done = finished("r2", 50, 0, "shop")
    budgets.final(done)
    assert budgets.spent_uj("shop", "hour") == 270
    budgets.ran(late, done)
    assert budgets.spent_uj("shop", "hour") == 270
    budgets.release(budgets.hold("shop", "fp32", 10**6))
    assert budgets.spent_uj("shop", "hour") == 270


def test_where_the_meter_fails_a_request_counts_as_it_was_foreseen() -> None:
    budgets = Rig().made()
    held, late = budgets.hold("shop", "fp32", 500), budgets.hold("shop", "fp32", 70)
    receipt = running("r1", 300)
    budgets.opened(held, "r1")
    budgets.opened(late, "r2")
    budgets.ran(held, receipt)
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(receipt.lines[0], None, 0.0, None, "no reading"), ACCELERATOR)
    budgets.final(receipt)
    assert budgets.spent_uj("shop", "hour") == 370
    done = finished("r2", None, 0, "shop")  # final before its caller is told
    budgets.final(done)
    budgets.ran(late, done)
    assert budgets.spent_uj("shop", "hour") == 370


def running(receipt_id: str = "r", foreseen_uj: int | None = None) -> Receipt:
    """One whose batch runs, or has ended where it says what it cost."""
    receipt = Receipt(receipt_id, "", "fp32", "cpu", 0, tenant="shop")
    receipt.lines.append(Line(receipt, 5))
    receipt.lines[0].enter(1)
    if foreseen_uj is not None:
        receipt.lines[0].ran(0, 1, (foreseen_uj,))
    return receipt


def test_what_is_not_final_counts_with_the_idle_draw_that_final_receipts_have_had() -> None:
    budgets, asks = Rig().made(), key("hard 0.001 J/hour")
    budgets.final(finished("r1", 100, 150, "lab"))  # nobody else has had any of this variant
    held = budgets.hold("shop", "fp32", 200)
    budgets.opened(held, "r2")
    assert budgets.spent_uj("shop", "hour") == 500
    words = r"used 0 of .*; what runs, .* counts 0\.0005 J, and this would use 0\.00055 J"
    with pytest.raises(SpentError, match=words):
        budgets.check_more("shop", asks, "fp32", 220)
    roomy = key(f"hard {MARGIN / 1000} J/hour")
    budgets.check_more("shop", roomy, "fp32", 200)
    with pytest.raises(SpentError, match="until it is settled, 8 times that must fit"):
        budgets.check_more("shop", roomy, "fp32", 220)
    budgets.check_more("shop", roomy, "int8", 220)  # of which nobody knows
    budgets.ran(held, running("r2", 100))
    assert budgets.spent_uj("shop", "hour") == 250
    budgets.final(finished("r3", 100, 50, "shop"))  # now by its own
    assert budgets.spent_uj("shop", "hour") == 150 + 150
    for number in range(100):
        budgets.final(finished(f"later-{number}", 1, 2, "shop"))
    # Lately the idle draw was twice the active energy.
    assert budgets.spent_uj("shop", "hour") == pytest.approx(150 + 300 + 300, rel=0.02)


@pytest.mark.parametrize("dearer", [1, 3, MARGIN])
def test_floods_that_cost_more_than_was_foreseen_are_charged_no_more_than_the_budget(dearer: int) -> None:
    budgets, asks = Rig().made(), key("hard 0.01 J/hour")
    budgets.final(finished("r", 40, 60, "shop"))
    for flood in range(40):
        let_in = []
        for number in range(flood % 32 + 1):
            try:
                budgets.check_more("shop", asks, "fp32", 40)
            except SpentError:
                continue
            let_in.append((f"{flood}-{number}", budgets.hold("shop", "fp32", 40)))
            budgets.opened(let_in[-1][1], let_in[-1][0])
        for receipt_id, held in let_in:
            budgets.ran(held, running(receipt_id, 40 * dearer))
            budgets.final(finished(receipt_id, 40 * dearer, 60 * dearer, "shop"))
    # One by itself may go as far over it as its own prediction was wrong.
    assert 10_000 - 100 < budgets.spent_uj("shop", "hour") <= 10_000 + 100 * (dearer - 1)


def test_who_leaves_while_his_request_runs_is_counted_until_it_is_final() -> None:
    budgets = Rig().made()
    spending = Spending(budgets, key("hard 0.001 J/hour"), "shop")
    spending.allow(Foreseeing(400), Hosted, [])  # type: ignore[arg-type]
    spending.opened(running())
    spending.ended(running())
    assert budgets.spent_uj("shop", "hour") == 400
    budgets.final(finished("r", 300, 0, "shop"))
    assert budgets.spent_uj("shop", "hour") == 300


def test_what_a_key_without_budgets_has_running_counts_for_its_tenants_others() -> None:
    unbounded, bounded = key(), key("hard 0.001 J/hour")
    budgets = Rig(keys=[bounded]).made()
    spending = Spending(budgets, unbounded, "shop")
    spending.allow(Foreseeing(400), Hosted, [])  # type: ignore[arg-type]
    spending.used(5000)  # of which nobody refuses it anything
    refuse = waiting(budgets, unbounded)
    refuse.assert_not_called()
    assert budgets.spent_uj("shop", "hour") == 5010
    with pytest.raises(SpentError, match=r"what runs, waits or is not settled yet counts 0\.00501 J"):
        Spending(budgets, bounded, "shop").check()
    spending.ended(None)
    refuse.spending.ended(None)
    assert budgets.spent_uj("shop", "hour") == 0


def test_what_nobody_bounds_is_not_foreseen_and_counts_once_it_has_run() -> None:
    rig, unbounded, other = Rig(), key(), key("hard 0.001 J/hour", tenant="bank")
    rig.keys = [other]
    budgets = rig.made()
    spending = Spending(budgets, unbounded, "shop")
    engine = Foreseeing(400)
    spending.allow(engine, Hosted, [])  # type: ignore[arg-type]
    assert not engine.was_asked
    bounded = key("hard 0.001 J/hour")
    rig.keys = [other, bounded]  # the file has changed
    spending.used(5000)
    with pytest.raises(SpentError, match=r"what runs, waits or is not settled yet counts 0\.005 J"):
        Spending(budgets, bounded, "shop").check()


def test_a_key_that_names_tenants_holds_its_budget_against_each_of_them() -> None:
    rig = Rig({("here", "shop", HOUR): 800})
    proxy = ApiKey(
        "0" * 12, "0" * 64, "proxy", ("predict",), names=("shop", "bank"), budgets=("hard 0.001 J/day",)
    )
    rig.keys = [proxy]
    budgets = rig.made()
    with pytest.raises(SpentError, match="tenant shop has used"):
        Spending(budgets, proxy, "shop").allow(Foreseeing(300), Hosted, [])  # type: ignore[arg-type]
    spending = Spending(budgets, proxy, "bank")
    spending.allow(Foreseeing(300), Hosted, [])  # type: ignore[arg-type]
    assert [(tenant, spent_uj) for tenant, _, spent_uj in budgets.told()] == [
        ("bank", 300),
        ("proxy", 0),
        ("shop", 800),
    ]


def test_many_at_once_leave_room_for_what_they_cost_beyond_their_predictions() -> None:
    budgets, asks = Rig().made(), key("hard 0.001 J/hour")
    for _ in range(12):
        budgets.check_more("shop", asks, "fp32", 10)
        budgets.hold("shop", "fp32", 10)
    with pytest.raises(SpentError, match="this would use 1e-05 J; until it is settled, 8 times") as caught:
        budgets.check_more("shop", asks, "fp32", 10)
    assert caught.value.retry_after_s == 1
    budgets.check("shop", asks)  # what waits goes on
    soft = key("soft 0.001 J/hour")
    assert budgets.check_more("shop", soft, "fp32", 10) == ""


def test_who_has_only_a_prediction_in_his_way_is_told_to_ask_again_soon() -> None:
    budgets, asks = Rig().made(), key("hard 0.001 J/hour")
    with pytest.raises(SpentError, match=r"has used 0 of .*, and this would use 0\.0011 J") as caught:
        budgets.check_more("shop", asks, "fp32", 1100)
    assert caught.value.retry_after_s == 10


def test_a_generation_counts_what_it_has_used_beyond_its_prompt() -> None:
    budgets, asks = Rig().made(), key("hard 0.001 J/hour")
    spending = Spending(budgets, asks, "shop")
    spending.allow(Foreseeing(100), Hosted, [])  # type: ignore[arg-type]
    for so_far_uj, counted_uj in ((60, 100), (400, 400), (1000, 1000)):
        spending.used(so_far_uj)
        assert budgets.spent_uj("shop", "hour") == counted_uj
    with pytest.raises(SpentError):
        budgets.check("shop", asks)
    spending.ended(None)
    assert budgets.spent_uj("shop", "hour") == 0


def test_a_generation_that_nobody_reads_counts_too() -> None:
    budgets, asks = Rig().made(), key("hard 0.001 J/hour")
    spending = Spending(budgets, asks, "shop")
    spending.allow(Foreseeing(100), Hosted, [])  # type: ignore[arg-type]
    generation = Mock(on_used=None)
    Running(Mock(spending=spending), Mock(), generation, 0)
    generation.on_used(400)
    assert budgets.spent_uj("shop", "hour") == 400


def waiting(budgets: Budgets, asks: ApiKey, foreseen_uj: int = 10, has_begun: bool = False) -> Mock:
    """A generation that waits, or has begun; what it was told when it was refused."""
    spending, refuse = Spending(budgets, asks, asks.tenant), Mock(return_value=not has_begun)
    spending.allow(Foreseeing(foreseen_uj), Hosted, [])  # type: ignore[arg-type]
    Running(Mock(spending=spending), Mock(), Mock(refuse=refuse), 0)
    refuse.spending = spending
    return refuse


def test_generations_that_wait_are_refused_once_others_have_used_the_budget_up() -> None:
    budgets, asks = Rig().made(), key("hard 0.001 J/hour")
    runs = waiting(budgets, asks, has_begun=True)
    first, last = waiting(budgets, asks), waiting(budgets, asks)
    others = waiting(budgets, key("hard 0.001 J/hour", tenant="bank"))
    runs.spending.used(979)
    assert not first.called
    assert not last.called
    runs.spending.used(985)  # who came last goes, and then the other one has room
    (error,) = last.call_args.args
    assert isinstance(error, SpentError)
    assert "shop has used 0 of 0.001 J/hour; what runs" in str(error)
    assert not first.called
    assert budgets.spent_uj("shop", "hour") == 995
    runs.spending.used(2000)
    assert first.called
    assert last.call_count == 1
    assert budgets.spent_uj("shop", "hour") == 2000
    assert not others.called
    for each in (first, last):
        each.spending.ended(None)
    assert budgets.spent_uj("shop", "hour") == 2000


def test_a_generation_waits_no_longer_once_it_has_ended() -> None:
    budgets, asks = Rig().made(), key("hard 0.001 J/hour")
    refuse = waiting(budgets, asks)
    refuse.spending.ended(None)
    runs = waiting(budgets, asks, has_begun=True)
    runs.spending.used(2000)
    assert not refuse.called


def test_what_other_servers_use_refuses_those_that_wait_here_too() -> None:
    rig = Rig()
    budgets = rig.made()
    refuse = waiting(budgets, key("hard 0.001 J/hour"))
    rig.spent["there", "shop", HOUR] = 995
    budgets.take(budgets.look())
    assert refuse.called


def test_a_soft_budget_refuses_nobody_who_waits() -> None:
    budgets, asks = Rig().made(), key("soft 0.001 J/hour")
    refuse, runs = waiting(budgets, asks), waiting(budgets, asks, has_begun=True)
    runs.spending.used(2000)
    assert not refuse.called


def test_a_generation_that_is_final_before_its_stream_is_read_counts_once() -> None:
    budgets = Rig().made()
    spending = Spending(budgets, key("hard 0.001 J/hour"), "shop")
    spending.allow(Foreseeing(100), Hosted, [])  # type: ignore[arg-type]
    receipt = finished("r", 430, 20, "shop")
    spending.opened(receipt)
    spending.used(400)
    budgets.final(receipt)
    assert budgets.spent_uj("shop", "hour") == 450
    spending.used(410)
    spending.ended(receipt)
    assert budgets.spent_uj("shop", "hour") == 450


def test_what_only_waits_for_others_to_become_final_may_ask_again_soon() -> None:
    rig = Rig({("here", "shop", HOUR): 300})
    budgets, asks = rig.made(), key("hard 0.001 J/hour")
    held = budgets.hold("shop", "fp32", 500)
    with pytest.raises(SpentError) as caught:
        budgets.check_more("shop", asks, "fp32", 400)
    assert caught.value.retry_after_s == 1
    with pytest.raises(SpentError) as caught:
        budgets.check_more("shop", asks, "fp32", 800)
    assert caught.value.retry_after_s == 10
    budgets.release(held)
    assert budgets.check_more("shop", asks, "fp32", 400) == ""


def test_budgets_are_told_for_each_tenant() -> None:
    rig = Rig({("here", "shop", HOUR): 7})
    proxy = ApiKey("1" * 12, "1" * 64, "proxy", ("predict",), names=("shop",), budgets=("hard 9 J/day",))
    rig.keys = [
        key("hard 1 J/day", "soft 3 J/hour", "soft 2 J/hour", "soft 5 J/day"),
        ApiKey("2" * 12, "2" * 64, "lab", ("predict",)),
        proxy,
    ]
    assert list(rig.made().told()) == [  # the least of a kind and a period
        ("proxy", Budget("hard", 9 * 10**6, "day"), 0),
        ("shop", Budget("hard", 10**6, "day"), 7),
        ("shop", Budget("soft", 2 * 10**6, "hour"), 7),
        ("shop", Budget("soft", 5 * 10**6, "day"), 7),
    ]


class Foreseeing:
    """An engine that says what a request would cost."""

    def __init__(self, uj: int | None) -> None:
        self.uj = uj
        self.was_asked = False

    def foreseen_uj(self, items: object, hosted: object, scores: bool) -> int | None:
        self.was_asked = True
        return self.uj


class Hosted:
    class choice:
        name = "fp32"


def test_a_request_says_what_it_may_cost() -> None:
    def allow(foreseen_uj: int | None, most_uj: int | None) -> None:
        Spending().allow(Foreseeing(foreseen_uj), Hosted, [], most_uj)  # type: ignore[arg-type]

    allow(100, 100)
    allow(None, None)
    with pytest.raises(
        EnergyLimitError, match="cost about 101 microjoules with fp32, more than 100"
    ) as caught:
        allow(101, 100)
    assert (caught.value.predicted_energy_uj, caught.value.field) == (101, "max_energy_uj")
    with pytest.raises(LawUnknownError, match="not known beforehand"):
        allow(None, 100)
