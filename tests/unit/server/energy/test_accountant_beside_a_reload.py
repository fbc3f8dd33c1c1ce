"""A variant whose law is known well is unloaded and loaded again while another one serves.

A lawful device at 50 W; its counter is stepped, every 100 ms, lags and ramps, and is read every 10 ms.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import LawfulDevice
from wattserve_server.energy.costlaw import Coefficients, of_rows
from wattserve_server.energy.device import Response
from wattserve_server.energy.receipt import Window

LAWS = {"fp32": Coefficients(0.05, 0.002), "bf16": Coefficients(0.03, 0.0008)}
FIRST_RUNS = ((1, 8), (1, 16), (1, 32), (1, 64), (16, 24), (16, 64))


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_a_reload_changes_no_receipt_and_warns_nobody(scale: float) -> None:
    """scale: of the joules that first runs use beyond their batches' own."""
    rng = np.random.default_rng(1)
    device = LawfulDevice(response=Response(0.02, 0.025), period_ms=10, laws=LAWS, step_ms=100.0)
    device.warm_up()
    device.rest(1000.0)

    def serve(variant: str) -> Window:
        batch = device.run(variant, (4, int(rng.integers(12, 40))), 12.0)
        device.rest(float(rng.exponential(30.0)))
        return batch

    for variant in ("fp32", "bf16") * 20:
        serve(variant)
    beside = [serve("fp32")]
    device.run("bf16", (1, 1), 300.0, kind="first run", joules=12.0 * scale)
    for count, length in FIRST_RUNS:
        beside.append(serve("fp32"))
        own_j = LAWS["bf16"].cost_j(of_rows(count * length, length))
        device.run("bf16", (count, length), 60.0, kind="first run", joules=own_j + 1.5 * scale)
        beside.append(serve("fp32"))
        device.run("bf16", (count, length), 15.0, kind="first run")
    after = {variant: [serve(variant) for _ in range(30)] for variant in ("fp32", "bf16")}
    device.rest(2000.0)

    def over_true(batches: list[Window]) -> float:
        true = sum(device.truth_uj[id(line)] for batch in batches for line in batch.lines)
        return sum(device.energy_uj(batch) for batch in batches) / true

    assert over_true(beside) == pytest.approx(1.0, abs=0.05)
    assert over_true(after["fp32"]) == pytest.approx(1.0, abs=0.05)
    assert over_true(after["bf16"]) == pytest.approx(1.0, abs=0.05)
    warned = {id(charge.line) for charge in device.charges if charge.warning}
    receipts = [batch.lines[0] for batch in (*beside, *after["fp32"], *after["bf16"])]
    assert np.mean([id(line) in warned for line in receipts]) <= 0.01
