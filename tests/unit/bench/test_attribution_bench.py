"""The simulator behind `python -m tests.bench.attribution`: its truth is one, and stays where it is."""

from __future__ import annotations

import gc
import itertools
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.bench.attribution import drive as driver
from tests.bench.attribution.device import Batch, Device, History
from tests.bench.attribution.drive import drive
from tests.bench.attribution.metrics import OURS, evaluate
from tests.bench.attribution.random_worlds import random_scenario
from tests.bench.attribution.realise import Realisation, Requests, realise
from tests.bench.attribution.report import render
from tests.bench.attribution.scenarios import BF16, DEVICE, FP32, LAWFUL, Scenario
from tests.bench.attribution.sensor import Published
from tests.bench.attribution.shapley import exact_shares, rule_shares
from tests.bench.attribution.trace import Steps, Trace
from tests.bench.attribution.world import ClosedLoop, CounterModel, ForeignLoad, Workload, World
from wattserve_server.energy.receipt import Window
from wattserve_server.meters.sampler import Sampler

pytestmark = pytest.mark.long

OVERLAPPING = replace(DEVICE, variants=(FP32, BF16), slots=3, sublinear=0.03, foreign=ForeignLoad())
SHORT = Workload(ClosedLoop(12), 3.0)


@pytest.fixture(scope="module")
def case() -> Realisation:
    return realise("test", OVERLAPPING, SHORT, 5)


def test_what_batches_drew_is_what_the_device_drew(case: Realisation) -> None:
    end = np.array([case.history.end_s])
    drawn = sum(batch.joules for batch in case.history.batches)
    assert case.trace.work(end)[0] == pytest.approx(drawn, rel=1e-9)
    assert case.requests.true_uj.sum() == pytest.approx(1e6 * sum(b.joules for b in case.batches), rel=1e-9)
    assert case.requests.exact_uj.sum() == pytest.approx(case.requests.true_uj.sum(), rel=1e-9)
    windows = [line for window in case.windows for line in window.lines]
    assert len(windows) == len(case.requests.true_uj)


def test_the_counter_publishes_the_energy_late_in_steps_and_in_whole_millijoules() -> None:
    world = replace(DEVICE, counter=CounterModel(0.05, 0.001, 0.03))
    case = realise("counter", world, SHORT, 5)
    at_s, millijoules = case.published.at_s[1:], case.published.millijoules
    lagging = np.maximum(at_s - 0.03, 0.0)
    assert np.array_equal(millijoules[1:] - millijoules[0], np.floor(1000 * case.trace.total(lagging)))
    assert np.abs(np.diff(at_s) - 0.05).max() < 0.0061
    assert np.std(np.diff(at_s)) > 0.0005


def test_smeared_power_follows_the_ramp() -> None:
    steps, ramp_s, grid_s = Steps(np.array([0, 0.1, 0.15, 0.3]), np.array([0, 200, 50, 0.0])), 0.03, 1e-5
    times = np.arange(0, 1, grid_s)
    power = steps.watts[np.searchsorted(steps.starts, times, side="right") - 1]
    level, levels = 0.0, []
    for watts in power:
        level += (watts - level) * grid_s / ramp_s
        levels.append(level)
    assert steps.joules(times, ramp_s) == pytest.approx(np.cumsum(levels) * grid_s, abs=0.02)
    assert steps.joules(np.array([5.0]), ramp_s)[0] == pytest.approx(200 * 0.05 + 50 * 0.15)


def test_idle_draw_is_higher_during_work_and_for_a_while_after_it() -> None:
    model = replace(DEVICE.idle, walk=0.0, offset_watts=8.0, hold_s=2.0, decay_s=0.0)
    history = History([], [(0.0, 0.0), (3.0, 100.0), (4.0, 0.0)], 0.0, 10.0)
    idle = Trace(replace(DEVICE, idle=model), history, np.random.default_rng(0)).idle
    seconds = idle(np.array([1.0, 3.0, 4.0, 6.0, 9.0])) - model.watts * np.array([1, 3, 4, 6, 9])
    assert seconds / model.offset_watts == pytest.approx([0, 0, 1, 3, 3])


@pytest.mark.parametrize("sublinear", [0.0, 0.05])
def test_overlap_slows_batches_and_keeps_their_energy_but_for_the_saving(sublinear: float) -> None:
    world = World((FP32,), noise=0, duration_noise=0, thermal_gain=0, slots=2, sublinear=sublinear)
    alone_s = float(FP32.seconds(4, 100))
    device = Device(world, np.random.default_rng(0))
    batches = [device.start("fp32", (100,) * 4) for _ in range(2)]
    device.advance(device.next_end_s)
    for batch in batches:
        assert batch.end_s == pytest.approx(2 * alone_s / (1 + world.overlap_speedup))
        assert batch.joules == pytest.approx(float(FP32.joules(4, 100)) * (1 - sublinear))


def _values(lengths: tuple[int, ...], cost: Callable[[int, int], float]) -> np.ndarray:
    """Shapley values by definition: over all orders in which the sequences may join."""
    values, orders = np.zeros(len(lengths)), list(itertools.permutations(range(len(lengths))))
    for order in orders:
        before = 0.0
        for position, index in enumerate(order, start=1):
            after = cost(position, max(lengths[i] for i in order[:position]))
            values[index] += (after - before) / len(orders)
            before = after
    return values / float(values.sum())


@pytest.mark.parametrize("lengths", [(7,), (9, 9, 9), (5, 9, 2), (10, 200, 40, 10, 100)])
def test_shares_are_shapley_values(lengths: tuple[int, ...]) -> None:
    exact = _values(lengths, lambda count, longest: float(FP32.joules(count, longest)))
    assert exact_shares(FP32, lengths) == pytest.approx(exact)
    fixed = float(FP32.joules(1, 0))
    rule = _values(lengths, lambda count, longest: fixed + count * (float(FP32.joules(1, longest)) - fixed))
    assert rule_shares(FP32, lengths) == pytest.approx(rule)


class Spy(Sampler):
    """Remembers itself and what it drained."""

    def __init__(self, drained: list[Any], meter: Any, drain: Any, *args: Any, **options: Any) -> None:
        def watched() -> Any:
            drained.append(drain())
            return drained[-1]

        super().__init__(meter, watched, *args, **options)
        drained.append(self)


def _reachable(root: object) -> Iterator[object]:
    """Every object that can be got at from `root`, but for code and classes."""
    seen, stack = {id(root)}, [root]
    while stack:
        item = stack.pop()
        yield item
        for found in gc.get_referents(item):
            if isinstance(found, types.FunctionType) and found.__closure__:
                found = found.__closure__
            if id(found) not in seen and not isinstance(found, type | types.ModuleType | types.FunctionType):
                seen.add(id(found))
                stack.append(found)


def test_no_truth_can_be_reached_from_what_the_sampler_is_given(
    case: Realisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained: list[Any] = []
    monkeypatch.setattr(driver, "Sampler", partial(Spy, drained))
    drive(case)
    truth = (Batch, History, Trace, Requests, Published, Realisation, World)
    arrays = {id(getattr(case.requests, field.name)) for field in fields(Requests)}
    seen = list(_reachable(drained[0]))
    assert sum(isinstance(item, Window) for item in seen) == len(case.windows)  # the walk gets around
    assert not [item for item in seen if isinstance(item, truth) or id(item) in arrays]


def test_windows_are_handed_over_before_the_instant_they_are_known_until(
    case: Realisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained: list[Any] = []
    monkeypatch.setattr(driver, "Sampler", partial(Spy, drained))
    drive(case)
    handed: set[int] = set()
    for windows, known_until_ns in drained[1:]:
        handed |= {id(window) for window in windows}
        assert all(id(w) in handed for w in case.windows if w.start_ns < known_until_ns)
    assert len(handed) == len(case.windows)


def test_a_run_is_repeatable_conserves_and_can_be_shown() -> None:
    def once() -> Any:
        case = realise("test", OVERLAPPING, SHORT, 5)
        return evaluate(case, drive(case))

    first, second = once(), once()
    assert first.accuracy == second.accuracy
    assert first.conduct.residual_uj == 0
    assert first.conduct.violations == 0, first.conduct.broken
    assert first.conduct.uncharged == 0
    assert first.accuracy[OURS].median >= 0
    assert "test" in render([Scenario("test", OVERLAPPING, SHORT, LAWFUL)], [first])


def test_random_worlds_depend_on_their_number_and_seed_alone() -> None:
    assert random_scenario(3, 1) == random_scenario(3, 1)
    assert random_scenario(3, 1) != random_scenario(3, 2)
    assert random_scenario(3, 1).world != random_scenario(4, 1).world
