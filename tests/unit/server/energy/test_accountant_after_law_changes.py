"""How soon the accountant follows laws that change all at once while the device is mostly idle, as clocks do.

A lawful device at 50 W; its counter is stepped, every 100 ms, lags and ramps, and is read every 10 ms.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import BATCH_MS, LawfulDevice
from wattserve_server.energy.costlaw import Coefficients
from wattserve_server.energy.device import Response

pytestmark = pytest.mark.long

# What all laws change by, and what all batches take from then on: a board at lower clocks works for longer.
CLOCKS = pytest.mark.parametrize(("factor", "slower"), [(0.8, 1.15), (1.25, 0.87)])


def _errors_after_change(
    factor: float, slower: float, pause_ms: float = 100.0, seen_after_s: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of batches of about 10 ms after the change: seconds since it, relative errors, whether the intervals
    hold the truth."""
    rng = np.random.default_rng(1)
    laws = {"fp32": Coefficients(0.05, 0.002)}
    device = LawfulDevice(response=Response(0.02, 0.025), period_ms=10, laws=laws, step_ms=100.0)
    device.warm_up()

    def serve(seconds: float, ms: float) -> list[float]:
        starts_s, until_ms = [], device.now_ms + seconds * 1e3
        while device.now_ms < until_ms:
            starts_s.append(device.now_ms / 1e3)
            device.run("fp32", (4, int(rng.integers(12, 40))), ms)
            device.rest(float(rng.exponential(pause_ms)))
        return starts_s

    device.books.see_clock(1500)
    before = 4 * len(serve(8.0, BATCH_MS))
    device.laws["fp32"] = Coefficients(0.05 * factor, 0.002 * factor)
    changed_s = device.now_ms / 1e3
    starts = []
    if seen_after_s is not None:  # by the board's clocks
        starts = serve(seen_after_s, BATCH_MS * slower)
        device.books.see_clock(round(1500 * factor))
    starts_s = np.array([*starts, *serve(8.0, BATCH_MS * slower)]) - changed_s
    device.rest(1500.0)
    charges, errors = device.charges[before::4], device.errors(before)[::4]
    half = [1.96 * charge.deviation_uj / device.truth_uj[id(charge.line)] for charge in charges]
    assert len(starts_s) == len(errors)
    return starts_s, errors, np.abs(errors) <= half


@CLOCKS
def test_laws_that_change_at_low_load_are_followed_within_seconds(factor: float, slower: float) -> None:
    since_s, errors, _ = _errors_after_change(factor, slower)
    assert abs(errors[since_s > 3].mean()) < 0.06


@CLOCKS
def test_until_then_the_intervals_hold_the_truth(factor: float, slower: float) -> None:
    since_s, _, is_covered = _errors_after_change(factor, slower)
    assert is_covered[since_s < 5].mean() > 0.9


@pytest.mark.parametrize("factor", [0.8, 1.25])
@pytest.mark.parametrize("pause_ms", [30.0, 3.0])
def test_where_durations_tell_nothing_a_busier_device_is_followed_all_the_same(
    factor: float, pause_ms: float
) -> None:
    since_s, errors, is_covered = _errors_after_change(factor, 1.0, pause_ms)
    assert abs(errors[since_s > 5].mean()) < 0.09
    assert is_covered[since_s < 5].mean() > 0.8


@pytest.mark.xfail(
    strict=True,
    reason="at low load the counter cannot tell idle draw from laws, and where batches take as long"
    " as before nothing else speaks of a change: it is booked to the idle draw for half a minute",
)
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_where_durations_tell_nothing_intervals_hold_the_truth_on_an_idle_device_too(factor: float) -> None:
    _, _, is_covered = _errors_after_change(factor, 1.0)
    assert is_covered.mean() > 0.9


@pytest.mark.parametrize("factor", [0.8, 1.25])
@pytest.mark.parametrize("seen_after_s", [0.3, 1.0])
def test_clocks_tell_where_durations_do_not(factor: float, seen_after_s: float) -> None:
    since_s, errors, _ = _errors_after_change(factor, 1.0, seen_after_s=seen_after_s)
    assert abs(errors[since_s > 3].mean()) < 0.08
