"""The pool, and what may be booked out of it."""

from __future__ import annotations

import math

import pytest

from tests.fixtures.windows import entry, window
from wattserve_server.energy.costlaw import Coefficients, LawView
from wattserve_server.energy.ledger import Books, Ledger

LAW = LawView({"fp32": Coefficients(1.0, 0.0)})


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def filled(ledger: Ledger, amount_uj: int) -> Books:
    books = Books(ledger)
    ledger.meter(amount_uj)
    books.count(amount_uj)
    return books


def test_nothing_is_booked_beyond_the_pool(ledger: Ledger) -> None:
    books = filled(ledger, 10)
    assert books.to_idle(6e-6) == 6e-6
    assert books.to_unattributed(1.0) == 4e-6
    assert books.to_warmup(1.0) == 0.0
    assert (ledger.idle_uj, ledger.unattributed_uj, ledger.warmup_uj) == (6, 4, 0)
    assert (ledger.pending_uj, ledger.residual_uj(), books.pool_j) == (0, 0, 0.0)


def test_a_negative_amount_books_nothing(ledger: Ledger) -> None:
    books = filled(ledger, 10)
    assert books.to_idle(-1.0) == 0.0
    assert books.pool_j == 10e-6


def test_what_is_metered_and_not_counted_yet_is_not_in_the_pool(ledger: Ledger) -> None:
    books = filled(ledger, 10)
    ledger.meter(90)  # a later edge, which has not been reached
    assert books.to_idle(1.0) == 10e-6
    assert ledger.pending_uj == 90


def test_a_batch_is_charged_to_its_lines_exactly(ledger: Ledger) -> None:
    books = filled(ledger, 1000)
    together = entry(window(0, 10, (8, 8, 8)))
    assert books.charge(together, 100e-6, 30e-6, LAW) == 100e-6
    charges = books.take_charges()
    assert [charge.energy_uj for charge in charges] == [34, 33, 33]
    assert [charge.deviation_uj for charge in charges] == pytest.approx([10.0] * 3)
    totals = ledger.active["fp32"]
    assert (totals.active_uj, totals.sequences, totals.tokens, totals.padded_tokens) == (100, 3, 24, 24)


def test_batches_followed_together_share_alike_and_exactly(ledger: Ledger) -> None:
    books = filled(ledger, 1000)
    together = entry(window(0, 1), window(2, 3), window(4, 5))
    books.charge(together, 100e-6, 5e-6, LAW)
    charges = books.take_charges()
    assert [charge.energy_uj for charge in charges] == [34, 33, 33]
    assert [charge.deviation_uj for charge in charges] == [5.0] * 3
    assert ledger.active["fp32"].active_uj == 100


def test_a_batch_gets_no_more_than_there_is(ledger: Ledger) -> None:
    books = filled(ledger, 60)
    assert books.charge(entry(window(0, 10)), 100e-6, 0.0, LAW) == 60e-6
    assert [charge.energy_uj for charge in books.take_charges()] == [60]


def test_warm_up_makes_no_charge(ledger: Ledger) -> None:
    books = filled(ledger, 60)
    assert books.charge(entry(window(0, 10, warmup=True)), 50e-6, 0.0, LAW) == 50e-6
    assert books.take_charges() == []
    assert (ledger.warmup_uj, ledger.active) == (50, {})


def test_what_is_shown_of_the_idle_draw_has_been_booked(ledger: Ledger) -> None:
    books = filled(ledger, 100)
    books.to_idle(50e-6)
    shown = []
    for idle_j in (30e-6, 30e-6, 30e-6):
        books.charge(entry(window(0, 10, (8, 8)), idle_j=idle_j), 0.0, 0.0, LAW)
        shown.append([charge.idle_share_uj for charge in books.take_charges()])
    assert shown == [[15, 15], [10, 10], [0, 0]]
    assert ledger.idle_shared_uj == ledger.idle_uj == 50


def test_the_warning_of_an_entry_is_on_each_of_its_charges(ledger: Ledger) -> None:
    together = entry(window(0, 10, (8, 8)), warning="a neighbour")
    books = filled(ledger, 10)
    books.charge(together, 4e-6, 0.0, LAW)
    assert [charge.warning for charge in books.take_charges()] == ["a neighbour"] * 2


def test_over_a_gap_the_gap_gets_its_energy_and_what_was_left_before_it_nobody(ledger: Ledger) -> None:
    books = filled(ledger, 10)
    ledger.meter(100)
    books.count(100)
    books.to_gap(100)
    assert (ledger.gap_uj, ledger.unattributed_uj, ledger.pending_uj, books.pool_j) == (100, 10, 0, 0.0)


def test_no_figure_is_a_charge_with_a_reason(ledger: Ledger) -> None:
    books = Books(ledger)
    books.no_figure(window(0, 10, (8, 8)), "the GPU is lost")
    assert [(charge.energy_uj, charge.idle_share_uj, charge.reason) for charge in books.take_charges()] == [
        (None, None, "the GPU is lost")
    ] * 2
    assert ledger.unknown_lines == 2


def test_charges_lie_in_the_books_until_they_are_taken_and_are_taken_once(ledger: Ledger) -> None:
    books = filled(ledger, 10)
    books.charge(entry(window(0, 10)), 4e-6, 0.0, LAW)
    books.no_figure(window(20, 30), "the GPU is lost")
    assert [charge.energy_uj for charge in books.take_charges()] == [4, None]
    assert books.take_charges() == []


def test_a_window_waits_until_it_is_charged_has_no_figure_or_was_a_warm_up(ledger: Ledger) -> None:
    books = filled(ledger, 10)
    settled, lost, warm_up, waiting = window(0, 1), window(1, 2), window(2, 3, warmup=True), window(3, 4)
    for each in (settled, lost, warm_up, waiting):
        books.hand_over(each)
    books.charge(entry(settled), 1e-6, 0.0, LAW)
    books.no_figure(lost, "the GPU is lost")
    books.charge(entry(warm_up), 1e-6, 0.0, LAW)
    assert list(books.unsettled) == [waiting]


@pytest.mark.parametrize(
    ("idle_j", "deviation_j", "law"),
    [
        (math.nan, 0.0, LAW),
        (0.0, math.nan, LAW),
        (0.0, 0.0, LawView({"fp32": Coefficients(math.nan, 1.0)})),
    ],
    ids=["idle share", "deviation", "law"],
)
def test_a_charge_that_cannot_be_computed_books_nothing_on_receipts(
    ledger: Ledger, idle_j: float, deviation_j: float, law: LawView
) -> None:
    books = filled(ledger, 10)
    batch = window(0, 10, (8, 8))
    books.hand_over(batch)
    with pytest.raises((ArithmeticError, ValueError)):
        books.charge(entry(batch, idle_j=idle_j), 4e-6, deviation_j, law)
    assert (ledger.active, ledger.idle_shared_uj, books.take_charges()) == ({}, 0, [])
    assert list(books.unsettled) == [batch]


def test_what_is_given_up_is_all_that_pends_but_edges_to_come(ledger: Ledger) -> None:
    books = filled(ledger, 10)
    ledger.meter(90)
    with pytest.raises(ArithmeticError):
        books.charge(entry(window(0, 10)), 4e-6, math.inf, LAW)
    assert books.give_up(unreached_uj=70) == 30e-6
    assert (ledger.unattributed_uj, ledger.pending_uj, books.pool_j) == (30, 70, 0.0)
