"""What to believe of batches of which the counter has told nothing yet.

A device at work draws much the same whatever it runs. So a batch's joules are first taken to be the time that
it took times what the device usually draws above its idle draw: a first run's, which may compile or allocate
and obeys no law, and those from which a variant's law is begun.
"""

from __future__ import annotations

import math

import numpy as np

from wattserve_server.energy.costlaw import Array, Features
from wattserve_server.energy.openbatches import TimedWindow

MEMORY_S = 10.0  # seconds of batches over which the usual draw is a mean
MOST_SHAPES = 64  # of one variant that are remembered
ROUGHLY = 0.1  # relative deviation of a batch's time from any law
LEAST_PART = 0.02  # of a batch, that is fixed, and that goes with its tokens


class FirstIdeas:
    def __init__(self) -> None:
        self._joules = self._seconds = 0.0
        self._first: set[tuple[str, Features]] = set()  # law and shape: run once, and may have compiled
        # By law and shape: the seconds of the fastest batch.
        self._took_s: dict[str, dict[Features, float]] = {}

    @property
    def usual_w(self) -> float | None:
        """What the device draws at work, above its idle draw; None before a batch was told any joules."""
        return self._joules / self._seconds if self._joules else None

    def settled(self, joules: float, seconds: float) -> None:
        """A batch that follows a law is settled, and took so long."""
        kept = 1 / (1 + seconds / MEMORY_S)
        self._joules = kept * (self._joules + joules)
        self._seconds = kept * (self._seconds + seconds)

    def hear(self, batch: TimedWindow) -> None:
        """A batch whose law is not known; of a shape's first runs the first one tells nothing."""
        seconds, shape = batch.took_s, batch.features
        if batch.is_lawless and (batch.law, shape) not in self._first:
            self._first.add((batch.law, shape))
            return
        took_s = self._took_s.setdefault(batch.law, {})
        if shape in took_s or len(took_s) < MOST_SHAPES:
            took_s[shape] = min(seconds, took_s.get(shape, seconds))

    def law(self, name: str, watts: float) -> tuple[Array, Array]:
        """The smooth part of a law by which batches cost what the device draws, these watts, in the time that
        they take; and what each coefficient would be if it explained a batch alone. Of a law of which batches
        were heard; what none of them has is 0."""
        took_s = self._took_s[name]
        rows = np.array(list(took_s))
        joules = watts * np.array(list(took_s.values()))
        largest_j, least_j = float(joules.max()), float(joules.min())
        scale = np.where(has := rows.max(axis=0) > 0, rows.max(axis=0), math.inf)
        # Regularised least squares of relative errors, so that small batches are heard.
        weighted = rows / scale / joules[:, None]
        before = np.array([0.5 * least_j, 0.5 * largest_j, 0.0, 0.0, 0.0]) * has
        spread = np.diag((np.array([1.0, 1.0, 0.3, 0.3, 0.3]) * largest_j) ** 2)
        noise = ROUGHLY**2 * np.eye(len(joules))
        gain = spread @ weighted.T @ np.linalg.inv(weighted @ spread @ weighted.T + noise)
        found = before + gain @ (1.0 - weighted @ before)
        found = np.maximum(found, LEAST_PART * np.array([least_j, largest_j, 0.0, 0.0, 0.0]))
        return found / scale, float(joules.mean()) / scale
