"""From readings and windows to charges, where the idle draw is declared: 10 W, that is, 1 J in 100 ms."""

import pytest

from tests.fixtures.windows import MS, accountant, reading, receipt, window
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.edges import FROZEN_AFTER_NS, LOST_AFTER_NS
from wattserve_server.energy.receipt import Outcome


def test_a_declared_idle_draw_is_not_learned() -> None:
    books = accountant()
    for step in range(30):
        books.observe(reading(100 * step, 3_000_000 * step))
        books.advance([], 100 * step * MS)
    assert (books.idle_watts, books.idle_origin) == (10.0, "configured")
    assert (books.ledger.idle_uj, books.ledger.unattributed_uj) == (29_000_000, 58_000_000)


def test_an_interval_without_a_window_is_idle() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 1_000_000))
    assert books.advance([], 100 * MS) == []
    assert books.ledger.idle_uj == 1_000_000
    assert books.ledger.residual_uj() == 0


def started() -> Accountant:
    """An interval of idle has passed, so that nothing of the counter's origin is in doubt any more."""
    books = accountant()
    books.observe(reading(-100, 0))
    books.observe(reading(0, 1_000_000))
    books.advance([], 0)
    return books


def test_a_batch_alone_gets_what_was_drawn_above_idle() -> None:
    books = started()
    books.observe(reading(100, 7_000_000))
    (charge,) = books.advance([window(10, 40)], 100 * MS)
    assert charge.energy_uj == pytest.approx(5_000_000, abs=2)
    assert charge.idle_share_uj == pytest.approx(300_000, abs=2)  # it ran for 0.3 of the interval
    assert books.ledger.active["fp32"].active_uj == charge.energy_uj
    assert books.ledger.idle_shared_uj == charge.idle_share_uj
    assert books.ledger.idle_uj == pytest.approx(2_000_000, abs=2)


def test_a_batch_over_two_intervals_gets_both_parts_once_it_has_ended() -> None:
    books = started()
    books.observe(reading(100, 4_500_000))
    assert books.advance([window(50, 150)], 160 * MS) == []
    books.observe(reading(200, 8_000_000))
    (charge,) = books.advance([], 200 * MS)
    assert charge.energy_uj == pytest.approx(5_000_000, abs=100)
    assert charge.idle_share_uj == pytest.approx(1_000_000, abs=100)


def test_an_interval_waits_for_a_batch_that_is_still_running_in_it() -> None:
    books = started()
    books.observe(reading(100, 4_500_000))
    assert books.advance([], known_until_ns=80 * MS) == []  # a batch has been running since 80 ms
    assert books.ledger.pending_uj == 3_500_000
    books.observe(reading(200, 8_000_000))
    (charge,) = books.advance([window(80, 120)], 200 * MS)
    assert charge.energy_uj == pytest.approx(5_000_000, abs=100)


def test_a_window_that_is_handed_over_late_is_charged_at_the_next_edge() -> None:
    books = started()
    books.observe(reading(100, 7_000_000))
    books.observe(reading(200, 8_000_000))
    books.advance([], 200 * MS)  # against the promise: its energy is booked as unattributed
    assert books.advance([window(10, 60)], 200 * MS) == []
    books.observe(reading(300, 9_000_000))
    (charge,) = books.advance([], 300 * MS)
    assert charge.energy_uj is not None
    assert charge.energy_uj <= 1_000_000
    assert books.pending_windows == 0
    assert books.ledger.residual_uj() == 0


def test_less_than_idle_charges_next_to_nothing_and_stays_exact() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 400_000))
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert charge.energy_uj is not None
    assert charge.energy_uj <= 20_000  # a twentieth of what was drawn: what ran used something
    assert books.ledger.idle_uj + charge.energy_uj == 400_000


def test_warm_up_has_an_account_of_its_own() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 6_000_000))
    assert books.advance([window(10, 60, warmup=True)], 1000 * MS) == []
    assert books.ledger.warmup_uj == pytest.approx(5_000_000, abs=2)
    assert books.ledger.active == {}
    assert books.ledger.idle_shared_uj == 0


def test_the_sequences_of_a_batch_share_by_shapley_value() -> None:
    books = accountant(idle_watts=0.0)
    books.observe(reading(0, 0))
    books.observe(reading(100, 60_000))
    charges = books.advance([window(0, 100, lengths=(10, 30))], 100 * MS)
    # Nothing was known of the law, so all of it is by token: of 2 x 30 tokens, a third for the short one.
    assert [charge.energy_uj for charge in charges] == pytest.approx([20_000, 40_000], abs=2)


def test_a_failed_or_cancelled_request_that_ran_is_charged_as_any_other() -> None:
    books = started()
    batch = window(10, 40, lengths=(10, 10, 10))
    for line, outcome in zip(
        batch.lines, (Outcome.FAILED, Outcome.CANCELLED, Outcome.COMPLETED), strict=True
    ):
        line.receipt = receipt()
        line.receipt.end(outcome)
    books.observe(reading(100, 5_000_000))
    charges = books.advance([batch], 100 * MS)
    assert [charge.energy_uj for charge in charges] == pytest.approx([1_000_000] * 3, abs=2)
    assert [charge.reason for charge in charges] == ["", "", ""]


def test_a_counter_that_wraps_goes_on() -> None:
    books = accountant(wraps_at=10_000_000)
    books.observe(reading(0, 9_500_000))
    books.observe(reading(100, 600_000))
    books.advance([], 100 * MS)
    assert books.ledger.measured_uj == 1_100_000
    assert books.ledger.gap_count == 0


def test_a_counter_that_steps_back_makes_a_gap_and_unknown_receipts() -> None:
    books = accountant()
    books.observe(reading(0, 9_000_000))
    books.observe(reading(100, 50))
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert charge.energy_uj is None
    assert charge.reason == "the meter's counter stepped back by 8999950 uJ"
    assert books.ledger.measured_uj == 0


def test_a_batch_that_ends_after_a_step_back_is_unknown_too() -> None:
    books = accountant()
    books.observe(reading(0, 9_000_000))
    books.observe(reading(100, 50))
    assert books.advance([], known_until_ns=90 * MS) == []
    books.observe(reading(200, 2_000_050))
    (charge,) = books.advance([window(90, 150)], 200 * MS)
    assert charge.energy_uj is None
    assert books.ledger.residual_uj() == 0


def test_a_frozen_counter_releases_its_receipts_and_its_late_energy_is_the_gaps() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    frozen_ms = FROZEN_AFTER_NS / MS + 1
    books.observe(reading(frozen_ms, 0))
    (charge,) = books.advance([window(10, 60)], int(frozen_ms * MS))
    assert (charge.energy_uj, charge.reason) == (None, "the meter's counter stands still")
    books.observe(reading(frozen_ms + 100, 40_000_000))
    books.advance([], int((frozen_ms + 100) * MS))
    assert books.ledger.gap_uj == 40_000_000
    assert books.ledger.open_gap is None
    assert books.ledger.residual_uj() == 0


def test_a_short_failure_is_bridged_by_the_next_good_reading() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.failed(50 * MS, "busy")
    books.observe(reading(100, 6_000_000))
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert charge.energy_uj == pytest.approx(5_000_000, abs=2)
    assert books.ledger.gap_count == 0


def test_a_lost_meter_releases_its_receipts_with_its_own_reason() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.failed(100 * MS, "the GPU is lost")
    books.failed(100 * MS + LOST_AFTER_NS + 1, "the GPU is lost")
    (charge,) = books.advance([window(10, 60)], 100 * MS + LOST_AFTER_NS)
    assert (charge.energy_uj, charge.reason) == (None, "the GPU is lost")
    assert books.ledger.unknown_lines == 1


def test_after_a_gap_receipts_are_settled_again() -> None:
    books = accountant()
    books.observe(reading(0, 9_000_000))
    books.observe(reading(100, 0))
    books.advance([], 100 * MS)
    books.observe(reading(200, 3_000_000))
    (charge,) = books.advance([window(110, 190)], 200 * MS)
    assert charge.energy_uj == pytest.approx(2_000_000, abs=2)


def test_without_any_reading_receipts_are_unknown_at_once() -> None:
    books = accountant()
    books.failed(0, "no meter was asked for")
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert (charge.energy_uj, charge.reason) == (None, "no meter was asked for")
    assert books.ledger.gap_count == 0


def test_a_batch_that_began_before_the_first_reading_has_no_figure() -> None:
    books = accountant()
    books.failed(0, "the driver is starting")
    books.observe(reading(80, 0))
    books.observe(reading(100, 1_000_000))
    (charge,) = books.advance([window(10, 90)], 100 * MS)
    assert (charge.energy_uj, charge.reason) == (None, "the driver is starting")
    assert books.ledger.residual_uj() == 0


def test_a_law_that_began_from_an_interval_below_idle_is_corrected_by_what_follows() -> None:
    books = started()
    counter_uj, told = 1_000_000, []
    for step in range(1, 12):
        counter_uj += 900_000 if step == 1 else 6_000_000  # idle is 1 J of it: the first batch seems free
        books.observe(reading(100 * step, counter_uj))
        told += books.advance([window(100 * step - 90, 100 * step - 60)], 100 * step * MS)
    assert told[-1].energy_uj == pytest.approx(5_000_000, rel=0.1)
    assert sum(charge.energy_uj or 0 for charge in told[3:]) == pytest.approx(8 * 5_000_000, rel=0.2)
