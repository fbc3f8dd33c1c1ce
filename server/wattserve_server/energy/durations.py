"""How long batches take, beside how long they should: what the clock tells of their energy.

A device at work draws much the same whatever it runs. So where the counter tells only the sum of many
batches, who took longer than usual for its work is believed to have used more; how much more the filter
learns (`estimate.PACE`). What is usual is a variant's calibration, or its first batches, for good: laws are
relative to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.costlaw import SMOOTH, Array

FIRST_IDEA = np.array([0.5, 0.5, 0.0, 0.0, 0.0])  # of a batch's seconds, by feature
FIRST = 64.0  # batches from which a duration is learned where there is no calibration
PRIOR = 0.1  # the first of them counts as so many more, half of its time fixed and half by its tokens
# Of what a batch should take: no less and no more is believed to say something of its energy.
LEAST, MOST = -0.8, 4.0
# A device works at another pace when an edge's batches of all variants together take longer or shorter
# than lately by so many standard deviations of what they deviate by as a rule, and by no less than so much.
STEP, LEAST_STEP = 5.0, 0.08
STEADY, FIRST_DEVIATION = 0.05, 0.03  # weight of the newest edge in that deviation, and what it is at first
LATELY = 200.0  # batches over which a variant's level is a mean
FEW = 20.0  # with fewer of them nothing is held against that level


def own_seconds(starts_s: Array, ends_s: Array) -> Array:
    """How long each of these windows had the device: time that several share is shared equally."""
    at = np.unique(np.concatenate([starts_s, ends_s]))
    running = np.searchsorted(np.sort(starts_s), at[:-1], side="right") - np.searchsorted(
        np.sort(ends_s), at[:-1], side="right"
    )
    passed = np.concatenate([[0.0], np.cumsum(np.diff(at) / np.maximum(running, 1))])
    return np.asarray(np.interp(ends_s, at, passed) - np.interp(starts_s, at, passed))


class _Usual:
    """One variant's: seconds = coefficients . features, by least squares of relative errors."""

    def __init__(self, features: Array, seconds: float) -> None:
        self.gram = np.zeros((SMOOTH, SMOOTH))
        self.sums = np.zeros(SMOOTH)
        self.heard = 0.0
        self.told = 0.0  # batches that were held against it, at most `LATELY`
        self.level = 0.0  # by how much more they took lately
        self.coefficients = np.zeros(SMOOTH)
        self._scale = np.maximum(features, 1e-9)
        self._before = seconds * FIRST_IDEA

    def hear(self, features: Array, seconds: Array, counts: Array) -> None:
        rows = features / self._scale / seconds[:, None]
        self.gram += rows.T @ (counts[:, None] * rows)
        self.sums += rows.T @ counts
        self.heard += float(counts.sum())
        size = float(self._before.sum()) ** 2
        prior = PRIOR / size * np.eye(SMOOTH)
        gram, sums = self.gram + prior, self.sums + prior @ self._before
        self.coefficients = np.zeros(SMOOTH)
        used = np.arange(SMOOTH)
        while (found := np.linalg.solve(gram[np.ix_(used, used)], sums[used])).min() < 0:
            used = np.delete(used, found.argmin())  # no feature shortens a batch
        self.coefficients[used] = found / self._scale[used]


class Durations:
    def __init__(self) -> None:
        self._usual: dict[str, _Usual] = {}
        self._variance = FIRST_DEVIATION**2
        self._changed = 0.0

    def take_change(self) -> float:
        """By how much the pace of the device has changed at the last edge, relatively; 0 where it has not."""
        change, self._changed = self._changed, 0.0
        return change

    @property
    def laws(self) -> dict[str, Array]:
        """By variant: its coefficients for a batch's seconds, in the order of its features."""
        return {name: usual.coefficients for name, usual in self._usual.items() if usual.heard}

    @property
    def levels(self) -> dict[str, float]:
        """By variant: by how much more of what it should its batches took lately."""
        return {name: usual.level for name, usual in self._usual.items()}

    def excess(
        self,
        variants: Sequence[str],
        features: Array,  # [entries, SMOOTH]
        seconds: Array,  # of each entry's batches, the mean
        counts: Array,  # of each entry's batches
        is_trial: NDArray[np.bool_],
        has_rested: NDArray[np.bool_],  # the device, before them: what they take says nothing of its pace
    ) -> Array:
        """By how much longer each took than it should, relatively; trials say what it should."""
        names = np.array(variants)
        excess = np.zeros(len(variants))
        apart, weight = 0.0, 0.0
        seconds = np.maximum(seconds, 1e-9)
        for name in dict.fromkeys(variants):
            mine = names == name
            if name not in self._usual:
                self._usual[name] = _Usual(features[mine][0], float(seconds[mine][0]))
            usual = self._usual[name]
            heard = mine if usual.heard < FIRST else mine & is_trial
            if heard.any():
                usual.hear(features[heard], seconds[heard], counts[heard])
            told = mine & ~is_trial
            if told.any():
                should = np.maximum(features[told] @ usual.coefficients, 1e-9)
                excess[told] = np.clip(seconds[told] / should - 1, LEAST, MOST)
                count = float(counts[told].sum())
                lately = float(np.average(excess[told], weights=counts[told]))
                if usual.told >= FEW and (in_a_row := told & ~has_rested).any():
                    now = float(np.average(excess[in_a_row], weights=counts[in_a_row]))
                    apart += counts[in_a_row].sum() * math.log((1 + now) / (1 + usual.level))
                    weight += float(counts[in_a_row].sum())
                usual.level += count / (count + usual.told) * (lately - usual.level)
                usual.told = min(usual.told + count, LATELY)
        if weight:
            self._look_for_step(apart / weight)
        return excess

    def _look_for_step(self, apart: float) -> None:
        """apart: the logarithm of what the batches of an edge took over what such batches took lately."""
        most = max(STEP * self._variance**0.5, LEAST_STEP)
        if abs(apart) > most:
            self._changed = apart
            for usual in self._usual.values():
                usual.level = (1 + usual.level) * math.exp(apart) - 1
        self._variance += STEADY * (min(apart**2, most**2) - self._variance)
