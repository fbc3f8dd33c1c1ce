"""A process that is listed on the device and does nothing there: it must change nothing.

A lawful device at 50 W; its counter is stepped, every 100 ms, lags and ramps, and is read every 10 ms.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import LawfulDevice
from wattserve_server.energy.costlaw import Coefficients, of_rows
from wattserve_server.energy.device import Response

pytestmark = pytest.mark.long

# What the driver tells of its use of the device: none, or nothing at all.
AT_WORK = pytest.mark.parametrize("at_work", [0.0, None])


def _beside(at_work: float | None, neighbours: int = 1) -> LawfulDevice:
    laws = {"fp32": Coefficients(0.05, 0.002)}
    device = LawfulDevice(response=Response(0.02, 0.025), period_ms=10, laws=laws, step_ms=100.0)
    device.books.see_neighbours(neighbours)
    device.books.see_others(at_work)
    device.warm_up()
    return device


def _serve(device: LawfulDevice, variant: str, batches: int, pause_ms: float) -> np.ndarray:
    """Relative errors of so many batches, so far apart on average."""
    rng = np.random.default_rng(1)
    before = len(device.charges)
    for _ in range(batches):
        device.run(variant, (4, int(rng.integers(12, 40))), 12.0)
        device.rest(float(rng.exponential(pause_ms)))
    device.rest(2000.0)
    return device.errors(before)[::4]


@AT_WORK
def test_nobody_is_warned_of_a_process_that_draws_nothing(at_work: float | None) -> None:
    device = _beside(at_work)
    _serve(device, "fp32", 40, 30.0)
    assert not {charge.warning for charge in device.charges} - {""}


@AT_WORK
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_laws_that_change_are_followed_beside_it_as_without_it(at_work: float | None, factor: float) -> None:
    errors = []
    for device in (_beside(None, neighbours=0), _beside(at_work)):
        device.laws["fp32"] = Coefficients(0.05 * factor, 0.002 * factor)
        errors.append(abs(_serve(device, "fp32", 300, 3.0)[-50:].mean()))
    without, beside = errors
    assert beside < without + 0.02


@AT_WORK
def test_a_new_variants_law_is_learned_beside_it(at_work: float | None) -> None:
    device = _beside(at_work)
    device.laws["bf16"] = Coefficients(0.03, 0.0008)
    _serve(device, "bf16", 150, 30.0)
    law = device.books.law.laws.get("bf16")
    assert law is not None
    assert law.cost_j(of_rows(80, 20)) == pytest.approx(device.laws["bf16"].cost_j(of_rows(80, 20)), rel=0.15)
