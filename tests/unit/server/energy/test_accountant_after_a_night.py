"""What the accountant still knows after hours without work.

A lawful device at 50 W; its counter is stepped, every 100 ms, lags and ramps, and is read every 10 ms, in the
night every second.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import LawfulDevice
from wattserve_server.energy.costlaw import Coefficients
from wattserve_server.energy.device import Response

pytestmark = pytest.mark.long

NIGHT_MS = 2 * 3.6e6


def _device() -> LawfulDevice:
    laws = {"fp32": Coefficients(0.05, 0.002)}
    device = LawfulDevice(response=Response(0.02, 0.025), period_ms=10, laws=laws, step_ms=100.0)
    device.warm_up()
    device.rest(20_000.0)
    return device


def _sleep(device: LawfulDevice, ms: float) -> None:
    device.period_ms = 1000
    device.rest(ms)
    device.period_ms = 10
    device.rest(2000.0)


def _serve(device: LawfulDevice) -> tuple[np.ndarray, np.ndarray]:
    """Of 40 batches, while the idle draw wobbles by 1 W: relative errors, and half of the intervals."""
    rng = np.random.default_rng(1)
    before = len(device.charges)
    for _ in range(40):
        device.idle_w = 50 + rng.standard_normal()
        device.run("fp32", (4, 20), 12.0, rested_ms=700.0)
        device.rest(700.0)
    device.idle_w = 50.0
    device.rest(2000.0)
    charges = device.charges[before::4]
    widths = [1.96 * charge.deviation_uj / device.truth_uj[id(charge.line)] for charge in charges]
    return np.abs(device.errors(before))[::4], np.array(widths)


def test_after_a_night_intervals_are_hardly_wider_than_before() -> None:
    _, evening = _serve(device := _device())
    _sleep(device, NIGHT_MS)
    _, morning = _serve(device)
    assert len(morning) == len(evening) == 40
    assert np.median(morning[:6]) < 1.5 * np.median(evening)


def test_after_a_night_receipts_are_as_right_as_without_one() -> None:
    rested, slept = _device(), _device()
    _sleep(rested, 0.0)
    _sleep(slept, NIGHT_MS)
    without, after = (np.quantile(_serve(device)[0], 0.95) for device in (rested, slept))
    assert after < 1.3 * without
