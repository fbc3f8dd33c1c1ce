"""What the bench of a load beside traffic makes of receipts."""

from __future__ import annotations

import pytest

from tests.bench.loaded_beside_traffic import FIRST, NEWCOMER, RESIDENT, Bill, Found, Run, found_in


def run_of(resident_joules: tuple[float, float], newcomer_joules: tuple[float, float]) -> Run:
    """Loaded at 10 s, first answer at 20 s. Joules: before and beside; of the first and the later ones."""
    run = Run("nowhere")
    run.loaded_s = 10.0
    before, beside = resident_joules
    run.bills[RESIDENT] = [
        Bill(f"{RESIDENT}-{at}", at, before if at < 10 else beside, 0.002) for at in map(float, range(100))
    ]
    first, later = newcomer_joules
    run.bills[NEWCOMER] = [
        Bill(f"{NEWCOMER}-{at}", 20.0 + at, first if at < FIRST else later, 0.001)
        for at in reversed(range(8 * FIRST))
    ]
    return run


def found_by(run: Run, beside: float = 1.0) -> Found:
    """All used what was computed, but the neighbour's requests beside the newcomer so many times that."""
    bills = run.bills[RESIDENT] + run.bills[NEWCOMER]
    changed = {bill.receipt_id for bill in run.bills[RESIDENT] if bill.at_s >= 20}
    return found_in(
        run,
        {each.receipt_id: each.compute_s * (beside if each.receipt_id in changed else 1) for each in bills},
    )


def test_a_right_bill_misses_nothing() -> None:
    found = found_by(run_of((0.02, 0.02), (0.01, 0.01)))
    for name in ("newcomer", "neighbour", "split"):
        assert found.over_used(name) == pytest.approx(1)
    assert not found.misses()


def test_a_neighbour_that_used_less_is_right_to_be_told_less() -> None:
    run = run_of((0.02, 0.01), (0.01, 0.01))
    assert "neighbour" in found_by(run).misses()
    found = found_by(run, beside=0.5)
    assert found.told.neighbour == pytest.approx(0.5)
    assert found.over_used("neighbour") == pytest.approx(1)
    assert not found.misses()


@pytest.mark.parametrize(
    ("resident", "newcomer", "missed"),
    [
        ((0.02, 0.02), (0.3, 0.01), "newcomer"),
        ((0.02, 0.01), (0.005, 0.005), "neighbour"),
        ((0.02, 0.02), (0.02, 0.02), "split"),
    ],
)
def test_each_bound_is_missed_by_its_own_error(
    resident: tuple[float, float], newcomer: tuple[float, float], missed: str
) -> None:
    assert missed in found_by(run_of(resident, newcomer)).misses()


def test_withheld_figures_are_a_part_of_all() -> None:
    run = run_of((0.02, 0.02), (0.01, 0.01))
    run.withheld[NEWCOMER] = 2 * FIRST
    assert found_by(run).withheld == pytest.approx(0.2)


def test_a_neighbours_wait_is_of_the_phase_in_which_its_call_was_sent() -> None:
    run = run_of((0.02, 0.02), (0.01, 0.01))
    run.calibrating_s, run.ready_s = 15.0, 20.0
    run.waits = [(5.0, 0.001), (12.0, 0.002), (19.0, 0.003), (20.0, 0.004)]
    assert found_by(run).p99_ms == pytest.approx((1, 2, 3, 4))
