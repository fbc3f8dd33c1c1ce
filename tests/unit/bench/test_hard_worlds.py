"""The devices of the worlds that are not lawful: what they draw, and what their sensors make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.bench.attribution.__main__ import chosen, seeds_of
from tests.bench.attribution.device import Batch, History
from tests.bench.attribution.drive import Others, VirtualMeter, drive
from tests.bench.attribution.hard_worlds import AROUND_PAUSES, BUSY_STRANGER, IDLE_STRANGER, hard_worlds
from tests.bench.attribution.newcomer import FIRST, look_at_newcomer
from tests.bench.attribution.realise import Realisation, realise
from tests.bench.attribution.receipts import WRONG, Span, errors
from tests.bench.attribution.scenarios import BF16, DEVICE, FP32, scenarios
from tests.bench.attribution.sensor import counted
from tests.bench.attribution.trace import Trace, foreign_steps
from tests.bench.attribution.world import (
    CounterModel,
    IdleModel,
    Lengths,
    Loading,
    Pause,
    Poisson,
    SideBySide,
    Workload,
    World,
)

pytestmark = pytest.mark.long

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
    meter, told = VirtualMeter(0.1), []
    for at_s in (0.0, 1.0, 6.0, 7.0, 11.0, 12.0):
        meter.show(round(at_s * 1e9), 0, None, others.worked_s(at_s))
        told.append(meter.others_at_work())
    assert told[0] is None
    assert told[1:] == pytest.approx([0.0, 0.12, 0.6, 0.45, 0.0])


def test_a_span_that_comes_again_is_all_of_its_times() -> None:
    again = Span("paused", 15, 17, every_s=10)
    at = np.array([5.0, 14.9, 15.0, 16.9, 17.0, 25.0, 26.9, 27.5])
    assert again.holds(at).tolist() == [False, False, True, True, False, True, True, False]
    assert Span("once", 15, 17).holds(at).tolist() == [False, False, True, True] + [False] * 4


def test_strangers_with_long_pauses_draw_where_their_spans_say_so() -> None:
    name = "busy stranger, long pauses"
    load = next(scenario.world.foreign for scenario in hard_worlds() if scenario.name == name)
    at_s = np.arange(0.0, 90.0, 0.5)
    draw = foreign_steps(load, History([], [(0.0, 0.0)], 0.0, 95.0), np.random.default_rng(0))
    drawn = np.diff(draw.joules(np.append(at_s, 90.0), 0.0)) > 0
    draws, until, stopped = (span.holds(at_s) for span in AROUND_PAUSES)
    assert np.array_equal(drawn, draws)
    assert not (until & stopped).any()
    assert (drawn | until | stopped)[at_s >= 15].all()


def test_an_idle_stranger_is_listed_and_draws_nothing() -> None:
    draw = foreign_steps(IDLE_STRANGER, WORKS, np.random.default_rng(0))
    others = Others(IDLE_STRANGER, draw)
    assert draw.joules(np.array([40.0]), 0.0)[0] == 0
    assert (others.count(7.0), others.worked_s(7.0)) == (1, 0.0)
    assert (Others(None, draw).count(7.0), Others(None, draw).worked_s(7.0)) == (None, None)


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


def _loaded(has_trials: bool) -> Realisation:
    world = replace(DEVICE, variants=(FP32, BF16))
    loading = Loading("bf16", at_s=2.0, rate=10.0, has_trials=has_trials)
    workload = Workload(Poisson(100), 20, weights=(1, 0), loading=loading)
    return realise("loading", world, workload, 1)


def test_a_variant_is_loaded_between_the_others_requests_and_only_then_asked_for() -> None:
    case = _loaded(has_trials=True)
    begun_s = case.history.measured_from_s
    its_own = [batch for batch in case.history.batches if batch.variant == "bf16"]
    loading = [batch for batch in its_own if batch.is_calibration]
    assert loading[0].start_s >= begun_s + 2.0
    assert loading[0].lengths == (1,)
    assert loading[0].end_s - loading[0].start_s == pytest.approx(0.3, rel=0.1)
    twice = [batch.lengths for batch in loading if batch.is_first_run][1:]
    assert twice[::2] == twice[1::2]
    assert case.history.loaded_s == loading[-1].end_s
    assert min(batch.start_s for batch in its_own if not batch.is_calibration) > case.history.loaded_s
    during = [b for b in case.batches if loading[0].start_s < b.start_s < loading[-1].start_s]
    assert {batch.variant for batch in during} == {"fp32"}


def test_trials_beside_requests_take_a_fifth_of_the_device_at_the_most() -> None:
    case = _loaded(has_trials=True)
    trials = [
        b for b in case.history.batches if b.variant == "bf16" and b.is_calibration and not b.is_first_run
    ]
    took_s = sum(batch.end_s - batch.start_s for batch in trials)
    assert took_s >= 5 * 0.3
    assert took_s <= 0.2 * (trials[-1].end_s - trials[0].start_s) + trials[-1].end_s - trials[-1].start_s
    assert len({batch.lengths for batch in trials[:5]}) == 5
    assert all(batch.is_first_run for batch in _loaded(False).history.batches if _is_loading(batch))


def _is_loading(batch: Batch) -> bool:
    return batch.variant == "bf16" and batch.is_calibration


def test_windows_of_first_runs_say_so_and_have_nobody_to_charge() -> None:
    case = _loaded(has_trials=True)
    of_loading = [w for w in case.windows if w.variant == "bf16" and w.is_warmup]
    first = [window for window in of_loading if window.is_first_run]
    assert 0 < len(first) < len(of_loading)
    assert not any(window.lines for window in first)


def test_a_night_comes_between_requests_and_changes_none_of_them() -> None:
    day = Workload(Poisson(5), 20)
    plain = realise("night", DEVICE, day, 1)
    night = realise("night", DEVICE, replace(day, pause=Pause(10, 1000)), 1)
    assert [b.lengths for b in plain.batches] == [b.lengths for b in night.batches]
    later = [a.start_s - b.start_s for a, b in zip(night.batches, plain.batches, strict=True)]
    begun_s = plain.history.measured_from_s + 10
    expected = [1000.0 * (batch.start_s >= begun_s) for batch in plain.batches]
    assert later == pytest.approx(expected, abs=0.05)


def test_two_variants_side_by_side_are_never_alone_but_when_told() -> None:
    world = replace(DEVICE, variants=(FP32, BF16))
    load = Workload(SideBySide(10, alone_at_s=1.0, alone_s=1.0), 5, Lengths(sigma=0.0), is_calibrated=False)
    case = realise("side by side", world, load, 1)
    seconds: dict[int, list[str]] = {}
    for batch in case.batches:
        seconds.setdefault(int(batch.start_s - case.history.measured_from_s), []).append(batch.variant)
    assert seconds[1] == ["fp32"] * 10
    assert seconds[2] == ["bf16"] * 10
    assert all(seconds[second] == ["fp32", "bf16"] * 10 for second in (0, 3, 4))
    assert all(batch.is_first_run for batch in case.history.batches if batch.is_calibration)


def test_a_newcomer_is_judged_by_its_first_receipts_and_its_neighbours_by_theirs() -> None:
    case = _loaded(has_trials=False)
    outcome = drive(case)
    is_its_own = case.requests.variant == 1
    outcome.got_uj = case.requests.true_uj * np.where(is_its_own, 2.0, 0.5)
    outcome.got_uj[np.flatnonzero(is_its_own)[:4]] = np.nan
    outcome.got_uj[np.flatnonzero(is_its_own)[4 : 4 + FIRST]] *= 3
    outcome.is_warned[:] = False
    found = look_at_newcomer(case, outcome)
    assert found is not None
    assert found.first_over_true == pytest.approx(6.0)
    assert found.first_over_later == pytest.approx(3.0)
    assert found.neighbours_over_true == pytest.approx(0.5)
    assert found.neighbours_p95 == pytest.approx(50.0)
    assert found.falsely_warned == 0
