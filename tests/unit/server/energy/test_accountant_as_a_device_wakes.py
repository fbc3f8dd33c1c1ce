"""A board that draws less until it first works, as in its lowest state of performance: nobody else draws.

A lawful device; its counter is stepped, every 100 ms, lags and ramps, and is read every 10 ms.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import SHAPES, LawfulDevice
from wattserve_server.energy.costlaw import Coefficients
from wattserve_server.energy.device import Response

STATES = pytest.mark.parametrize(("asleep_w", "awake_w"), [(10.0, 27.0), (50.0, 85.0), (70.0, 120.0)])


def _serve(asleep_w: float, awake_w: float, batches: int = 40) -> LawfulDevice:
    """Listened to while it sleeps, then started and asked for a batch every two seconds."""
    rng = np.random.default_rng(1)
    laws = {"fp32": Coefficients(0.05, 0.002)}
    device = LawfulDevice(asleep_w, None, Response(0.02, 0.025), period_ms=10, laws=laws, step_ms=100.0)
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
