"""The cost law: joules of a batch as a function of the work it did, learned online.

For each variant, active energy of a batch = fixed + per_token x computed tokens (padding included).
All variants share one Kalman filter, because one metered interval may hold batches of several:
what the meter says of the interval constrains them together. The law is pulled towards the
measurement, never the measurement towards the law.

A `LawView` is an immutable copy for readers on other threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.attribution import shapley_weights, split_exact
from wattserve_server.energy.window import Window

DRIFT_PER_SQRT_S = 0.01
"""Relative random walk of a law's coefficients: follows a drift of clocks or temperature."""

FIRST_NOISE = 0.3
"""Relative deviation of a batch's energy from the law, before any was seen."""

_NOISE_MEMORY = 0.05
_NOISE_FLOOR = 0.01
_OUTLIER = 6.0


@dataclass(frozen=True, slots=True)
class Coefficients:
    fixed_uj: float
    per_token_uj: float

    def cost_uj(self, computed_tokens: float) -> float:
        return self.fixed_uj + self.per_token_uj * computed_tokens


@dataclass(frozen=True, slots=True)
class LawView:
    """The laws at an instant. `noise`: relative deviation of one batch from its law."""

    laws: Mapping[str, Coefficients]
    noise: float

    def get(self, variant: str) -> Coefficients | None:
        """None until a metered interval held a batch of that variant."""
        return self.laws.get(variant)


@dataclass(frozen=True, slots=True)
class Deposit:
    """The part of a window that lies in an interval: `fraction` of its duration, in (0, 1]."""

    variant: str
    computed_tokens: int
    fraction: float


class CostLaw:
    """Learns one law per variant from metered intervals. Not thread-safe; `view` is."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._mean_tokens: list[float] = []
        self._state: NDArray[np.float64] = np.zeros(0)
        self._covariance: NDArray[np.float64] = np.zeros((0, 0))
        self._noise = FIRST_NOISE
        self.view = LawView({}, FIRST_NOISE)

    def learn(self, deposits: Sequence[Deposit], active_uj: float, dt_s: float) -> None:
        """One metered interval: `active_uj` above idle over `dt_s`, explained by `deposits`."""
        for deposit in deposits:
            if deposit.variant not in self._index:
                self._add(deposit, active_uj / max(sum(d.fraction for d in deposits), 1e-9))
        features = np.zeros(len(self._state))
        squares = 0.0
        for deposit in deposits:
            at = 2 * self._index[deposit.variant]
            features[at] += deposit.fraction
            features[at + 1] += deposit.fraction * deposit.computed_tokens
            squares += (deposit.fraction * self._cost(deposit.variant, deposit.computed_tokens)) ** 2
            self._drift(deposit, dt_s)
        predicted = float(features @ self._state)
        variance = self._noise**2 * squares + 1.0  # 1 uJ: the counter's own grain, so never 0
        spread = self._covariance @ features
        innovation = active_uj - predicted
        innovation_variance = float(features @ spread) + variance
        # An interval far outside what the law allows (foreign load, a stall) moves it only so far.
        bound = _OUTLIER * innovation_variance**0.5
        innovation = min(max(innovation, -bound), bound)
        self._state = np.maximum(self._state + spread * (innovation / innovation_variance), 0.0)
        self._covariance -= np.outer(spread, spread) / innovation_variance
        self._covariance = (self._covariance + self._covariance.T) / 2
        if squares > 0:
            seen = min((active_uj - predicted) ** 2 / squares, _OUTLIER**2)
            mixed = (1 - _NOISE_MEMORY) * self._noise**2 + _NOISE_MEMORY * seen
            self._noise = max(mixed**0.5, _NOISE_FLOOR)
        self.view = LawView(
            {
                name: Coefficients(self._state[2 * i], self._state[2 * i + 1])
                for name, i in self._index.items()
            },
            self._noise,
        )

    def _cost(self, variant: str, computed_tokens: float) -> float:
        at = 2 * self._index[variant]
        return float(self._state[at] + self._state[at + 1] * computed_tokens)

    def _add(self, deposit: Deposit, batch_uj: float) -> None:
        """A new variant: a wide guess around what its first interval suggests."""
        size = len(self._state)
        self._index[deposit.variant] = size // 2
        tokens = max(deposit.computed_tokens, 1)
        self._mean_tokens.append(float(tokens))
        guess = max(batch_uj, 1.0)
        self._state = np.concatenate([self._state, [guess / 2, guess / 2 / tokens]])
        covariance = np.zeros((size + 2, size + 2))
        covariance[:size, :size] = self._covariance
        covariance[size, size] = (3 * guess) ** 2
        covariance[size + 1, size + 1] = (3 * guess / tokens) ** 2
        self._covariance = covariance

    def _drift(self, deposit: Deposit, dt_s: float) -> None:
        index = self._index[deposit.variant]
        self._mean_tokens[index] += 0.05 * (deposit.computed_tokens - self._mean_tokens[index])
        mean = max(self._mean_tokens[index], 1.0)
        walk = (DRIFT_PER_SQRT_S * self._cost(deposit.variant, mean)) ** 2 * dt_s
        at = 2 * index
        self._covariance[at, at] += walk
        self._covariance[at + 1, at + 1] += walk / mean**2


def split_weights(view: LawView, window: Window) -> list[float]:
    """How a window's energy is split among its sequences: Shapley values under its variant's law."""
    coefficients = view.get(window.variant)
    if coefficients is None or coefficients.cost_uj(window.computed_tokens) <= 0:
        return shapley_weights(window.lengths, 0.0, 1.0)
    return shapley_weights(window.lengths, coefficients.fixed_uj, coefficients.per_token_uj)


def provisional_uj(view: LawView, window: Window) -> list[int | None]:
    """What the law says each sequence of a window cost, before the meter has covered it."""
    coefficients = view.get(window.variant)
    if coefficients is None:
        return [None] * len(window.lengths)
    cost_uj = round(coefficients.cost_uj(window.computed_tokens))
    return list(split_exact(cost_uj, split_weights(view, window)))
