"""The cost law: joules of a batch as a function of the work it did, and what is told from it.

    joules = fixed + per_token x n + per_square x n x L + (the same) x correction(n)

1, n and n x L are the features of its window (`Features`); a law reads nothing else. n: tokens computed,
padding included. L: the length at which they were computed, so that n x L is the sum of squared lengths.
correction: hat functions over log2(n), for what a straight line misses (a device that fills up, a kernel that
changes at some size). `filter` learns the coefficients; they are never negative.

A `LawView` is an immutable copy for readers on other threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.attribution import shapley_weights, split_exact
from wattserve_server.energy.receipt import Window

Array = NDArray[np.float64]


class Features(NamedTuple):
    """What a law reads of a window, each with a coefficient of its own in the law's smooth part.

    Where many windows are meant, an array has a row for each and these as its columns.
    """

    batches: float  # 1: what a batch costs however large it is
    tokens: float  # computed, padding included; the law's correction goes by them
    squares: float  # of the lengths at which they were computed, summed


def of_rows(tokens: int, length: int) -> Features:
    """Of a batch of so many computed tokens in rows of this length."""
    return Features(1.0, float(tokens), float(tokens) * length)


def features_of(window: Window) -> Features:
    return of_rows(window.computed_tokens, window.padded_length)


SMOOTH = len(Features._fields)  # coefficients of the smooth part
TOKENS = Features._fields.index("tokens")
FIRST_NODE, LAST_NODE = 2, 15  # the correction's nodes are the powers of two from 4 to 32768 tokens
NODES = LAST_NODE - FIRST_NODE + 1
SIZE = SMOOTH + NODES
ALIKE_OVER = 4.0  # doublings of the token count over which corrections stay alike
LEAST = 0.05  # a batch is never predicted to cost less than this part of what the smooth part says

# Bounds between the classes of rest, in seconds since the last batch; the first class holds work itself.
REST_S = (0.25, 1.0, 4.0, 16.0)
CLASSES = len(REST_S) + 1


def rest_class(rested_s: float) -> int:
    """The class of a rest of this length."""
    return sum(rested_s > bound for bound in REST_S)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """One variant's law, in joules."""

    fixed_j: float
    per_token_j: float
    per_square_j: float = 0.0
    base: tuple[float, float, float] = (0.0, 0.0, 0.0)  # the smooth part that `corrections` are relative to
    corrections: tuple[float, ...] = (0.0,) * NODES

    @property
    def smooth(self) -> tuple[float, float, float]:
        """The coefficients of the smooth part, in the order of `Features`."""
        return self.fixed_j, self.per_token_j, self.per_square_j

    def cost_j(self, features: Features) -> float:
        """Joules of a batch; never negative."""
        smooth = _dot(self.smooth, features)
        at = min(max(math.log2(max(features.tokens, 1.0)) - FIRST_NODE, 0.0), NODES - 1.0)
        node = min(int(at), NODES - 2)
        correction = self.corrections[node] * (node + 1 - at) + self.corrections[node + 1] * (at - node)
        return max(smooth + _dot(self.base, features) * correction, LEAST * smooth)

    def own_j(self, length: int) -> float:
        """What one sequence of this length adds to a batch that is not padded for it, in joules."""
        return self.per_token_j * length + self.per_square_j * length * length


def _dot(coefficients: Sequence[float], features: Features) -> float:
    return sum(each * feature for each, feature in zip(coefficients, features, strict=True))


@dataclass(frozen=True, slots=True)
class LawView:
    """The laws at an instant, and the rule by which batches are split."""

    laws: Mapping[str, Coefficients]  # of the variants of which the meter has said something
    uncertain: frozenset[str] = frozenset()  # of these, the law does not tell a batch's energy well yet
    after_rest: tuple[float, ...] = (0.0,) * CLASSES  # how much more, relatively, a batch costs
    # How much more, relatively, a batch costs for the time that those of its variant take lately.
    for_time: Mapping[str, float] = field(default_factory=dict)
    split_rule: str = "shapley"


def correction_covariance(deviation: float) -> Array:
    """Of a law's corrections, before anything is known of them: near sizes are off alike."""
    nodes = np.arange(NODES)
    return deviation**2 * np.exp(-np.abs(np.subtract.outer(nodes, nodes)) / ALIKE_OVER)


def factors_of(bases: Array, features: Array) -> Array:
    """The factors of a law's coefficients: [batches, SIZE]. bases: of each batch's law, or of all of them."""
    rows = np.zeros((len(features), SIZE))
    rows[:, :SMOOTH] = features
    at = np.clip(np.log2(np.maximum(features[:, TOKENS], 1.0)) - FIRST_NODE, 0.0, NODES - 1.0)
    node = np.minimum(at.astype(int), NODES - 2)
    relative = np.sum(features * bases, axis=1)
    index = np.arange(len(features))
    rows[index, SMOOTH + node] = relative * (node + 1 - at)
    rows[index, SMOOTH + node + 1] = relative * (at - node)
    return rows


# The rules by which a batch's energy is split among its sequences; named on every receipt.
SPLIT_RULES: Mapping[str, Callable[[Coefficients, Sequence[int]], list[float]]] = {
    "shapley": lambda law, lengths: shapley_weights([law.own_j(length) for length in lengths], law.fixed_j),
    "stand-alone": lambda law, lengths: [law.fixed_j + law.own_j(length) for length in lengths],
    "tokens": lambda law, lengths: [float(length) for length in lengths],
}

_UNLEARNED = Coefficients(0.0, 1.0)


def split_weights(view: LawView, window: Window) -> list[float]:
    """How a window's energy is split among its sequences, under its variant's law.

    Packed sequences do not pad each other: what one adds does not depend on the others, and its Shapley value
    is that and an equal part of what is fixed. Every token of a row attends to the row.
    """
    law = view.laws.get(window.variant)
    if law is None or law.fixed_j + law.own_j(window.padded_length) <= 0:
        law = _UNLEARNED
    if window.packed_rows and view.split_rule == "shapley":
        per_token = law.per_token_j + law.per_square_j * window.padded_length
        return [law.fixed_j / len(window.lengths) + per_token * length for length in window.lengths]
    return SPLIT_RULES[view.split_rule](law, window.lengths)


def provisional_uj(view: LawView, window: Window) -> list[int | None]:
    """What the law says each sequence of a window cost, before the meter has covered it."""
    law = view.laws.get(window.variant)
    if law is None or window.variant in view.uncertain:
        return [None] * len(window.lengths)
    more = view.after_rest[rest_class(window.rested_ns / 1e9)] + view.for_time.get(window.variant, 0.0)
    cost_uj = round(law.cost_j(features_of(window)) * (1 + more) * 1e6)
    return list(split_exact(cost_uj, split_weights(view, window)))
