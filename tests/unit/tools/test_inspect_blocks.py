"""Timing side by side, and joules from edge to edge, in a world where a run takes what it is told to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from wattserve_server.energy.probe import SensorProbe
from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.engine.variants.variant import Batch
from wattserve_server.errors import MeterError
from wattserve_tools.inspect import blocks
from wattserve_tools.inspect.blocks import Block, Timed, Work, energy_ratio, run_block, speed_up
from wattserve_tools.inspect.joules import BLOCK_PERIODS, BusyClock, Joulemeter, NoFigure, Span

IDLE_WATTS = 10.0
MS = 1_000_000
SOURCE = Source("world", "counter", Quality.MEASURED)


@dataclass
class World:
    """A device that draws IDLE_WATTS and `watts` more while it runs, and a counter that steps."""

    run_ns: int = 2 * MS
    watts: float = 90.0
    period_ns: int = 50 * MS
    now_ns: int = 0
    fj: float = 0.0
    shown: int = 0
    stepped_at_ns: int = 0
    numbers: list[int] = field(default_factory=list)
    read_fault: Callable[[int], str] = lambda now_ns: ""
    wraps_at: Energy | None = None
    most_watts: float | None = None
    idle_watts: float | None = IDLE_WATTS
    poll_period_s: float = 0.02
    source: Source = SOURCE

    def run(self, number: int) -> int:
        self.numbers.append(number)
        self.now_ns += self.run_ns
        self.fj += self.run_ns * (self.watts + IDLE_WATTS) * 1e6
        return self.run_ns

    def clock_ns(self) -> int:
        return self.now_ns

    def read(self) -> Reading:
        if fault := self.read_fault(self.now_ns):
            raise MeterError(fault)
        if self.now_ns - self.stepped_at_ns >= self.period_ns:
            self.stepped_at_ns = self.now_ns
            self.shown = round(self.fj / 1e9)
        shown = self.shown if self.wraps_at is None else self.shown % self.wraps_at.uj
        return Reading(self.now_ns, Energy(shown))

    def neighbours(self) -> int | None:
        return None

    def others_at_work(self) -> float | None:
        return None

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        pass

    def meter(self, **facts: Any) -> Joulemeter:
        """facts: what its probe found, besides what is true."""
        probe = SensorProbe(
            1.0,
            100,
            stepped=True,
            update_period_s=self.period_ns / 1e9,
            read_cost_p50_s=1e-5,
            resolution_uj=1,
        )
        return Joulemeter(self, "", replace(probe, **facts), self.clock_ns)


def test_a_blocks_joules_are_what_its_runs_drew() -> None:
    world = World()
    block = run_block(world.run, range(10), world.meter())
    assert block.latencies_ns == [2 * MS] * 10
    assert block.span is not None
    assert block.span.seconds >= BLOCK_PERIODS * 0.05
    assert block.span.uj / block.span.runs == pytest.approx(100.0 * 2e-3 * 1e6)


def test_a_counter_that_wraps_around_within_a_block_costs_nothing() -> None:
    world = World(wraps_at=Energy(150_000_000))
    block = run_block(world.run, range(10), world.meter())
    assert block.span is not None
    assert block.span.uj / block.span.runs == pytest.approx(200_000)


def test_every_batch_of_a_block_is_repeated_equally_often_while_it_is_measured() -> None:
    world = World(period_ns=0)
    run_block(world.run, range(5, 12), world.meter(stepped=False, update_period_s=None))
    lead_in, tail = blocks.LEAD_IN_RUNS + 1, 1
    measured = world.numbers[lead_in : len(world.numbers) - tail]
    assert {measured.count(number) for number in range(5, 12)} == {len(measured) // 7}


def test_a_counter_that_stands_still_while_the_model_runs_gives_no_figure() -> None:
    world = World(watts=-IDLE_WATTS)
    block = run_block(world.run, range(4), world.meter())
    assert (block.span, block.reason) == (None, "the counter did not change while the model ran")
    assert len(block.latencies_ns) == 4


def test_a_meter_that_dies_costs_the_figure_and_not_the_latencies() -> None:
    world = World(read_fault=lambda now_ns: "gone" if now_ns > 400 * MS else "")
    block = run_block(world.run, range(30), world.meter())
    assert (len(block.latencies_ns), block.span, block.reason) == (30, None, "gone")


def test_a_counter_that_steps_too_seldom_for_a_block_gives_no_figure_and_says_so() -> None:
    meter = World().meter(update_period_s=3.0)
    assert "steps every 3 s" in meter.reason
    assert "60 s" in meter.reason
    assert run_block(World().run, range(3), meter).span is None


def test_a_counter_that_was_not_seen_to_change_at_rest_gives_no_figure() -> None:
    assert "not seen to step" in World().meter(update_period_s=None, resolution_uj=None).reason


def test_a_block_without_a_meter_has_latencies_and_the_reason() -> None:
    block = run_block(World().run, range(3), "no meter covers it")
    assert (len(block.latencies_ns), block.span, block.reason) == (3, None, "no meter covers it")


def test_a_block_shorter_than_the_counter_needs_gives_no_figure() -> None:
    world = World()
    meter = world.meter()
    start, end = Reading(0, Energy(0)), Reading(100 * MS, Energy(10))
    with pytest.raises(NoFigure, match=r"too short for steps of 0\.05 s"):
        meter.span(start, end, 1)


def timed(*per_block: tuple[int, int]) -> Timed:
    """(latency in ms, total millijoules of a run) of each block; blocks of 1 s with 10 runs."""
    return Timed(
        [Block([ms * MS] * 5, Span(mj * 10_000, 1.0, 10)) for ms, mj in per_block],
    )


def test_active_energy_is_the_total_less_the_idle_draw_of_the_same_time() -> None:
    found = timed((1, 100), (1, 300))
    assert found.energy_mj(batch_size=1) == pytest.approx(200.0)
    assert found.energy_mj(batch_size=1, idle_watts=0.5) == pytest.approx(200.0 - 50.0)
    assert found.energy_mj(batch_size=4) == pytest.approx(50.0)


def test_energy_below_the_idle_draw_is_unknown_and_not_zero() -> None:
    assert timed((1, 100)).energy_mj(batch_size=1, idle_watts=5.0) is None


def test_energy_without_any_block_is_unknown_and_not_zero() -> None:
    assert Timed([Block([MS], None, "gone")]).energy_mj(batch_size=1) is None


def test_the_speed_up_is_the_ratio_of_the_medians_of_all_runs() -> None:
    found = speed_up(timed((10, 1), (20, 1), (30, 1)), timed((5, 1), (10, 1), (15, 1)))
    assert found == {"ratio": 2.0, "low": pytest.approx(2.0), "high": pytest.approx(2.0)}


def test_the_energy_ratio_pairs_blocks_of_the_same_round_and_leaves_idle_out() -> None:
    found = energy_ratio(timed((1, 200), (1, 400)), timed((1, 150), (1, 250)), idle_watts=1.0)
    assert found["ratio"] == pytest.approx(0.5)
    assert (found["pairs"], found["rounds"]) == (2, 2)


def test_the_energy_ratio_of_blocks_without_figures_is_unknown() -> None:
    lost = Timed([Block([MS], None, "gone")])
    for pair in ((timed((1, 200)), lost), (lost, timed((1, 200)))):
        found = energy_ratio(*pair, 0.0)
        assert found == {"ratio": None, "low": None, "high": None, "pairs": 0, "rounds": 1}


@pytest.mark.parametrize("short", [100, 90])
def test_there_is_no_energy_ratio_where_a_block_drew_no_more_than_idle(short: int) -> None:
    """A run of these blocks takes 100 mJ of idle draw at 1 W. Left out, the block would bias the rest."""
    reference = timed((1, 200), (1, 200), (1, 200))
    found = energy_ratio(reference, timed((1, 150), (1, short), (1, 150)), idle_watts=1.0)
    assert found == {"ratio": None, "low": None, "high": None, "pairs": 2, "rounds": 3}
    turned = energy_ratio(timed((1, 150), (1, short), (1, 150)), reference, idle_watts=1.0)
    assert (turned["ratio"], turned["pairs"]) == (None, 2)


class FakeVariant:
    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, batch: Batch) -> np.ndarray:
        self.shapes.append(tuple(batch.inputs["input_ids"].shape))
        return np.zeros((1, 1), dtype=np.float32)


def work(*lengths: int) -> tuple[FakeVariant, Work]:
    variant = FakeVariant()
    prepared = [Batch({"input_ids": torch.zeros(1, length)}, length) for length in lengths]
    standing_in: Any = variant
    return variant, Work(standing_in, prepared, BusyClock(), "no meter")


def test_every_shape_is_warmed_up_even_where_fewer_runs_were_asked_for() -> None:
    variant, warm = work(3, 4, 3, 5)
    warm.warm_up(1)
    assert warm.warmup_runs == 3
    assert {shape[1] for shape in variant.shapes} == {3, 4, 5}


def test_a_warm_up_runs_as_often_as_asked() -> None:
    variant, warm = work(3, 4)
    warm.warm_up(7)
    assert warm.warmup_runs == len(variant.shapes) == 7


@pytest.mark.parametrize(
    ("iterations", "block_s", "rounds"),
    [(500, 0.05, 20), (500, 2.0, 5), (500, 1.0, 10), (90, 0.05, 9), (15, 0.05, 5), (3, 0.05, 3)],
)
def test_there_are_as_many_rounds_as_the_meter_allows_and_at_least_five_where_there_are_runs(
    iterations: int, block_s: float, rounds: int
) -> None:
    assert blocks.rounds_for(iterations, block_s) == rounds


def test_variants_take_turns_in_a_seeded_order_on_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[int, range]] = []
    works = [work(3)[1] for _ in range(3)]

    def noted(run: Any, numbers: range, *_: object) -> Block:
        order.append(([each.run for each in works].index(run), numbers))
        return Block([MS] * len(numbers), None)

    monkeypatch.setattr(blocks, "run_block", noted)
    results = blocks.time_side_by_side(works, iterations=52, rounds=6, seed=4)
    assert [len(each.latencies_ns) for each in results] == [52] * 3
    rounds = [order[start : start + 3] for start in range(0, len(order), 3)]
    assert len(rounds) == 6
    assert all(sorted(index for index, _ in each) == [0, 1, 2] for each in rounds)
    assert all(len({numbers for _, numbers in each}) == 1 for each in rounds)
    assert len({tuple(index for index, _ in each) for each in rounds}) > 1
    again = list(order)
    order.clear()
    blocks.time_side_by_side(works, iterations=52, rounds=6, seed=4)
    assert order == again
