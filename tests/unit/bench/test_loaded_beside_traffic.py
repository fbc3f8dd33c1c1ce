"""What the bench of a load beside traffic makes of receipts."""

from __future__ import annotations

import pytest

from tests.bench.loaded_beside_traffic import FIRST, NEWCOMER, RESIDENT, Bill, Run, found_in


def run_of(resident_joules: tuple[float, float], newcomer_joules: tuple[float, float]) -> Run:
    """Loaded at 10 s, first answer at 20 s. Joules: before and beside; of the first and the later ones."""
    run = Run("nowhere")
    run.loaded_s = 10.0
    before, beside = resident_joules
    run.bills[RESIDENT] = [Bill(at, before if at < 10 else beside, 0.002) for at in map(float, range(100))]
    first, later = newcomer_joules
    run.bills[NEWCOMER] = [
        Bill(20.0 + at, first if at < FIRST else later, 0.001) for at in reversed(range(8 * FIRST))
    ]
    return run


def test_a_right_bill_misses_nothing() -> None:
    found = found_in(run_of((0.02, 0.02), (0.01, 0.01)))
    for ratio in (found.newcomer, found.neighbour, found.split):
        assert ratio == pytest.approx(1)
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
    assert missed in found_in(run_of(resident, newcomer)).misses()


def test_withheld_figures_are_a_part_of_all() -> None:
    run = run_of((0.02, 0.02), (0.01, 0.01))
    run.withheld[NEWCOMER] = 2 * FIRST
    assert found_in(run).withheld == pytest.approx(0.2)


def test_a_neighbours_wait_is_of_the_phase_in_which_its_call_was_sent() -> None:
    run = run_of((0.02, 0.02), (0.01, 0.01))
    run.calibrating_s, run.ready_s = 15.0, 20.0
    run.waits = [(5.0, 0.001), (12.0, 0.002), (19.0, 0.003), (20.0, 0.004)]
    assert found_in(run).p99_ms == pytest.approx((1, 2, 3, 4))
