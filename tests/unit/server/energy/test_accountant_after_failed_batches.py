"""What batches that ran out of memory do to the figures of those that did not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import LawfulDevice
from tests.fixtures.windows import MS, window
from wattserve_server.energy.costlaw import of_rows
from wattserve_server.engine.out_of_memory import as_far_as_it_came


class FailingDevice(LawfulDevice):
    """batch_ms: what a batch takes."""

    def batch_ms(self, count: int, length: int) -> float:
        return 5.0 + count * length / 20

    def fail(self, count: int, length: int, part: float) -> float:
        """A batch that fails when so much of it is done; its joules."""
        ms, tokens = part * self.batch_ms(count, length), count * length
        tried = window(self.now_ms, self.now_ms + ms, (length,) * count, warmup=True, first_run=True)
        joules = part * self.laws["fp32"].cost_j(of_rows(tokens, length))
        self._batches.append((self.now_ms / 1e3, (self.now_ms + ms) / 1e3, joules))
        self._pass(self.now_ms + ms, running_since_ms=self.now_ms)
        self._finished.append(as_far_as_it_came(tried, self.batch_ms(8, 64) / 512 * MS))
        return joules


@pytest.mark.parametrize("part", [0.02, 0.1, 0.5, 0.95])
def test_others_figures_stay_right_and_the_accounts_hold_what_the_attempts_used(part: float) -> None:
    random = np.random.default_rng(1)
    device = FailingDevice()
    device.warm_up()
    charged, before = len(device.charges), device.books.ledger.copy()
    failed_j = 0.0
    for index in range(200):
        if index % 20 == 5:
            failed_j += device.fail(16, 64, part)
            for _ in range(2):
                device.run("fp32", (8, 64), device.batch_ms(8, 64))
        shape = [(1, 8), (4, 24), (16, 24), (8, 64)][random.integers(4)]
        device.run("fp32", shape, device.batch_ms(*shape))
        device.rest(random.random() * 20)
    device.rest(2000.0)
    errors = np.abs(device.errors(charged))
    after = device.books.ledger
    beside_j = (after.warmup_uj + after.unattributed_uj - before.warmup_uj - before.unattributed_uj) / 1e6
    active_j = sum(totals.active_uj for totals in after.active.values()) / 1e6
    assert np.quantile(errors, 0.95) < 0.05
    assert beside_j == pytest.approx(failed_j, abs=0.02 * active_j)
    assert after.residual_uj() == 0
