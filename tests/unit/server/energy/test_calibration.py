"""What a stretch of metered history says of a device: its response, its idle draw, its laws."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.fixtures.windows import receipt
from wattserve_server.energy.calibration import (
    LEAST_INTERVALS,
    Arrays,
    CounterInterval,
    Fit,
    History,
    counted_at_random,
    find_response,
    fit,
)
from wattserve_server.energy.calibrator import Looked
from wattserve_server.energy.costlaw import CLASSES, SIZE, Array, of_rows
from wattserve_server.energy.device import Response, rest_times
from wattserve_server.energy.estimate import CORRECTION, IDLE, Estimate
from wattserve_server.energy.openbatches import TimedWindow
from wattserve_server.energy.receipt import Line, Window

IDLE_W = 60.0
LAWS = {"fp32": (1.0, 0.02, 1e-4), "bf16": (0.4, 0.01, 0.0)}
SHAPES = ((1, 8), (1, 64), (4, 24), (16, 24), (16, 64))


def cost_j(variant: str, tokens: int, length: int) -> float:
    fixed, per_token, per_square = LAWS[variant]
    return fixed + per_token * tokens + per_square * tokens * length


def add_batch(history: History, variant: str, start_s: float, end_s: float, tokens: int, length: int) -> None:
    window = Window(variant, round(start_s * 1e9), round(end_s * 1e9), (length,) * (tokens // length), length)
    history.hear(TimedWindow(window, start_s, end_s))


def add_interval(history: History, start_s: float, end_s: float, energy_j: float, rest_s: Array) -> None:
    history.intervals.append((CounterInterval(start_s, end_s, round(energy_j * 1e6)), rest_s))


def warm_up(
    response: Response,
    period_s: float = 0.1,
    noise: float = 0.0,
    seed: int = 1,
    variants: Iterable[str] = tuple(LAWS),
) -> History:
    """Each shape of each variant for 0.4 s, with pauses of 0.4 s, as a counter of that response shows it."""
    rng = np.random.default_rng(seed)
    history = History(1024, 4096)
    spans: list[tuple[float, float]] = []
    joules: list[float] = []
    at_s = 1.0
    for variant in variants:
        for count, length in SHAPES:
            until_s = at_s + 0.4
            while at_s < until_s:
                end_s = at_s + 0.004 + 2e-5 * count * length
                add_batch(history, variant, at_s, end_s, count * length, length)
                spans.append((at_s, end_s))
                joules.append(cost_j(variant, count * length, length) * (1 + noise * rng.standard_normal()))
                at_s = end_s + 0.001
            at_s += 0.4
    starts, ends = np.array(spans).T
    edges = np.arange(0.0, at_s + 0.5, period_s)
    for since, until in pairwise(edges.tolist()):
        parts = response.counted(until, starts, ends) - response.counted(since, starts, ends)
        touching = [span for span in spans if span[1] > since and span[0] < until]
        last_s = max((end for _, end in spans if end <= since), default=-math.inf)
        rest_s = rest_times(since, until, touching, last_s)
        add_interval(history, since, until, IDLE_W * (until - since) + float(parts @ joules), rest_s)
    return history


def found(history: History, present: Response, idle: tuple[Array, Array] | None = None) -> Response:
    table = history.arrays()
    assert table is not None
    factors, columns = table.shape_columns()
    return find_response(table, factors, columns, int(columns.max()) + 1, present, idle)


def fitted(history: History, response: Response, idle_w: float = 55.0) -> Fit:
    table = history.arrays()
    assert table is not None
    return fit(table, response, np.full(CLASSES, idle_w), (0.1 * idle_w) ** 2 * np.eye(CLASSES), 0.1)


@pytest.mark.parametrize(
    "truth", [Response(0.0, 0.0), Response(0.03, 0.0), Response(0.02, 0.04), Response(0.055, 0.015)], ids=str
)
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_response_is_found_to_within_a_few_milliseconds(truth: Response, noise: float) -> None:
    best = found(warm_up(truth, noise=noise), Response())
    assert best.lag_s == pytest.approx(truth.lag_s, abs=0.006)
    assert best.ramp_s == pytest.approx(truth.ramp_s, abs=0.008)
    assert best.reach_s == pytest.approx(truth.reach_s, abs=0.025)


@pytest.mark.parametrize(
    "truth",
    [Response(0.15, 0.025), Response(0.28, 0.0), Response(0.02, 0.02, 0.1), Response(0.02, 0.02, 1.0)],
    ids=str,
)
def test_long_lags_and_trailing_averages_are_found_too(truth: Response) -> None:
    best = found(warm_up(truth, noise=0.03), Response())
    assert best.average_s == truth.average_s
    assert best.lag_s + best.ramp_s == pytest.approx(truth.lag_s + truth.ramp_s, abs=0.012)


def test_an_average_that_explains_no_better_than_a_ramp_is_not_believed() -> None:
    assert found(warm_up(Response(0.02, 0.03), noise=0.03), Response()).average_s == 0.0


def test_a_law_of_any_form_leaves_the_response_alone() -> None:
    """Each shape has a column of its own: the four-fold cost of the largest is no lag."""
    history = History(1024, 4096)
    plain = warm_up(Response(0.05, 0.02))
    history.batches.extend(plain.batches)
    large = [item for item in plain.batches if item.features.tokens == 1024]
    starts, ends = np.array([(item.start_s, item.end_s) for item in large]).T
    more_j = np.array([3 * cost_j(item.law, 1024, 64) for item in large])
    for interval, rest_s in plain.intervals:
        until, since = (
            Response(0.05, 0.02).counted(at_s, starts, ends) for at_s in (interval.end_s, interval.start_s)
        )
        energy_j = interval.energy_uj / 1e6 + float((until - since) @ more_j)
        add_interval(history, interval.start_s, interval.end_s, energy_j, rest_s)
    best = found(history, Response())
    assert (best.lag_s, best.ramp_s) == pytest.approx((0.05, 0.02), abs=0.004)


def at_random(history: History, response: Response) -> float:
    table = history.arrays()
    assert table is not None
    factors, columns = table.shape_columns()
    return counted_at_random(table, response, factors, columns, int(columns.max()) + 1)


def disturbed(history: History, by_j: Array) -> History:
    for index, (interval, rest_s) in enumerate(list(history.intervals)):
        energy_uj = interval.energy_uj + round(by_j[index] * 1e6)
        history.intervals[index] = (replace(interval, energy_uj=energy_uj), rest_s)
    return history


def test_a_counter_that_is_explained_counts_nothing_at_random() -> None:
    truth = Response(0.02, 0.025)
    assert at_random(warm_up(truth, noise=0.03), truth) < 0.05


def counted_j(history: History) -> Array:
    return np.array([interval.energy_uj / 1e6 for interval, _ in history.intervals])


def test_energy_that_is_lost_or_found_between_intervals_is_counted_at_random() -> None:
    truth, history = Response(0.02, 0.025), warm_up(Response(0.02, 0.025))
    work_j = counted_j(history) - 0.1 * IDLE_W
    by_j = 0.2 * work_j * np.random.default_rng(0).standard_normal(len(work_j))
    assert at_random(disturbed(history, by_j), truth) > 0.2


def test_what_batches_alike_deviate_by_is_nothing_at_random() -> None:
    """Where an interval holds one batch or two, and the device hardly rests between them."""
    history = warm_up(Response(0.02, 0.02), period_s=0.02, noise=0.05)
    assert at_random(history, Response(0.02, 0.02)) < 0.02


def misplaced(history: History, off_s: float, seed: int) -> History:
    watts = counted_j(history) / 0.1
    late_s = off_s * np.random.default_rng(seed).standard_normal(len(watts) - 1)
    late_j = np.concatenate([[0.0], late_s * (watts[1:] + watts[:-1]) / 2, [0.0]])
    return disturbed(history, np.diff(late_j))


@pytest.mark.long
def test_what_is_drawn_right_after_work_is_not_taken_for_work() -> None:
    """A longer ramp beside a lower idle draw explains much the same. What the device draws at work and in the
    second after it is known to be alike; without, one of 24 calibrations is 8 W off."""
    truth, first = Response(0.06, 0.04), Estimate()
    first.set_idle(55.0)
    known = first.idle_w, first.p[IDLE, IDLE]

    def worst_w(idle: tuple[Array, Array] | None) -> float:
        off_w = []
        for seed in range(24):
            history = misplaced(warm_up(truth, noise=0.04, seed=seed, variants=("fp32",)), 0.002, seed)
            table = history.arrays()
            assert table is not None
            values = fit(table, found(history, Response(), idle), *known, CORRECTION).values
            off_w.append(abs(values[0] - IDLE_W))
        return float(max(off_w))

    assert worst_w(known) < 4.0 < 7.0 < worst_w(None)


def test_a_misplaced_edge_is_nothing_at_random() -> None:
    """What one interval lacks the next one has: edges are 3 ms off."""
    truth = Response(0.02, 0.025)
    assert at_random(misplaced(warm_up(truth), 0.003, seed=0), truth) == 0.0


def test_a_history_keeps_nothing_of_whom_its_batches_answered() -> None:
    history = History(100, 100)
    answered = Line(receipt(), 8)
    batch = TimedWindow(Window("fp32", 0, 10, (8,), 8, (answered,)), 0.0, 1e-8)
    history.hear(batch)
    del batch
    gc.collect()
    assert not [each for each in gc.get_referrers(answered) if isinstance(each, tuple)]


def test_a_response_that_explains_as_well_as_any_is_kept() -> None:
    present = Response(0.03, 0.0)
    assert found(warm_up(present, noise=0.03), present) == present


def test_without_evidence_the_present_response_is_kept() -> None:
    history = History(100, 100)
    add_batch(history, "fp32", 1.0, 1.05, 96, 24)  # one small batch in 3 s of idle draw
    for step in range(30):
        noise = 0.05 * (-1) ** step
        add_interval(history, 0.1 * step, 0.1 * step + 0.1, 6.0 + noise, np.array([0.1, 0, 0, 0, 0]))
    present = Response(0.02, 0.01)
    assert found(history, present) == present


def test_too_short_a_history_says_nothing() -> None:
    history = History(100, 100)
    for step in range(LEAST_INTERVALS):
        assert history.arrays() is None
        add_interval(history, 0.1 * step, 0.1 * step + 0.1, 6.0, np.zeros(CLASSES))
    assert history.arrays() is None  # and no batch
    add_batch(history, "fp32", 0.5, 0.6, 96, 24)
    assert history.arrays() is not None
    history.intervals.clear()
    assert history.arrays() is None


def test_intervals_whose_batches_are_forgotten_already_are_left_out() -> None:
    history = History(100, 4)
    for step in range(30):
        add_batch(history, "fp32", 0.1 * step, 0.1 * step + 0.05, 96, 24)
        add_interval(history, 0.1 * step, 0.1 * step + 0.1, 6.0, np.zeros(CLASSES))
    assert history.arrays() is None  # only three intervals are left of which every batch is known


@pytest.mark.parametrize("response", [Response(), Response(0.02, 0.04)], ids=str)
def test_known_laws_and_idle_draw_are_recovered(response: Response) -> None:
    result = fitted(warm_up(response), response)
    assert result.laws == ("fp32", "bf16")
    assert result.values[:2] == pytest.approx([IDLE_W, IDLE_W], rel=0.05)  # two classes seen
    for base, law in zip(result.bases, LAWS, strict=True):
        for count, length in (*SHAPES, (8, 48)):
            tokens = count * length
            said = float(base @ of_rows(tokens, length))
            assert said == pytest.approx(cost_j(law, tokens, length), rel=0.04)


def test_what_was_not_seen_is_not_known() -> None:
    result = fitted(warm_up(Response()), Response())
    deviations = np.sqrt(np.diagonal(result.covariance))
    assert deviations[0] < 0.3  # just after work: heard for seconds
    assert deviations[CLASSES - 2] == pytest.approx(5.5)  # four seconds after it: never
    assert len(result.values) == CLASSES + 2 * SIZE


def test_the_covariance_is_one() -> None:
    covariance = fitted(warm_up(Response(), noise=0.03), Response()).covariance
    assert np.abs(covariance - covariance.T).max() < 1e-9
    assert np.linalg.eigvalsh((covariance + covariance.T) / 2).min() > -1e-9


@pytest.mark.parametrize("seed", range(5))
def test_smooth_coefficients_are_never_negative(seed: int) -> None:
    for base in fitted(warm_up(Response(), noise=0.3, seed=seed), Response()).bases:
        assert base.min() >= 0


def test_whitened_deviations_are_independent_and_of_size_one() -> None:
    rng = np.random.default_rng(1)
    late_j, model_j = rng.random(20), 0.1 + rng.random(20)
    taken = np.eye(20) - np.eye(
        20, k=-1
    )  # what an edge's instant gives to one interval it takes from the next
    taken[0, 0] = math.sqrt(2.0)  # the edge before the first one is as late
    white = Arrays._whitening(late_j, model_j)
    covariance = taken @ np.diag(late_j**2) @ taken.T + np.diag(model_j**2)
    covariance[0, 1] = covariance[1, 0] = -(late_j[0] ** 2)
    assert white @ covariance @ white.T == pytest.approx(np.eye(20), abs=1e-9)


def test_what_variants_calibrations_find_at_random_adds_up_while_the_counter_is_as_late_as_before() -> None:
    looked = Looked()
    assert looked.together(["fp32"], Response(0.01, 0.035)) == 0.0
    assert looked.together(["bf16"], Response(0.025, 0.0225, at_random=0.2)) == pytest.approx(0.2 / 2**0.5)
    assert looked.together(["bf16"], Response(0.025, 0.0225)) == 0.0  # calibrated again
    assert looked.together(["int8"], Response(0.1, 0.0225, at_random=0.2)) == pytest.approx(0.2)
