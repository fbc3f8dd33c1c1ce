"""A meter over a cell's window, and what a peer without receipts cost by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fixtures.loadgen_results import make_meter_window, make_record
from wattserve_loadgen.figures.account import ABOVE_REST, cell_energy, growth_above_rest
from wattserve_loadgen.model.cells import CellEnergy, MeterWindow, Record
from wattserve_loadgen.target.energy_window import meter_window

SECONDS = np.arange(0.0, 10.5, 0.5)
JOULES = SECONDS * 20


def window(
    start: float = 2.25, end: float = 8.25, limit: float = 1.0, without: tuple[int, ...] = ()
) -> MeterWindow:
    """20 W read every half second, but for the readings `without`."""
    joules = JOULES.copy()
    joules[list(without)] = np.nan
    return meter_window(SECONDS, joules, start, end, limit)


def peer(meter: MeterWindow, rest_watts: float | None, records: list[Record], completed: int) -> CellEnergy:
    return cell_energy(records, growth_above_rest(meter, rest_watts), meter.seconds, completed, meter)


def answers(count: int, **changes: object) -> list[Record]:
    return [make_record(energy_uj=None, energy_state=None, receipt_id=None, **changes)] * count


def test_the_window_is_interpolated_at_both_edges() -> None:
    found = window()
    assert (found.measured_uj, found.seconds, found.reason) == (120_000_000, 6.0, "")
    assert found.watts == pytest.approx(20)
    assert (found.readings, found.longest_gap_seconds) == (12, 0.5)
    assert found.watts_deviation == pytest.approx(0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start": -1.0}, "no_reading_before: no reading before the window began"),
        ({"end": 11.0}, "no_reading_after: no reading after the window ended"),
        ({"without": (10, 11)}, "gap_inside: more than 1 s between two readings in the window"),
        ({"without": (4, 5)}, "gap_at_start: more than 1 s between the readings around the window's start"),
        ({"without": (16, 17)}, "gap_at_end: more than 1 s between the readings around the window's end"),
        ({"without": tuple(range(21))}, "no_readings: the meter gave no reading"),
        ({"start": 3.0, "end": 3.0}, "no_window: it has no length"),
    ],
)
def test_a_window_that_the_meter_did_not_cover_has_a_reason_and_no_joules(
    changes: dict[str, Any], reason: str
) -> None:
    found = window(**changes)
    assert (found.measured_uj, found.watts, found.reason) == (None, None, reason)


def test_a_gap_shows_its_length_even_where_it_is_allowed() -> None:
    found = window(limit=5.0, without=(10, 11))
    assert (found.measured_uj, found.longest_gap_seconds) == (120_000_000, 1.5)


def test_a_peer_is_charged_what_the_meter_counted_above_rest() -> None:
    """20 W for 6 s of which 15 W are rest: 30 J active and 90 J idle over 60 answers of 10 tokens."""
    found = peer(window(), 15.0, answers(50), 60)
    assert (found.active_uj_per_request, found.idle_uj_per_request) == (500_000, 1_500_000)
    assert found.active_uj_per_token == pytest.approx(50_000)
    assert (found.meter_uj_per_request, found.meter_difference) == (2_000_000, 0)
    assert (found.method, found.reason) == (ABOVE_REST, "")


def test_nothing_of_a_peer_closes_because_nothing_is_counted_twice() -> None:
    found = peer(window(), 15.0, answers(50), 60)
    assert (found.accounts_residual_uj, found.receipts_residual_uj, found.receipts_uj) == (None, None, None)
    assert (found.settled, found.unknown, found.foreign_sequences) == (0, 0, 0)


def test_a_peers_failed_requests_are_in_its_joules() -> None:
    failed = answers(10, ok=False, code="INTERNAL")
    found = peer(window(), 15.0, [*answers(50), *failed], 50)
    assert (found.active_uj_per_request, found.failed_uj_per_request) == (600_000, None)


@pytest.mark.parametrize(
    ("meter", "rest", "reason"),
    [
        (make_meter_window(measured_uj=None, reason="gap_inside: x"), 5.0, "gap_inside: x"),
        (make_meter_window(), None, "the power at rest was not measured before the sweep"),
        (make_meter_window(), 7.0, "the meter counted less than the power at rest before the sweep"),
    ],
)
def test_a_peer_whose_energy_is_unknown_says_why(meter: MeterWindow, rest: float | None, reason: str) -> None:
    found = peer(meter, rest, answers(5), 5)
    assert (found.active_uj_per_request, found.idle_uj_per_request, found.reason) == (None, None, reason)
    assert found.method == ABOVE_REST


def test_a_peer_that_answered_nothing_has_no_joules_per_request() -> None:
    found = peer(window(), 15.0, [], 0)
    assert (found.active_uj_per_request, found.idle_uj_per_request) == (None, None)
    assert (found.active_uj, found.reason) == (30_000_000, "no request was answered in the window")
