"""A host's counter, which holds the server's own work too, while another process computes by turns.

A lawful host at 30 W, counted all the time and read every 100 ms; nobody lists processes there, but how many
cores others use is told.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import LawfulDevice
from tests.fixtures.windows import MS
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.costlaw import Coefficients
from wattserve_server.energy.receipt import Window

pytestmark = pytest.mark.long

WATTS = pytest.mark.parametrize("watts", [10.0, 40.0])


def _serve(
    watts: float, seconds: float = 20.0, word_ms: float = 0.0
) -> tuple[LawfulDevice, list[Window], list[Window]]:
    """Windows beside the other process, which draws so much for five seconds of each ten, and the others.
    word_ms: so often is told whether it draws, and so it is told late; 0: at every batch."""
    rng = np.random.default_rng(1)
    device = LawfulDevice(30.0, laws={"fp32": Coefficients(0.05, 0.006)})
    device.books = Accountant(counts_server=True)
    device.books.see_others(0.0)
    device.warm_up()
    begun_ms = device.now_ms
    next_word_ms = begun_ms + 0.9 * word_ms
    beside: list[Window] = []
    alone: list[Window] = []
    while device.now_ms < begun_ms + seconds * 1e3:
        is_beside = int((device.now_ms - begun_ms) / 5000) % 2 == 1
        device.extra_w = watts * is_beside
        if device.now_ms >= next_word_ms:
            device.books.see_others(float(is_beside))
            next_word_ms += word_ms
        batch = device.run("fp32", (4, int(rng.integers(12, 40))), 25.0)
        (beside if is_beside else alone).append(batch)
        device.rest(float(rng.exponential(25)))
    device.extra_w = 0.0
    device.books.see_others(0.0)
    device.rest(2000.0)
    return device, beside, alone


def _over_true(device: LawfulDevice, batches: list[Window]) -> float:
    true = sum(device.truth_uj[id(line)] for batch in batches for line in batch.lines)
    return sum(device.energy_uj(batch) for batch in batches) / true


@WATTS
def test_what_another_process_draws_is_on_nobodys_receipt(watts: float) -> None:
    device, beside, alone = _serve(watts)
    assert _over_true(device, beside) == pytest.approx(1.0, abs=0.08)
    assert _over_true(device, alone) == pytest.approx(1.0, abs=0.08)


@WATTS
def test_receipts_beside_it_are_warned_and_the_others_are_not(watts: float) -> None:
    device, beside, alone = _serve(watts)
    warned = {id(charge.line) for charge in device.charges if charge.warning}
    shares = [np.mean([id(batch.lines[0]) in warned for batch in batches]) for batches in (beside, alone)]
    assert shares[0] > 0.9
    assert shares[1] < 0.25


def test_what_was_learned_before_the_word_of_it_came_is_taken_back() -> None:
    device, beside, alone = _serve(40.0, word_ms=1000.0)
    untold = sum(window.start_ns < beside[0].start_ns + 900 * MS for window in beside)
    assert _over_true(device, beside[untold + 10 :]) == pytest.approx(1.0, abs=0.08)
    assert _over_true(device, alone) == pytest.approx(1.0, abs=0.08)
