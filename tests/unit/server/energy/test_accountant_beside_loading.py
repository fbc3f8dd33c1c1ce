"""What the accountant makes of a variant that is loaded while another one, well known, goes on serving.

A lawful device at 50 W; its counter is stepped, every 100 ms, lags and ramps, and is read every 10 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.fixtures.lawful_device import BATCH_MS, SHAPES, LawfulDevice
from wattserve_server.energy.costlaw import Coefficients, of_rows
from wattserve_server.energy.device import Response
from wattserve_server.energy.receipt import Window

pytestmark = pytest.mark.long

OLD, NEW = Coefficients(0.05, 0.002), Coefficients(0.03, 0.0008)
FIRST_RUNS = ((1, 8), (1, 16), (1, 32), (1, 64), (16, 24), (16, 64))


@dataclass
class Scene:
    """has_traffic: whether a batch of the old variant comes between any two of the new one."""

    has_traffic: bool
    seed: int
    old: list[Window] = field(default_factory=list)
    new: list[Window] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.device = LawfulDevice(
            response=Response(0.02, 0.025), period_ms=10, step_ms=100.0, laws={"fp32": OLD}
        )
        self.device.warm_up()
        self.device.laws["bf16"] = NEW
        self.device.rest(2000.0)

    def beside(self) -> None:
        if self.has_traffic:
            shape = (2, int(self.rng.integers(12, 40)))
            self.old.append(self.device.run("fp32", shape, BATCH_MS))

    def load(self, scale: float = 1.0) -> None:
        """The profiler's look, told as one token; each shape twice, of which the first one compiles.

        scale: of the joules that this uses beyond its batches' own."""
        self.beside()
        self.device.run("bf16", (1, 1), 300.0, kind="first run", joules=12.0 * scale)
        for count, length in FIRST_RUNS:
            batch_j = NEW.cost_j(of_rows(count * length, length))
            self.beside()
            first_j = batch_j + scale * (2 * batch_j + 1.5)
            self.device.run("bf16", (count, length), 60.0, kind="first run", joules=first_j)
            self.beside()
            self.device.run("bf16", (count, length), 15.0, kind="first run")

    def calibrate(self) -> None:
        for shape in SHAPES:
            until_ms = self.device.now_ms + 200
            while self.device.now_ms < until_ms:
                self.beside()
                self.device.run("bf16", shape, BATCH_MS, kind="warm-up")
            self.device.rest(250.0)

    def serve(self, batches: int = 40) -> None:
        for number in range(batches):
            self.beside()
            shape = (1 if number % 2 else 8, int(self.rng.integers(12, 60)))
            self.new.append(self.device.run("bf16", shape, BATCH_MS))
            self.device.rest(float(self.rng.exponential(40.0)))
        self.device.rest(2000.0)

    def energy(self, batches: list[Window]) -> float:
        """Settled joules over true ones, of all of them together."""
        true = sum(self.device.truth_uj[id(line)] for batch in batches for line in batch.lines)
        return sum(self.device.energy_uj(batch) for batch in batches) / true

    def ratios(self, batches: list[Window]) -> np.ndarray:
        """Settled joules over true ones, by batch."""
        true = [sum(self.device.truth_uj[id(line)] for line in batch.lines) for batch in batches]
        return np.array([self.device.energy_uj(batch) for batch in batches]) / true


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_traffic", [True, False], ids=["beside traffic", "alone"])
@pytest.mark.parametrize("scale", [1.0, 0.03])
def test_neither_the_newcomer_nor_its_neighbour_pays_for_a_load(
    has_traffic: bool, scale: float, seed: int
) -> None:
    scene = Scene(has_traffic, seed)
    scene.load(scale)
    scene.device.rest(300.0)
    scene.calibrate()
    scene.serve()
    new = scene.ratios(scene.new)
    assert new.mean() == pytest.approx(1.0, abs=0.1)
    assert new[:10].mean() == pytest.approx(1.0, abs=0.15)
    if has_traffic:
        assert scene.ratios(scene.old).mean() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_traffic", [True, False], ids=["beside traffic", "alone"])
def test_without_trials_requests_teach_the_law(has_traffic: bool, seed: int) -> None:
    scene = Scene(has_traffic, seed)
    scene.load()
    scene.serve(80)
    # All their joules; how they depend on the size is learned later.
    assert scene.energy(scene.new[:20]) == pytest.approx(1.0, abs=0.25)
    assert scene.energy(scene.new[20:]) == pytest.approx(1.0, abs=0.1)
    assert scene.ratios(scene.new)[40:].mean() == pytest.approx(1.0, abs=0.2)
    if has_traffic:
        assert scene.ratios(scene.old).mean() == pytest.approx(1.0, abs=0.03)


def test_before_a_law_is_known_nothing_is_said_provisionally() -> None:
    scene = Scene(True, 0)
    scene.load()
    scene.serve(1)
    assert scene.device.provisional[id(scene.new[0].lines[0])] is None
    scene.serve(80)
    said = scene.device.provisional[id(scene.new[-1].lines[0])]
    assert said == pytest.approx(scene.device.truth_uj[id(scene.new[-1].lines[0])], rel=0.3)


def test_what_loading_used_is_booked_to_warm_up() -> None:
    scene = Scene(True, 1)
    before_uj = scene.device.books.ledger.warmup_uj
    scene.load()
    scene.device.rest(2000.0)
    booked_j = (scene.device.books.ledger.warmup_uj - before_uj) / 1e6
    shapes_j = sum(4 * NEW.cost_j(of_rows(count * length, length)) + 1.5 for count, length in FIRST_RUNS)
    assert booked_j == pytest.approx(12.0 + shapes_j, rel=0.1)
