"""Calibration: what a stretch of metered history says of a device, all at once.

First the response: which lag, ramp and trailing average lets batches and idle draw explain best what each
interval counted. Then, with it, the idle draw and every variant's cost law by regularised least
squares. Pure functions of a `History`; the filter goes on from their result.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.costlaw import (
    CLASSES,
    SIZE,
    SMOOTH,
    Array,
    Features,
    correction_covariance,
    factors_of,
)
from wattserve_server.energy.device import DECAYS, MOST_LAG_S, MOST_RAMP_S, Response, uneven_j
from wattserve_server.energy.estimate import BATCH_NOISE
from wattserve_server.energy.openbatches import TimedWindow

# What real sensors have: trailing averages over so long, or none, lags up to so much, and ramps. Of each
# average the search begins at these lags and ramps and goes on to the best neighbour, in ever smaller steps.
AVERAGES_S = (0.0, 0.025, 0.1, 1.0)
MOST_REACH_S = Response(MOST_LAG_S, MOST_RAMP_S, AVERAGES_S[-1]).reach_s
LAGS_S = (0.0, 0.04, 0.08, 0.12, 0.18, 0.24, MOST_LAG_S)
RAMPS_S = (0.0, 0.03, 0.08)
STEPS_S = (0.01, 0.005, 0.0025)

CLEAR_GAIN = 12.0  # twice the log-likelihood ratio by which another response must be better than the present
EARNED = 2.0  # the same, by which one with a longer average must be better than one with a shorter
LEAST_INTERVALS = 12  # fewer intervals say nothing of a response
MISPLACED = (
    0.5  # where neighbouring intervals make up for more than this of what they lack, edges are to blame
)
# How wide a law's smooth coefficients are believed, each as if it alone explained a batch.
WIDE = np.array([1.0, 1.0, 0.5, 0.5, 0.5])
MODEL_ERROR = 0.02  # relative deviation of an interval's energy from what any law of this form says of it


@dataclass(frozen=True, slots=True)
class CounterInterval:
    """What the counter counted up to one of its edges, on the accountant's time (see `TimedWindow`)."""

    start_s: float  # the edge before
    end_s: float
    energy_uj: int
    deviation_s: float = 0.0  # of the instant of the edge at its end
    is_first: bool = False  # nothing is known of when its energy began to be counted
    gap_reason: str = ""  # why its energy belongs to no batch; empty for a good edge


@dataclass(frozen=True, slots=True)
class Fit:
    laws: tuple[str, ...]
    bases: tuple[Array, ...]  # the smooth part that each law's corrections are relative to
    values: Array  # of the idle classes (watts), then of each law's coefficients (joules)
    covariance: Array  # of the values


class PastBatch(NamedTuple):
    """What is read of a batch that is long settled: not its lines, which would keep its receipts."""

    law: str
    start_s: float
    end_s: float
    features: Features


class History:
    """The last intervals between good edges, and the batches in them. Times in seconds."""

    def __init__(self, most_intervals: int, most_batches: int) -> None:
        # Each with its seconds in each class of rest. They follow each other without a hole.
        self.intervals: deque[tuple[CounterInterval, Array]] = deque(maxlen=most_intervals)
        self.batches: deque[PastBatch] = deque(maxlen=most_batches)

    def hear(self, batch: TimedWindow) -> None:
        self.batches.append(PastBatch(batch.law, batch.start_s, batch.end_s, batch.features))

    def arrays(self) -> Arrays | None:
        """None when there is too little of it."""
        batches = list(self.batches)
        intervals = list(self.intervals)
        if len(batches) == self.batches.maxlen:  # of what came before, batches are missing
            intervals = [item for item in intervals if item[0].start_s > batches[0].end_s]
        if len(intervals) < LEAST_INTERVALS:
            return None
        batches = [item for item in batches if item.end_s > intervals[0][0].start_s - MOST_REACH_S]
        return Arrays(intervals, batches) if batches else None


class Arrays:
    """A history as arrays."""

    def __init__(
        self, intervals: Sequence[tuple[CounterInterval, Array]], batches: Sequence[PastBatch]
    ) -> None:
        self.edges_s = np.array([intervals[0][0].start_s, *(item.end_s for item, _ in intervals)])
        self.energy_j = np.array([item.energy_uj / 1e6 for item, _ in intervals])
        self.rest_s = np.array([rest_s for _, rest_s in intervals])
        self.laws = tuple(dict.fromkeys(item.law for item in batches))
        place = {name: index for index, name in enumerate(self.laws)}
        self.law = np.array([place[item.law] for item in batches])
        self.start_s = np.array([item.start_s for item in batches])
        self.end_s = np.array([item.end_s for item in batches])
        features = chain.from_iterable(item.features for item in batches)
        self.features = np.fromiter(features, dtype=float).reshape(-1, SMOOTH)  # [batches, SMOOTH]
        length_s = np.diff(self.edges_s)
        late_s = np.array([max(item.deviation_s, 2e-4) for item, _ in intervals])
        watts = self.energy_j / length_s
        self._white = self._whitening(watts * late_s, MODEL_ERROR * self.energy_j + 1e-6)
        self.target = self._white @ self.energy_j  # what each interval counted, whitened

    @staticmethod
    def _whitening(late_j: Array, model_j: Array) -> Array:
        """What makes the deviations of the intervals independent and of size 1. What an edge's instant
        takes from one interval it gives to the next."""
        variance = late_j**2 + model_j**2
        variance += np.concatenate([late_j[:1], late_j[:-1]]) ** 2
        beside = -(late_j**2)
        white = np.zeros((len(late_j), len(late_j)))
        diagonal = 1.0
        # The covariance's factor has but two diagonals: each row of its inverse follows from the one before.
        for at in range(len(late_j)):
            below = beside[at - 1] / diagonal if at else 0.0
            diagonal = math.sqrt(variance[at] - below * below)
            white[at, :at] = white[at - 1, :at] * (-below / diagonal)
            white[at, at] = 1.0 / diagonal
        return white

    def smooth_columns(self) -> tuple[Array, NDArray[np.int64]]:
        """Each batch's factors of its law's smooth part, and their columns: [batches, SMOOTH]."""
        return self.features, self.law[:, None] * SMOOTH + np.arange(SMOOTH)

    def shape_columns(self) -> tuple[Array, NDArray[np.int64]]:
        """A column for each shape of each variant, so that no form of a law is needed: [batches, 1]."""
        shapes = np.column_stack([self.law, self.features])
        _, index = np.unique(shapes, axis=0, return_inverse=True)
        return np.ones((len(shapes), 1)), index.reshape(-1, 1)

    def design(self, response: Response, factors: Array, columns: NDArray[np.int64], width: int) -> Array:
        """What each column deposits in each interval, whitened: [intervals, classes of rest + width]."""
        return np.asarray(self._white @ self.deposits(response, factors, columns, width))

    def deposits(self, response: Response, factors: Array, columns: NDArray[np.int64], width: int) -> Array:
        """The same in joules."""
        count = len(self.energy_j)
        first = np.searchsorted(self.edges_s, self.start_s, side="right")
        last = np.searchsorted(self.edges_s, self.end_s + response.reach_s + DECAYS * response.ramp_s)
        steps = int(np.max(last - first, initial=0)) + 1
        at = first[:, None] + np.arange(-1, steps)
        counted = response.counted(
            self.edges_s[np.clip(at, 0, count)], self.start_s[:, None], self.end_s[:, None]
        )
        deposits = np.diff(counted, axis=1)
        rows = at[:, 1:] - 1
        inside = (rows >= 0) & (rows < count)
        matrix = np.zeros((count, CLASSES + width))
        matrix[:, :CLASSES] = self.rest_s
        for factor, column in zip(factors.T, columns.T, strict=True):
            index = rows * width + column[:, None]
            weights = deposits * factor[:, None]
            matrix[:, CLASSES:] += np.bincount(
                index[inside], weights[inside], minlength=count * width
            ).reshape(count, width)
        return matrix


def find_response(
    history: Arrays,
    factors: Array,
    columns: NDArray[np.int64],
    width: int,
    present: Response,
    idle: tuple[Array, Array] | None = None,
    only_near: bool = False,
) -> Response:
    """The response that explains the history best; `present` unless another is clearly better.

    idle: what is known of the idle draw beforehand, by class of rest, and its covariance.
    only_near: look further than around the present one only where something near is clearly better."""
    before, known = np.zeros((0, CLASSES + width)), np.zeros(0)
    if idle is not None:
        idle_w, covariance = idle
        white = np.linalg.inv(np.linalg.cholesky(covariance + 1e-12 * np.eye(CLASSES)))
        before, known = np.hstack([white, np.zeros((CLASSES, width))]), white @ idle_w
    target = np.concatenate([history.target, known])

    def misfit(response: Response) -> float:
        matrix = np.vstack([history.design(response, factors, columns, width), before])
        residual = target - matrix @ _least_squares(matrix, target)
        # Heavy tails: a few intervals with something else in them must not decide.
        return float(np.sum(9.0 * np.log1p(residual**2 / 9.0)))

    misfits = {present: misfit(present)}

    def best_of(candidates: Iterable[Response]) -> Response:
        among = list(candidates)
        misfits.update({response: misfit(response) for response in among if response not in misfits})
        return min(among, key=lambda response: misfits[response])

    def is_clear(best: Response) -> bool:
        scale = max(misfits[best] / max(len(history.energy_j) - width, 1), 1.0)
        return (misfits[present] - misfits[best]) / scale > CLEAR_GAIN

    def best_with(average_s: float) -> Response:
        best = best_of(Response(lag_s, ramp_s, average_s) for lag_s in LAGS_S for ramp_s in RAMPS_S)
        for step_s in STEPS_S:
            while (nearer := best_of(_around(best, step_s))) != best:
                best = nearer
        return best

    if only_near and not is_clear(best_of(_around(present, STEPS_S[0]))):
        return present
    best, *longer = map(best_with, AVERAGES_S)
    for averaged in longer:
        best = averaged if misfits[best] - misfits[averaged] > EARNED else best
    return best if is_clear(best) else present


def counted_at_random(
    history: Arrays, response: Response, factors: Array, columns: NDArray[np.int64], width: int
) -> float:
    """How much the counter counts at random with this response (see `Response`), beyond what batches deviate
    by from others alike; 0 where most of what one interval lacks is in the next. factors, columns: of shapes.
    """
    deposits = history.deposits(response, factors, columns, width)
    solution = _least_squares(history.design(response, factors, columns, width), history.target)
    off_j = history.energy_j - deposits @ solution
    batches_j = deposits[:, CLASSES:] @ solution[CLASSES:]
    seconds = (history.end_s - history.start_s)[:, None]
    busy_s = history.deposits(response, seconds, np.zeros_like(columns[:, :1]), 1)[:, CLASSES]
    variance = float(np.mean(off_j**2))
    lasting = variance + 2 * float(np.mean(off_j[1:] * off_j[:-1]))
    uneven = float(np.mean(uneven_j(batches_j, busy_s / np.diff(history.edges_s)) ** 2))
    if lasting <= MISPLACED * variance or uneven <= 0.0:
        return 0.0
    alone = BATCH_NOISE**2 * float(np.mean(deposits[:, CLASSES:] @ solution[CLASSES:] ** 2))
    return float((max(lasting - alone, 0.0) / uneven) ** 0.5)


def _around(response: Response, step_s: float) -> list[Response]:
    """Itself and its neighbours, one with as much more ramp as it has less lag among them."""
    steps = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1))
    return [
        replace(
            response,
            lag_s=min(max(response.lag_s + lag_steps * step_s, 0.0), MOST_LAG_S),
            ramp_s=min(max(response.ramp_s + ramp_steps * step_s, 0.0), MOST_RAMP_S),
        )
        for lag_steps, ramp_steps in steps
    ]


def fit(
    history: Arrays,
    response: Response,
    idle_w: Array,  # what is known of the idle draw beforehand, by class of rest
    idle_covariance: Array,  # and how well
    correction: float,  # relative deviation of a law from its smooth part
) -> Fit:
    """Idle draw and laws, given the response."""
    factors, columns = history.smooth_columns()
    width = SMOOTH * len(history.laws)
    matrix = history.design(response, factors, columns, width)
    target = history.target
    smooth = _least_squares(matrix, target)[CLASSES:].reshape(-1, SMOOTH)
    rows = np.zeros((len(history.features), SIZE))
    size = CLASSES + SIZE * len(history.laws)
    before = np.zeros((size, size))
    before[:CLASSES, :CLASSES] = idle_covariance + 1e-12 * np.eye(CLASSES)
    for index in range(len(history.laws)):
        mine = np.flatnonzero(history.law == index)
        rows[mine] = factors_of(smooth[index], history.features[mine])
        typical_j = float(np.max(rows[mine, :SMOOTH] @ smooth[index]))
        largest = np.max(rows[mine, :SMOOTH], axis=0)
        largest[largest == 0] = math.inf  # a coefficient of which no batch says anything stays 0
        wide = WIDE * max(typical_j, 1e-6) / largest
        first = CLASSES + SIZE * index
        nodes, stop = first + SMOOTH, first + SIZE
        before[first:nodes, first:nodes] = np.diag(wide**2)
        before[nodes:stop, nodes:stop] = correction_covariance(correction)
    places = history.law[:, None] * SIZE + np.arange(SIZE)
    full = history.design(response, rows, places, SIZE * len(history.laws))
    start = np.concatenate([idle_w, *(np.concatenate([base, np.zeros(SIZE - SMOOTH)]) for base in smooth)])
    # The gain form of regularised least squares: nothing badly conditioned is inverted.
    spread = before @ full.T
    gain = np.linalg.solve(full @ spread + np.eye(len(target)), spread.T).T
    values = start + gain @ (target - full @ start)
    covariance = before - gain @ spread.T
    return Fit(history.laws, tuple(smooth), values, covariance)


def _least_squares(matrix: Array, target: Array) -> Array:
    """Least squares without negative coefficients: the most negative ones are left out, one by one."""
    norms = np.linalg.norm(matrix, axis=0)
    used = norms > 1e-9
    solution = np.zeros(matrix.shape[1])
    while used.any():
        scaled = matrix[:, used] / norms[used]
        gram = scaled.T @ scaled + 1e-9 * np.eye(scaled.shape[1])
        part = np.linalg.solve(gram, scaled.T @ target)
        if part.min() >= 0:
            solution[used] = part / norms[used]
            break
        used[np.flatnonzero(used)[int(part.argmin())]] = False
    return solution
