"""How much of the idle draw receipts show, by policy; never more than was booked, and every joule stays where
it was. The idle draw is declared: 10 W, that is, 1 J in 100 ms."""

import random

import pytest

from tests.fixtures.windows import MS, accountant, reading, window
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.attribution import IDLE_POLICIES
from wattserve_server.energy.inflight import Visit
from wattserve_server.energy.receipt import ACCELERATOR, HOST, Charge, Line, Outcome, Receipt, State


def started(policy: str) -> Accountant:
    books = accountant(idle_policy=policy)
    books.observe(reading(-100, 0))
    books.observe(reading(0, 1_000_000))
    books.advance([], 0)
    return books


@pytest.mark.parametrize(
    ("policy", "share_uj"), [("busy-time", 300_000), ("none", 0), ("by-active", 1_000_000), ("by-time", 0)]
)
def test_a_batch_alone(policy: str, share_uj: int) -> None:
    books = started(policy)
    books.observe(reading(100, 7_000_000))
    (charge,) = books.advance([window(10, 40)], 100 * MS)
    assert charge.energy_uj == pytest.approx(5_000_000, abs=2)
    assert charge.idle_share_uj == pytest.approx(share_uj, abs=2)
    assert books.ledger.idle_shared_uj == charge.idle_share_uj
    assert books.ledger.idle_uj == pytest.approx(2_000_000, abs=2)


def test_an_interval_is_shared_by_what_is_charged_in_it() -> None:
    books = started("by-active")
    books.observe(reading(100, 7_000_000))
    charges = books.advance([window(10, 40), window(50, 60)], 100 * MS)
    whole_uj = sum(charge.energy_uj or 0 for charge in charges)
    for charge in charges:
        assert charge.idle_share_uj == pytest.approx(1_000_000 * (charge.energy_uj or 0) / whole_uj, abs=2)
    books.observe(reading(200, 8_000_000))
    books.advance([], 200 * MS)  # nothing ran: it is nobody's
    assert books.ledger.idle_shared_uj == pytest.approx(1_000_000, abs=2)
    assert books.ledger.idle_uj == pytest.approx(3_000_000, abs=2)


def visit(name: str, at_ms: int, *, has_left: bool = False, ran: bool = True) -> Visit:
    owner = Receipt(name, "", "fp32", "cpu", 0, idle_policy="by-time")
    return Visit(owner, at_ms * MS, has_left, has_left and ran)


def shares(books: Accountant) -> dict[str, int | None]:
    """Told since the last call, by receipt id."""
    told = {receipt.receipt_id: amount_uj for receipt, amount_uj in books.idle_shares}
    books.idle_shares = []
    return told


def test_an_interval_is_shared_by_the_time_that_requests_were_in_flight() -> None:
    books = started("by-time")
    books.see_requests([visit("whole", 0), visit("half", 50), visit("half", 100, has_left=True)])
    books.observe(reading(100, 2_000_000))
    books.advance([], 100 * MS)
    assert shares(books) == {"half": pytest.approx(333_333, abs=1)}
    assert books.pending_shares == 0
    books.see_requests([visit("whole", 150, has_left=True)])
    assert books.pending_shares == 1
    books.observe(reading(200, 3_000_000))
    books.advance([], 200 * MS)
    assert shares(books) == {"whole": pytest.approx(1_666_667, abs=1)}  # nobody else was there
    books.observe(reading(300, 4_000_000))
    books.advance([], 300 * MS)  # nobody was: it is nobody's
    assert (books.ledger.idle_uj, books.ledger.idle_shared_uj) == (4_000_000, 2_000_000)


def test_who_leaves_without_having_run_is_shown_nothing() -> None:
    books = started("by-time")
    books.see_requests([visit("waited", 0), visit("ran", 0)])
    books.see_requests([visit("waited", 50, has_left=True, ran=False), visit("ran", 100, has_left=True)])
    books.observe(reading(100, 2_000_000))
    books.advance([], 100 * MS)
    assert shares(books) == {"ran": pytest.approx(666_667, abs=1)}
    assert books.ledger.idle_shared_uj == pytest.approx(666_667, abs=1)


def test_where_the_meter_says_nothing_nothing_is_known_and_nobody_waits() -> None:
    books = accountant(idle_policy="by-time")  # never read
    books.see_requests([visit("early", 0), visit("early", 50, has_left=True)])
    books.advance([], 100 * MS)
    assert shares(books) == {"early": None}
    books = started("by-time")
    books.see_requests([visit("late", 0), visit("late", 150, has_left=True)])
    for at_ms in range(100, 4000, 100):
        books.failed(at_ms * MS, "the meter is away")
        books.advance([], at_ms * MS)
    assert shares(books) == {"late": None}
    assert books.pending_shares == 0


def test_a_receipt_of_which_nothing_ran_waits_for_no_share() -> None:
    owner = Receipt("r-1", "", "fp32", "cuda:0", 0, idle_policy="by-time")
    owner.lines.append(Line(owner, 5))
    assert not owner.is_final
    owner.end(Outcome.CANCELLED)
    assert owner.is_final


def test_a_receipt_is_final_when_every_part_has_shared_its_idle_draw() -> None:
    owner = Receipt("r-1", "", "fp32", "cuda:0", 0, (ACCELERATOR, HOST), idle_policy="by-time")
    lines = [Line(owner, 5), Line(owner, 5)]
    owner.lines += lines
    for line in lines:
        line.enter(2)
        line.ran(5, 7, (900, 700))
    owner.charge(Charge(lines[0], 1000, 30.0, 0), ACCELERATOR)
    owner.end(Outcome.COMPLETED)
    owner.share_idle(7, ACCELERATOR)  # before the other line is charged
    owner.charge(Charge(lines[1], 1000, 30.0, 0), ACCELERATOR)
    for line in lines:
        owner.charge(Charge(line, 500, 40.0, 0), HOST)
    assert (owner.is_final, owner.state) == (False, State.PROVISIONAL)
    owner.share_idle(4, HOST)
    assert (owner.is_final, owner.state, owner.idle_share_uj) == (True, State.SETTLED, 11)
    assert owner.of_part(ACCELERATOR).idle_share_uj == 7
    assert sum(tally.booked_idle_uj for line in lines for tally in line.tallies) == 11


@pytest.mark.parametrize("policy", IDLE_POLICIES)
@pytest.mark.parametrize("seed", range(5))
def test_every_joule_stays_where_it_is_under_any_policy(policy: str, seed: int) -> None:
    """The same world under each policy: energies are alike, and receipts show what the ledger says."""
    told: dict[str, list[Charge]] = {}
    active_uj = {}
    for each in ("busy-time", policy):
        draw = random.Random(seed)
        books, charges, measured_uj, at_ms = started(each), [], 1_000_000, 0
        for edge in range(1, 60):
            windows = []
            while at_ms < 100 * edge - 30 and draw.random() < 0.8:
                begin_ms = at_ms + draw.randrange(1, 20)
                at_ms = begin_ms + draw.randrange(1, 30)
                windows.append(window(begin_ms, at_ms))
                measured_uj += draw.randrange(200_000, 3_000_000)
            measured_uj += 1_000_000
            if edge % 20 == 7:
                books.failed(100 * edge * MS, "the meter is away")
            else:
                books.observe(reading(100 * edge, measured_uj))
            charges += books.advance(windows, 100 * edge * MS)
            ledger = books.ledger
            assert ledger.residual_uj() == 0
            assert 0 <= ledger.idle_shared_uj <= ledger.idle_uj
            assert sum(charge.idle_share_uj or 0 for charge in charges) == ledger.idle_shared_uj
        told[each], active_uj[each] = charges, books.ledger.active_uj
    assert active_uj["busy-time"] == active_uj[policy]
    energies = [[charge.energy_uj for charge in charges] for charges in told.values()]
    assert energies[0] == energies[-1]
