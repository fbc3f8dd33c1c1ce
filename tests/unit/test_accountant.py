"""From readings and windows to charges. Idle is 10 W, that is, 10 uJ per microsecond: 1 mJ per 100 us."""

import pytest

from tests.fixtures.windows import MS, accountant, reading, window
from wattserve_server.energy.accountant import FROZEN_AFTER_NS, LOST_AFTER_NS


def test_an_interval_without_a_window_is_idle() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 1_000_000))
    assert books.advance([], 100 * MS) == []
    assert books.ledger.idle_uj == 1_000_000
    assert books.ledger.residual_uj() == 0


def test_what_exceeds_idle_without_a_window_is_unattributed() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 1_300_000))
    books.advance([], 100 * MS)
    assert (books.ledger.idle_uj, books.ledger.unattributed_uj) == (1_000_000, 300_000)


def test_a_window_gets_what_its_interval_drew_above_idle() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 6_000_000))
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert charge.energy_uj == 5_000_000
    assert charge.idle_share_uj == 500_000  # it ran for half of the interval
    assert books.ledger.active["fp32"].active_uj == 5_000_000
    assert books.ledger.idle_shared_uj == 500_000
    assert books.ledger.residual_uj() == 0


def test_a_window_over_two_intervals_gets_both_parts_and_settles_with_the_second() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 3_000_000))
    assert books.advance([window(50, 150)], 160 * MS) == []
    assert books.ledger.pending_uj == 2_000_000
    books.observe(reading(200, 7_000_000))
    (charge,) = books.advance([], 200 * MS)
    assert charge.energy_uj == 2_000_000 + 3_000_000
    assert books.ledger.pending_uj == 0


def test_an_interval_waits_for_a_batch_that_is_still_running_in_it() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 6_000_000))
    assert books.advance([], known_until_ns=80 * MS) == []  # a batch has been running since 80 ms
    assert books.ledger.pending_uj == 6_000_000
    books.observe(reading(200, 7_000_000))
    (charge,) = books.advance([window(80, 120)], 200 * MS)
    assert charge.energy_uj == 5_000_000


def test_unknown_laws_share_an_interval_by_time() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 5_000_000))
    first, second = books.advance([window(0, 30), window(40, 50, variant="bf16")], 100 * MS)
    assert (first.energy_uj, second.energy_uj) == (3_000_000, 1_000_000)


def test_learned_laws_share_an_interval_by_predicted_energy_not_by_time() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    at, energy = 0, 0
    for _ in range(40):  # each variant alone: 4 mJ and 1 mJ per batch, over the same time
        for variant, active_uj in (("fp32", 4000), ("bf16", 1000)):
            energy += 1_000_000 + active_uj
            books.observe(reading(at + 100, energy))
            books.advance([window(at + 10, at + 60, variant=variant, warmup=True)], (at + 100) * MS)
            at += 100
    books.observe(reading(at + 100, energy + 1_000_000 + 5000))
    both = books.advance([window(at, at + 50), window(at + 50, at + 100, variant="bf16")], (at + 100) * MS)
    assert sum(charge.energy_uj or 0 for charge in both) == 5000
    assert abs((both[0].energy_uj or 0) - 4000) <= 40


def test_warm_up_has_an_account_of_its_own() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 6_000_000))
    assert books.advance([window(10, 60, warmup=True)], 100 * MS) == []
    assert books.ledger.warmup_uj == 5_000_000
    assert books.ledger.active == {}
    assert books.ledger.idle_shared_uj == 0


def test_the_sequences_of_a_batch_share_by_shapley_value() -> None:
    books = accountant(idle_watts=0.0)
    books.observe(reading(0, 0))
    books.observe(reading(100, 60_000))
    charges = books.advance([window(0, 100, lengths=(10, 30))], 100 * MS)
    # A first batch says nothing of its fixed part, so half is taken for it: 15,000 each, and of the
    # other 30,000 a third (its Shapley value) for the short one.
    assert [charge.energy_uj for charge in charges] == [25_000, 35_000]


def test_less_than_idle_charges_nothing_and_stays_exact() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 400_000))
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert charge.energy_uj == 0
    assert books.ledger.idle_uj == 400_000
    assert books.ledger.residual_uj() == 0


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
    (gap,) = books.ledger.recent_gaps
    assert (gap.start_ns, gap.end_ns) == (0, 100 * MS)


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
    assert charge.energy_uj is None
    assert charge.reason == "the meter's counter stands still"
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
    assert charge.energy_uj == 5_000_000
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
    assert charge.energy_uj == 2_000_000


def test_without_any_reading_receipts_are_unknown_at_once() -> None:
    books = accountant()
    books.failed(0, "no meter was asked for")
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert (charge.energy_uj, charge.reason) == (None, "no meter was asked for")
    assert books.ledger.gap_count == 0


def test_idle_is_learned_from_intervals_without_windows() -> None:
    books = accountant(idle_watts=None)
    books.observe(reading(0, 0))
    for step in range(1, 11):
        books.observe(reading(100 * step, 2_000_000 * step))  # 20 W
    books.advance([], 1000 * MS)
    assert books.idle.watts == 20.0
    books.observe(reading(1100, 27_000_000))
    (charge,) = books.advance([window(1010, 1060)], 1100 * MS)
    assert charge.energy_uj == 5_000_000


def test_a_burst_without_a_window_does_not_become_the_idle_draw() -> None:
    books = accountant(idle_watts=None)
    energy = 0
    books.observe(reading(0, 0))
    for step in range(1, 21):
        energy += 9_000_000 if step == 15 else 2_000_000
        books.observe(reading(100 * step, energy))
        books.advance([], 100 * step * MS)
    assert books.idle.watts == 20.0
    assert books.ledger.unattributed_uj == 7_000_000


def test_before_the_idle_draw_is_known_a_batch_has_no_figure() -> None:
    books = accountant(idle_watts=None)
    books.observe(reading(0, 0))
    books.observe(reading(100, 6_000_000))
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert charge.energy_uj is None
    assert charge.reason == "the device's idle draw was not known yet"


def test_a_step_seen_late_widens_the_figure_by_what_may_lie_beyond_its_edges() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(50, 0))  # stands still: a stepped counter
    books.observe(reading(100, 6_000_000))
    (charge,) = books.advance([window(0, 100)], 100 * MS)
    assert charge.deviation_uj == pytest.approx(6_000_000 * (50 / 100) / 12**0.5)


def test_an_idle_draw_that_varies_widens_the_figure() -> None:
    books = accountant(idle_watts=None)
    energy = 0
    books.observe(reading(0, 0))
    for step in range(1, 21):
        energy += 2_000_000 + (100_000 if step % 2 else -100_000)  # 20 W, give or take 1 W
        books.observe(reading(100 * step, energy))
    books.advance([], 2000 * MS)
    books.observe(reading(2100, energy + 7_000_000))
    (charge,) = books.advance([window(2000, 2100)], 2100 * MS)
    assert charge.deviation_uj == pytest.approx(100_000)


def test_a_share_is_less_certain_the_less_of_its_interval_a_window_covers() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 6_000_000))
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert charge.deviation_uj == pytest.approx(0.1 * 5_000_000 * 0.5)


def test_a_share_is_uncertain_only_against_other_windows() -> None:
    books = accountant()
    books.observe(reading(0, 0))
    books.observe(reading(100, 6_000_000))
    (alone,) = books.advance([window(0, 100)], 100 * MS)
    assert alone.deviation_uj == 0.0
    books.observe(reading(200, 12_000_000))
    first, second = books.advance([window(110, 150), window(150, 190)], 200 * MS)
    assert first.deviation_uj > 0
    assert second.deviation_uj > 0


def test_a_batch_that_began_before_the_first_reading_has_no_figure() -> None:
    books = accountant()
    books.failed(0, "the driver is starting")
    books.observe(reading(80, 0))
    books.observe(reading(100, 1_000_000))
    (charge,) = books.advance([window(10, 90)], 100 * MS)
    assert (charge.energy_uj, charge.reason) == (None, "the driver is starting")
    assert books.ledger.residual_uj() == 0
