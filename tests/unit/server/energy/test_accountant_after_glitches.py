"""A counter that shows something absurd for a moment, or begins again: what receipts and accounts are then.

A lawful device at 50 W; its counter is stepped, every 100 ms, lags and ramps, and is read every 10 ms.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import LawfulDevice
from wattserve_server.energy.costlaw import Coefficients
from wattserve_server.energy.device import Response


def _serve(device: LawfulDevice, rng: np.random.Generator, batches: int) -> None:
    for _ in range(batches):
        device.run("fp32", (4, int(rng.integers(12, 40))), 12.0)
        device.rest(float(rng.exponential(30.0)))


@pytest.mark.parametrize(
    ("joules", "lasts"),
    [(1e6, 3), (1e6, 0), (9e9, 3), (-5.0, 0)],
    ids=["a jump up and back", "a jump that stays", "a jump to the end of its range and back", "a step back"],
)
def test_it_is_in_no_account_and_on_no_receipt(joules: float, lasts: int) -> None:
    """lasts: for how many batches, until the counter is as it was; 0: it stays so."""
    rng = np.random.default_rng(1)
    laws = {"fp32": Coefficients(0.05, 0.002)}
    device = LawfulDevice(response=Response(0.02, 0.025), period_ms=10, laws=laws, step_ms=100.0)
    device.warm_up()
    _serve(device, rng, 40)
    begun_ms, before = device.now_ms, device.books.ledger.copy()
    device.spike(joules)
    if lasts:
        _serve(device, rng, lasts)
        device.spike(-joules)
    since = len(device.charges)
    _serve(device, rng, 120)
    device.rest(2000.0)
    ledger = device.books.ledger
    most_uj = 60.0 * (device.now_ms - begun_ms) * 1e3
    assert 0 < ledger.measured_uj - before.measured_uj < most_uj
    assert ledger.unattributed_uj - before.unattributed_uj < 0.05 * most_uj
    errors = device.errors(since)
    assert np.mean(errors) == pytest.approx(0.0, abs=0.03)
    assert np.mean(errors[-20:]) == pytest.approx(0.0, abs=0.05)
    charges = device.charges[since:]
    assert np.mean([charge.energy_uj is None for charge in charges]) < 0.15
    assert np.mean([bool(charge.warning) for charge in charges]) < 0.05
