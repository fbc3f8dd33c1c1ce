"""Calibration: what a stretch of metered history says of a device, all at once.

First the response: over a small grid of lags and ramps, which one lets batches and idle draw explain best
what each interval counted. Then, with it, the idle draw and every variant's cost law by regularised least
squares. Pure functions of a `History`; the filter goes on from their result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.costlaw import SIZE, SMOOTH, Array, correction_covariance, features
from wattserve_server.energy.idle import CLASSES
from wattserve_server.energy.response import Response

LAGS_S = tuple(0.01 * step for step in range(10))
RAMPS_S = (0.0, 0.01, 0.025, 0.05, 0.08)

CLEAR_GAIN = 12.0
"""Twice the log-likelihood ratio by which another response must be better than the present one."""

LEAST_INTERVALS = 12
"""Fewer intervals say nothing of a response."""

MODEL_ERROR = 0.02
"""Relative deviation of an interval's energy from what any law of this form says of it."""


@dataclass(frozen=True, slots=True)
class _Interval:
    start_s: float
    end_s: float
    energy_j: float
    deviation_s: float
    rest_s: Array


@dataclass(frozen=True, slots=True)
class _Batch:
    variant: str
    start_s: float
    end_s: float
    tokens: int
    length: int


@dataclass(frozen=True, slots=True)
class Fit:
    """values, covariance: of the idle classes (watts), then of each variant's coefficients (joules), in
    the order of `variants`. bases: the smooth part that each variant's corrections are relative to."""

    variants: tuple[str, ...]
    bases: tuple[Array, ...]
    values: Array
    covariance: Array


class History:
    """The last intervals between good edges, and the batches in them. Times in seconds."""

    def __init__(self, most_intervals: int, most_batches: int) -> None:
        self._intervals: deque[_Interval] = deque(maxlen=most_intervals)
        self._batches: deque[_Batch] = deque(maxlen=most_batches)

    def add_interval(
        self, start_s: float, end_s: float, energy_j: float, deviation_s: float, rest_s: Array
    ) -> None:
        self._intervals.append(_Interval(start_s, end_s, energy_j, deviation_s, rest_s))

    def add_batch(self, variant: str, start_s: float, end_s: float, tokens: int, length: int) -> None:
        self._batches.append(_Batch(variant, start_s, end_s, tokens, length))

    def clear_intervals(self) -> None:
        """What comes does not connect to what was."""
        self._intervals.clear()

    def table(self) -> Table | None:
        """None when there is too little of it. Intervals must follow each other without a hole."""
        batches = list(self._batches)
        intervals = list(self._intervals)
        if len(batches) == self._batches.maxlen:  # of what came before, batches are missing
            intervals = [item for item in intervals if item.start_s > batches[0].end_s]
        if len(intervals) < LEAST_INTERVALS:
            return None
        batches = [item for item in batches if item.end_s > intervals[0].start_s - 1.0]
        return Table(intervals, batches) if batches else None


class Table:
    """A history as arrays."""

    def __init__(self, intervals: Sequence[_Interval], batches: Sequence[_Batch]) -> None:
        self.edges_s = np.array([intervals[0].start_s, *(item.end_s for item in intervals)])
        self.energy_j = np.array([item.energy_j for item in intervals])
        self.rest_s = np.array([item.rest_s for item in intervals])
        self.variants = tuple(dict.fromkeys(item.variant for item in batches))
        self.variant = np.array([self.variants.index(item.variant) for item in batches])
        self.start_s = np.array([item.start_s for item in batches])
        self.end_s = np.array([item.end_s for item in batches])
        self.tokens = np.array([item.tokens for item in batches], dtype=float)
        self.lengths = np.array([item.length for item in batches], dtype=float)
        length_s = np.diff(self.edges_s)
        late_s = np.array([max(item.deviation_s, 2e-4) for item in intervals])
        watts = self.energy_j / length_s
        self._white = self._whitening(watts * late_s, MODEL_ERROR * self.energy_j + 1e-6)

    @staticmethod
    def _whitening(late_j: Array, model_j: Array) -> Array:
        """What makes the deviations of the intervals independent and of size 1. What an edge's instant
        takes from one interval it gives to the next."""
        variance = np.diag(late_j**2 + model_j**2)
        variance += np.diag(np.concatenate([[late_j[0] ** 2], late_j[:-1] ** 2]))
        beside = -(late_j[:-1] ** 2)
        variance += np.diag(beside, 1) + np.diag(beside, -1)
        return np.asarray(np.linalg.inv(np.linalg.cholesky(variance)))

    def target(self) -> Array:
        """What each interval counted, whitened."""
        return np.asarray(self._white @ self.energy_j)

    def smooth_columns(self) -> tuple[Array, NDArray[np.int64]]:
        """Each batch's factors of its law's smooth part, and the columns they stand in: [batches, 3]."""
        factors = np.stack([np.ones_like(self.tokens), self.tokens, self.tokens * self.lengths], axis=1)
        return factors, self.variant[:, None] * SMOOTH + np.arange(SMOOTH)

    def design(self, response: Response, factors: Array, columns: NDArray[np.int64], width: int) -> Array:
        """What each column deposits in each interval, whitened: [intervals, classes of rest + width]."""
        count = len(self.energy_j)
        first = np.searchsorted(self.edges_s, self.start_s, side="right")
        last = np.searchsorted(self.edges_s, self.end_s + response.reach_s + 0.5 * response.ramp_s)
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
        return np.asarray(self._white @ matrix)


def find_response(
    table: Table,
    factors: Array,
    columns: NDArray[np.int64],
    width: int,
    present: Response,
    only_near: bool = False,
) -> Response:
    """The response that explains the history best; `present` unless another is clearly better.

    only_near: look further than around the present one only where something near is clearly better."""

    def misfit(response: Response) -> float:
        matrix = table.design(response, factors, columns, width)
        target = table.target()
        residual = target - matrix @ _least_squares(matrix, target)
        # Heavy tails: a few intervals with something else in them must not decide.
        return float(np.sum(9.0 * np.log1p(residual**2 / 9.0)))

    misfits = {present: misfit(present)}

    def best_of(candidates: Iterable[Response]) -> Response:
        misfits.update({response: misfit(response) for response in candidates if response not in misfits})
        return min(misfits, key=lambda response: misfits[response])

    def is_clear(best: Response) -> bool:
        scale = max(misfits[best] / max(len(table.energy_j) - width, 1), 1.0)
        return (misfits[present] - misfits[best]) / scale > CLEAR_GAIN

    if only_near and not is_clear(best_of(_around(present, 0.01))):
        return present
    best = best_of(Response(lag, ramp) for lag in LAGS_S for ramp in RAMPS_S)
    for step_s in (0.005, 0.0025):
        best = best_of(_around(best, step_s))
    return best if is_clear(best) else present


def _around(response: Response, step_s: float) -> list[Response]:
    steps = (-step_s, 0.0, step_s)
    return [
        Response(max(response.lag_s + lag_step, 0.0), max(response.ramp_s + ramp_step, 0.0))
        for lag_step in steps
        for ramp_step in steps
    ]


def fit(table: Table, response: Response, idle_w: Array, idle_deviation_w: float, correction: float) -> Fit:
    """Idle draw and laws, given the response.

    idle_w, idle_deviation_w: what is known of the idle draw beforehand. correction: relative deviation
    of a law from its smooth part."""
    factors, columns = table.smooth_columns()
    width = SMOOTH * len(table.variants)
    matrix = table.design(response, factors, columns, width)
    target = table.target()
    smooth = _least_squares(matrix, target)[CLASSES:].reshape(-1, SMOOTH)
    rows = np.zeros((len(table.tokens), SIZE))
    prior = [np.eye(CLASSES) * max(idle_deviation_w, 1e-6) ** 2]
    for index in range(len(table.variants)):
        mine = np.flatnonzero(table.variant == index)
        rows[mine] = features(smooth[index], table.tokens[mine], table.lengths[mine])
        typical_j = float(np.max(rows[mine, :SMOOTH] @ smooth[index]))
        largest = np.max(rows[mine, :SMOOTH], axis=0)
        wide = np.array([1.0, 1.0, 0.5]) * max(typical_j, 1e-6) / largest
        prior += [np.diag(wide**2), correction_covariance(correction)]
    places = table.variant[:, None] * SIZE + np.arange(SIZE)
    full = table.design(response, rows, places, SIZE * len(table.variants))
    start = np.concatenate([idle_w, *(np.concatenate([base, np.zeros(SIZE - SMOOTH)]) for base in smooth)])
    before = _block_diagonal(prior)
    # The gain form of regularised least squares: nothing badly conditioned is inverted.
    spread = before @ full.T
    gain = np.linalg.solve(full @ spread + np.eye(len(target)), spread.T).T
    values = start + gain @ (target - full @ start)
    covariance = before - gain @ spread.T
    return Fit(table.variants, tuple(smooth), values, covariance)


def _block_diagonal(blocks: Sequence[Array]) -> Array:
    size = sum(len(block) for block in blocks)
    whole = np.zeros((size, size))
    at = 0
    for block in blocks:
        whole[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return whole


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
