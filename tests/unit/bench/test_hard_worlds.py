"""The devices of the worlds that are not lawful: what they draw, and what their sensors make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.bench.attribution.__main__ import chosen, seeds_of
from tests.bench.attribution.device import History
from tests.bench.attribution.drive import Others
from tests.bench.attribution.hard_worlds import BUSY_STRANGER, IDLE_STRANGER, hard_worlds
from tests.bench.attribution.receipts import WRONG, errors
from tests.bench.attribution.scenarios import DEVICE, scenarios
from tests.bench.attribution.sensor import counted
from tests.bench.attribution.trace import Trace, foreign_steps
from tests.bench.attribution.world import CounterModel, IdleModel, World

WORKS = History([], [(0.0, 0.0), (3.0, 100.0), (4.0, 0.0), (20.0, 60.0), (20.5, 0.0)], 0.0, 40.0)
"""Works from 3 to 4 s and from 20 to 20.5 s: 130 J."""


def _trace(idle: IdleModel, history: History = WORKS) -> Trace:
    return Trace(replace(DEVICE, idle=idle), history, np.random.default_rng(0))


def test_a_device_that_sleeps_draws_less_before_its_first_work_and_after_ten_seconds_of_rest() -> None:
    idle = IdleModel(27.0, walk=0.0, offset_watts=0.0, asleep_watts=10.0, sleeps_after_s=10.0)
    seconds = np.array([0.0, 3.0, 4.0, 14.0, 20.0, 30.5, 40.0])
    drawn = np.diff(_trace(idle).idle(seconds))
    assert drawn / np.diff(seconds) == pytest.approx([10, 27, 27, 10, 27, 10])


def test_sleeping_changes_what_is_drawn_without_work_and_nothing_else() -> None:
    awake = IdleModel(27.0)
    grid = np.linspace(0, 40, 2001)
    one, other = _trace(awake), _trace(replace(awake, asleep_watts=10.0))
    assert np.array_equal(one.work(grid), other.work(grid))
    less = (one.total(grid) - other.total(grid)) - (one.idle(grid) - other.idle(grid))
    assert less == pytest.approx(np.zeros(len(grid)), abs=1e-9)
    assert one.idle(grid)[-1] > other.idle(grid)[-1]


@pytest.mark.parametrize("box_s", [0.1, 1.0])
def test_a_trailing_average_holds_the_energy_back_and_loses_none(box_s: float) -> None:
    trace = _trace(IdleModel(0.0, walk=0.0, offset_watts=0.0))
    times = np.arange(0.0, 40.0, 0.1)
    plain, averaged = (counted(trace, CounterModel(box_s=width), times) for width in (0.0, box_s))
    assert np.all(averaged <= plain + 1e-6)
    assert np.all(np.diff(averaged) >= -1e-6)
    assert averaged[-1] == pytest.approx(130.0, rel=1e-6)
    at_step_s = np.array([3.0 + box_s / 2])  # half of the average sees power that rises at once
    sudden = Trace(
        World(DEVICE.variants, IdleModel(0.0, 0.0, 0.0), ramp_s=0.0), WORKS, np.random.default_rng(0)
    )
    assert counted(sudden, CounterModel(box_s=box_s), at_step_s)[0] == pytest.approx(
        100 * box_s / 8, rel=1e-3
    )


def test_a_sensor_that_looks_part_of_the_time_takes_what_it_saw_for_all_of_it() -> None:
    trace = _trace(IdleModel(40.0, walk=0.0, offset_watts=0.0))
    model = CounterModel(sampled_s=0.025)
    quiet, over_step = np.array([1.0, 1.1, 1.2]), np.array([2.9, 3.0, 3.1])
    assert np.diff(counted(trace, model, quiet)) == pytest.approx([4.0, 4.0])
    looked = trace.total(np.array([3.1])) - trace.total(np.array([3.075]))
    assert np.diff(counted(trace, model, over_step))[1] == pytest.approx(4 * looked[0])


def test_a_regular_stranger_keeps_time_and_is_told_of() -> None:
    draw = foreign_steps(BUSY_STRANGER, WORKS, np.random.default_rng(0))
    assert draw.joules(np.array([0.0, 5.0, 10.0, 15.0, 20.0]), 0.0) == pytest.approx([0, 0, 450, 450, 900])
    others = Others(BUSY_STRANGER, draw)
    assert [others.count(at_s) for at_s in (1.0, 7.0, 12.0)] == [1, 1, 1]
    told = [others.at_work(at_s) for at_s in (1.0, 5.5, 7.0, 10.5, 12.0)]
    assert told == pytest.approx([0.0, 0.3, 0.6, 0.3, 0.0])


def test_an_idle_stranger_is_listed_and_draws_nothing() -> None:
    draw = foreign_steps(IDLE_STRANGER, WORKS, np.random.default_rng(0))
    others = Others(IDLE_STRANGER, draw)
    assert draw.joules(np.array([40.0]), 0.0)[0] == 0
    assert (others.count(7.0), others.at_work(7.0)) == (1, 0.0)
    assert (Others(None, draw).count(7.0), Others(None, draw).at_work(7.0)) == (None, None)


def test_what_is_withheld_or_endless_counts_as_wrong() -> None:
    got = np.array([1.1, np.nan, 1.0, 4.0])
    deviation = np.array([0.1, np.nan, np.inf, np.inf])
    assert errors(got, deviation, np.ones(4)) == pytest.approx([10.0, WRONG, WRONG, 300.0])


def test_names_of_worlds_tell_them_apart() -> None:
    everything = scenarios() + hard_worlds()
    assert len({scenario.name for scenario in everything}) == len(everything)
    assert [s.name for s in chosen(everything, "mixed-16-clients, Sparse")] == [
        "sparse tiny",
        "mixed, 16 clients",
    ]
    assert chosen(everything, None) == everything


def test_seeds_are_named_one_by_one_and_in_ranges() -> None:
    assert seeds_of("1-3,42") == [1, 2, 3, 42]
    with pytest.raises(ValueError, match="x"):
        seeds_of("x")
