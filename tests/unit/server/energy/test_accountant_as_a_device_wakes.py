"""A board that draws less until it first works, as in its lowest state of performance: nobody else draws.

A lawful device; its counter is stepped, every 100 ms, lags and ramps, and is read every 10 ms.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import SHAPES, LawfulDevice
from wattserve_server.energy.costlaw import Coefficients
from wattserve_server.energy.device import Response

pytestmark = pytest.mark.long

LAG_MS = 20.0

STATES = pytest.mark.parametrize(("asleep_w", "awake_w"), [(10.0, 27.0), (50.0, 85.0), (70.0, 120.0)])


def _serve(asleep_w: float, awake_w: float, batches: int = 40) -> LawfulDevice:
    """Listened to while it sleeps, then started and asked for a batch every two seconds."""
    rng = np.random.default_rng(1)
    laws = {"fp32": Coefficients(0.05, 0.002)}
    device = LawfulDevice(
        asleep_w, None, Response(LAG_MS / 1e3, 0.025), period_ms=10, laws=laws, step_ms=100.0
    )
    device.rest(1000.0)
    device.idle_w = awake_w
    device.rest(500.0)  # weights are copied: no window covers that
    for shape in SHAPES:
        device.run("fp32", shape, kind="first run")
    for shape in SHAPES:
        until_ms = device.now_ms + 300
        while device.now_ms < until_ms:
            device.run("fp32", shape, 5.0 + shape[0] * shape[1] / 20, kind="warm-up")
        device.rest(500.0)
    device.rest(1500.0)
    for _ in range(batches):
        device.run("fp32", (4, int(rng.integers(12, 40))), 12.0, rested_ms=2000.0)
        device.rest(float(rng.exponential(2000.0)))
    device.rest(1500.0)
    return device


@STATES
def test_nobody_is_warned_of_what_the_device_draws_itself(asleep_w: float, awake_w: float) -> None:
    charges = _serve(asleep_w, awake_w).charges
    assert np.mean([bool(charge.warning) for charge in charges]) < 0.05


@STATES
def test_what_it_draws_awake_is_booked_as_idle(asleep_w: float, awake_w: float) -> None:
    ledger = _serve(asleep_w, awake_w).books.ledger
    assert ledger.unattributed_uj < 0.01 * ledger.measured_uj


@STATES
def test_receipts_are_right_all_the_same(asleep_w: float, awake_w: float) -> None:
    """Batches of 0.15 to 0.4 J beside 8.5 J of idle draw an interval."""
    assert abs(np.mean(_serve(asleep_w, awake_w).errors())) < 0.07


def _sleep(device: LawfulDevice, asleep_w: float, awake_w: float) -> None:
    """It rests, and after 8 s goes to sleep; both last until a step of the counter."""
    device.rest(8000.0 - device.now_ms % 100.0)
    device.idle_w = asleep_w
    device.rest(4000.0)
    device.idle_w = awake_w


@STATES
def test_a_device_that_goes_to_sleep_while_it_rests_is_no_stranger(asleep_w: float, awake_w: float) -> None:
    device = _serve(asleep_w, awake_w)
    before = len(device.charges)
    for _ in range(3):
        _sleep(device, asleep_w, awake_w)
        for _ in range(10):
            device.run("fp32", (4, 24), 12.0, rested_ms=2000.0)
            device.rest(2000.0)
    device.rest(1500.0)
    assert not any(charge.warning for charge in device.charges[before:])
    assert abs(np.mean(device.errors(before))) < 0.1


@STATES
def test_what_a_device_draws_awake_is_known_after_its_sleep(asleep_w: float, awake_w: float) -> None:
    device = _serve(asleep_w, awake_w)
    before_w = device.books.idle_watts
    _sleep(device, asleep_w, awake_w)
    assert device.books.idle_watts == pytest.approx(before_w, rel=0.01)


@STATES
def test_batches_that_wake_it_do_not_pay_for_the_counters_lag(asleep_w: float, awake_w: float) -> None:
    """What it draws awake is counted as late as the batch that woke it: no batch is told less than before."""
    device = _serve(asleep_w, awake_w)
    before = len(device.charges)
    for _ in range(5):
        device.rest(8000.0 - device.now_ms % 100.0)
        device.idle_w = asleep_w
        device.rest(4000.0 - LAG_MS)
        device.run("fp32", (4, 24), 12.0, rested_ms=12000.0)
        device.rest(LAG_MS - 12.0)
        device.idle_w = awake_w
        device.rest(1000.0)
    device.rest(1500.0)
    first, *_, last = device.errors(before)
    assert abs(last - first) < 0.02
