"""Two variants beside each other, many batches to each step of the counter, which tells their sum alone.

How long each batch took tells how to split it, where that says something. The first device is as
`--meter simulated` imagines it: 40 W declared, 110 W more for as long as a batch runs. How long wanders,
as on a machine that does other things too, and not alike for both variants.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import LawfulDevice
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.costlaw import Coefficients
from wattserve_server.energy.device import Response
from wattserve_server.energy.receipt import Window

pytestmark = pytest.mark.long

BUSY_W = 110.0
MS = {"fp32": (2.4, 0.04), "bf16": (1.6, 0.02)}
"""Of a batch, and for each of its tokens."""

SLOWER_LIVE = {"fp32": 1.5, "bf16": 1.2}


class _Busy:
    def __init__(self, seed: int) -> None:
        laws = dict.fromkeys(MS, Coefficients(0.0, 0.0))
        self.device = LawfulDevice(40.0, 40.0, period_ms=50, laws=laws, step_ms=100.0)
        self._rng = np.random.default_rng(seed)
        self._level = 0.0
        self.device.rest(1000)

    def batch(self, variant: str, tokens: int, slower: float = 1.0, kind: str = "request") -> None:
        self._level = 0.995 * self._level + 0.02 * float(self._rng.standard_normal())
        fixed_ms, per_token_ms = MS[variant]
        ms = (fixed_ms + per_token_ms * tokens) * slower
        if kind == "request":
            ms *= float(np.exp(self._level + 0.2 * self._rng.standard_normal()))
        self.device.run(variant, (1, tokens), ms, kind, joules=BUSY_W * ms / 1e3)

    def calibrate(self) -> None:
        for variant in MS:
            for tokens in (8, 64, 96):
                until_ms = self.device.now_ms + 300
                while self.device.now_ms < until_ms:
                    self.batch(variant, tokens, kind="warm-up")
                self.device.rest(300)
        self.device.rest(1000)

    def serve(self, variants: list[str], seconds: float) -> None:
        until_ms = self.device.now_ms + seconds * 1e3
        while self.device.now_ms < until_ms:
            variant = str(self._rng.choice(variants))
            self.batch(variant, int(self._rng.choice([32, 64, 96])), SLOWER_LIVE[variant])


@pytest.mark.parametrize("is_calibrated", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_the_counter_cannot_split_is_split_by_time(seed: int, is_calibrated: bool) -> None:
    busy = _Busy(seed)
    if is_calibrated:
        busy.calibrate()
    busy.serve(["fp32"], 3.0)
    before = len(busy.device.charges)
    busy.serve(["fp32", "fp32", "bf16"], 5.0)
    busy.device.rest(1000)
    for variant in MS:
        charges = [c for c in busy.device.charges[before:] if c.line.receipt.variant == variant]
        told_uj = sum(charge.energy_uj or 0 for charge in charges)
        true_uj = sum(busy.device.truth_uj[id(charge.line)] for charge in charges)
        assert told_uj == pytest.approx(true_uj, rel=0.15)


LATE = Response(lag_s=0.02, ramp_s=0.025)
SLOW_MS, PAIR_MS = 250.0, 25.0


class _Pairs:
    """Variants that were never calibrated, on a counter that answers late: they take as long as each other,
    and the second uses twice as much."""

    def __init__(self, phase_ms: float) -> None:
        laws = {"fp32": Coefficients(0.33, 0.0), "hot": Coefficients(0.66, 0.0)}
        self.device = LawfulDevice(75.0, period_ms=10, laws=laws, response=LATE, step_ms=100.0)
        self.device.rest(1000 + phase_ms)
        for variant in laws:
            self.device.run(variant, ms=SLOW_MS, kind="first run", joules=27.0)
            for ms in (6.0, 2.0):
                self.device.run(variant, ms=ms, kind="first run", joules=0.2 * ms)
            self.device.run(variant, ms=SLOW_MS, kind="first run", joules=60.0)
        self.device.rest(1000)

    def serve(self, variants: list[str], seconds: float) -> None:
        until_ms = self.device.now_ms + seconds * 1e3
        while self.device.now_ms < until_ms:
            for variant in variants:
                self.device.run(variant, ms=3.1)
            self.device.rest(PAIR_MS - 3.1 * len(variants))


@pytest.mark.parametrize("phase_ms", [0.0, 37.0])
def test_a_split_that_nothing_tells_is_in_its_interval(phase_ms: float) -> None:
    pairs = _Pairs(phase_ms)
    pairs.serve(["fp32", "hot"], 10.0)
    pairs.device.rest(1000)
    half = [
        1.96 * charge.deviation_uj / pairs.device.truth_uj[id(charge.line)] for charge in pairs.device.charges
    ]
    assert np.mean(np.abs(pairs.device.errors()) <= half) > 0.95


@pytest.mark.parametrize("phase_ms", [0.0, 37.0])
def test_a_second_of_either_alone_tells_it(phase_ms: float) -> None:
    pairs = _Pairs(phase_ms)
    for variants in (["fp32", "hot"], ["fp32"], ["hot"]):
        pairs.serve(variants, 1.0)
    pairs.device.rest(500)
    before = len(pairs.device.charges)
    pairs.serve(["fp32", "hot"], 2.0)
    pairs.device.rest(1000)
    assert np.abs(pairs.device.errors(before)).mean() < 0.1


@pytest.mark.parametrize("phase_ms", [0.0, 37.0])
def test_how_the_counter_answers_is_heard_from_a_load_that_changes_after_first_runs(phase_ms: float) -> None:
    pairs = _Pairs(phase_ms)
    assert pairs.device.books.response == Response()
    for variants in [["fp32", "hot"], ["fp32"], ["hot"]] * 6:
        pairs.serve(variants, 0.5)
    found = pairs.device.books.response
    assert found.lag_s + found.ramp_s == pytest.approx(LATE.lag_s + LATE.ramp_s, abs=0.02)


CPU_W = 8.0
"""What a counter of CPU time counts for each second of it."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_where_cpu_time_is_counted_a_busy_machine_takes_nothing_from_the_split(seed: int) -> None:
    # Requests cost the server 0.06 ms each beside their batches, of which trials have nothing; what others
    # leave in the caches makes work longer or shorter, the newcomer's trials longest; and others keep batches
    # waiting, those of one variant for longer.
    rng = np.random.default_rng(seed)
    device = LawfulDevice(5.0, 5.0, period_ms=100, laws=dict.fromkeys(MS, Coefficients(0.0, 0.0)))
    device.books = Accountant(declared_idle_w=5.0, counts_server=True, cpu_watts=CPU_W)
    device.rest(1000)

    def batch(variant: str, tokens: int, kind: str = "request") -> Window:
        fixed_ms, per_token_ms = MS[variant]
        cold = 1.6 if (variant, kind) == ("bf16", "warm-up") else 1.0
        cpu_ms = 0.1 * (fixed_ms + per_token_ms * tokens) * cold * float(np.exp(0.3 * rng.standard_normal()))
        cpu_ms += 0.06 if kind == "request" else 0.0
        longest = 1 if kind == "warm-up" else {"fp32": 2, "bf16": 6}[variant]
        ms = cpu_ms * (1 + (longest - 1) * float(rng.random()))
        return device.run(variant, (1, tokens), ms, kind, joules=CPU_W * cpu_ms / 1e3, cpu_ms=cpu_ms)

    def calibrate(variant: str, beside: str = "") -> None:
        for tokens in (8, 64, 96):
            for _ in range(60):
                batch(variant, tokens, "warm-up")
                if beside:
                    batch(beside, 32)
            device.rest(300)

    calibrate("fp32")
    for _ in range(500):
        batch("fp32", 32)
    calibrate("bf16", beside="fp32")
    since = len(device.charges)
    bills = {variant: [batch(variant, 32) for _ in range(4)] for variant in MS}
    for _ in range(600):
        for variant in MS:
            bills[variant].append(batch(variant, 32))
    device.rest(3000)
    assert len(device.errors(since)) > 1000
    for variant, batches in bills.items():
        told, true = (
            sum(map(device.energy_uj, batches)),
            sum(device.truth_uj[id(line)] for each in batches for line in each.lines),
        )
        assert told / true == pytest.approx(1.0, abs=0.002), variant


def test_where_cpu_time_is_counted_what_others_have_the_server_do_is_nobodys() -> None:
    # Calls that never run take the other core all the while, and keep each batch ten times as long.
    device = LawfulDevice(5.0, 5.0, period_ms=100, laws={"fp32": Coefficients(0.0, 0.0)})
    device.books = Accountant(declared_idle_w=5.0, counts_server=True, cpu_watts=CPU_W)
    device.rest(1000)

    def serve(ms: float, flood_w: float) -> list[Window]:
        device.extra_w = flood_w
        batches = []
        for _ in range(300):
            batches.append(device.run("fp32", (1, 32), ms, joules=CPU_W * 0.01, cpu_ms=10.0))
            device.rest(5)
        device.extra_w = 0.0
        device.rest(1000)
        return batches

    unattributed_uj = 0
    for ms, flood_w in ((10.0, 0.0), (100.0, CPU_W), (10.0, 0.0)):
        batches = serve(ms, flood_w)
        told_uj = [device.energy_uj(each) for each in batches]
        assert told_uj == pytest.approx([CPU_W * 0.01 * 1e6] * len(batches), rel=0.03)
        assert sum(told_uj) == pytest.approx(CPU_W * 0.01 * 1e6 * len(batches), rel=0.005)
        assert not any(line.receipt.warnings for each in batches for line in each.lines)
        unattributed_uj, before_uj = device.books.ledger.unattributed_uj, unattributed_uj
        flood_uj = flood_w * len(batches) * (ms + 5.0) * 1e3
        assert unattributed_uj - before_uj == pytest.approx(flood_uj, rel=0.01, abs=0.2e6)
