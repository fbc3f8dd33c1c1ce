"""The cost law: joules of a batch as a function of the work it did, and what is told from it.

    joules = fixed + per_token x n + per_square x n x L + per_logits x o + per_read x r
             + (the same) x correction(n)

1, n, n x L, o and r are the features of its window (`Features`); a law reads nothing else. Where the counter
counts CPU time and that of each batch is known, one law (`CPU_TIME`) is that of all variants, and reads that
alone.
n: tokens computed, padding included. L: the length at which they were computed, so that n x L is the sum of
squared lengths; of a step of a language model, whose prompts come in parts, the pairs of tokens that
attended. o, r: of such a step, the rows of logits (one for each token that it chose, or scored), and the
tokens in the cache that it read for sequences whose prompt had been read. A batch of rows has none.
correction: hat functions over log2(n), for what a straight line misses (a device that fills up, a kernel that
changes at some size). `filter` learns the coefficients; they are never negative.

A `LawView` is an immutable copy for readers on other threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.attribution import BUSY_TIME, shapley_weights, split_exact
from wattserve_server.energy.receipt import Window, Work

Array = NDArray[np.float64]


class Features(NamedTuple):
    """What a law reads of a window, each with a coefficient of its own in the law's smooth part.

    Where many windows are meant, an array has a row for each and these as its columns.
    """

    batches: float  # 1: what a batch costs however large it is
    tokens: float  # computed, padding included; the law's correction goes by them
    squares: float  # of the lengths at which they were computed, summed; of prompts, pairs of tokens
    logits: float = 0.0  # rows of them
    read: float = 0.0  # of the cache


def of_rows(tokens: int, length: int) -> Features:
    """Of a batch of so many computed tokens in rows of this length."""
    return Features(1.0, float(tokens), float(tokens) * length)


def of_step(work: Sequence[Work]) -> Features:
    """Of a step of a language model."""
    computed, pairs, logits, read, _ = map(sum, zip(*work, strict=True))
    return Features(1.0, float(computed), float(pairs), float(logits), float(read))


def of_cpu_time(seconds: float) -> Features:
    """Of a batch that follows `CPU_TIME`."""
    return Features(seconds, 0.0, 0.0)


def features_of(window: Window) -> Features:
    if window.work:
        return of_step(window.work)
    return of_rows(window.computed_tokens, window.padded_length)


CPU_TIME = "CPU time"  # the name of that law; no variant's


SMOOTH = len(Features._fields)  # coefficients of the smooth part
TOKENS = Features._fields.index("tokens")
FIRST_NODE, LAST_NODE = 3, 14  # the correction's nodes are the powers of two from 8 to 16384 tokens
NODES = LAST_NODE - FIRST_NODE + 1
SIZE = SMOOTH + NODES
ALIKE_OVER = 4.0  # doublings of the token count over which corrections stay alike
LN_2 = math.log(2.0)
# Its correction, and then rest and pace, leave at least this part of a batch's cost; and who shared a step
# has at least this of an equal part by tokens.
LEAST = 0.05

# Bounds between the classes of rest, in seconds since the last batch; the first class holds work itself.
REST_S = (0.25, 1.0, 4.0, 16.0)
CLASSES = len(REST_S) + 1


def rest_class(rested_s: float) -> int:
    """The class of a rest of this length."""
    return sum(rested_s > bound for bound in REST_S)


class Coefficients(NamedTuple):
    """One variant's law, in joules."""

    fixed_j: float  # this and what follows: the smooth part, in the order of `Features`
    per_token_j: float
    per_square_j: float = 0.0
    per_logits_j: float = 0.0
    per_read_j: float = 0.0
    base: tuple[float, ...] = (0.0,) * SMOOTH  # the smooth part that `corrections` are relative to
    corrections: tuple[float, ...] = (0.0,) * NODES

    @classmethod
    def of(cls, smooth: Sequence[float], base: Sequence[float], corrections: Sequence[float]) -> Coefficients:
        """Each in the order of `Features`, and of the nodes."""
        return cls._make((*smooth, tuple(base), tuple(corrections)))

    @property
    def smooth(self) -> tuple[float, ...]:
        """The coefficients of the smooth part, in the order of `Features`."""
        return self.fixed_j, self.per_token_j, self.per_square_j, self.per_logits_j, self.per_read_j

    def cost_j(self, features: Features) -> float:
        """Joules of a batch; never negative."""
        smooth = _dot(self.smooth, features)
        return max(smooth + _dot(self.base, features) * self.correction(features.tokens), LEAST * smooth)

    def correction(self, tokens: float) -> float:
        """What a batch of so many costs more than the smooth part says, relatively to `base`."""
        at = min(max(math.log2(max(tokens, 1.0)) - FIRST_NODE, 0.0), NODES - 1.0)
        node = min(int(at), NODES - 2)
        return self.corrections[node] * (node + 1 - at) + self.corrections[node + 1] * (at - node)

    def mean_correction(self, tokens: float) -> float:
        """Of all sizes from none to so many tokens."""
        reached = 2.0**FIRST_NODE
        total = self.corrections[0] * min(tokens, reached)
        for here, there in pairwise(self.corrections):
            if tokens <= reached:
                return total / tokens
            to = min(tokens / reached, 2.0)  # from 1 on; between two nodes it is straight over the logarithm
            total += reached * (here * (to - 1) + (there - here) * (to * math.log2(to) - (to - 1) / LN_2))
            reached *= 2
        return (total + self.corrections[-1] * max(tokens - reached, 0.0)) / tokens

    def own_j(self, length: int) -> float:
        """What one sequence of this length adds to a batch that is not padded for it, in joules."""
        return self.per_token_j * length + self.per_square_j * length * length

    def step_j(self, work: Work) -> float:
        """What one sequence adds to a step, in joules."""
        return (
            self.per_token_j * work.computed
            + self.per_square_j * work.pairs
            + self.per_logits_j * work.logits
            + self.per_read_j * work.read
        )


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
    cpu_second_j: float | None = None  # what a second of CPU time costs, where that is known and law enough
    split_rule: str = "shapley"
    idle_policy: str = BUSY_TIME


def correction_covariance(deviation: float) -> Array:
    """Of a law's corrections, before anything is known of them: near sizes are off alike."""
    nodes = np.arange(NODES)
    return deviation**2 * np.exp(-np.abs(np.subtract.outer(nodes, nodes)) / ALIKE_OVER)


def factors_of(bases: Array, features: Array) -> Array:
    """The factors of a law's coefficients: [batches, SIZE]. bases: of each batch's law, or of all of them."""
    rows = np.zeros((len(features), SIZE))
    rows[:, :SMOOTH] = features
    at = np.log2(np.maximum(features[:, TOKENS], 1.0)) - FIRST_NODE
    at = np.minimum(np.maximum(at, 0.0), NODES - 1.0)
    node = np.minimum(at.astype(int), NODES - 2)
    relative = (features * bases) @ np.ones(SMOOTH)
    above = at - node
    places = SIZE * np.arange(len(features)) + SMOOTH + node
    rows.reshape(-1)[places] = relative * (1 - above)
    rows.reshape(-1)[places + 1] = relative * above
    return rows


# The rules by which a batch's energy is split among its sequences; named on every receipt.
SPLIT_RULES: Mapping[str, Callable[[Coefficients, Sequence[int]], list[float]]] = {
    "shapley": lambda law, lengths: shapley_weights([law.own_j(length) for length in lengths], law.fixed_j),
    "stand-alone": lambda law, lengths: [law.fixed_j + law.own_j(length) for length in lengths],
    "tokens": lambda law, lengths: [float(length) for length in lengths],
}


def _step_shapley(law: Coefficients, work: Sequence[Work]) -> list[float]:
    """Of a step, where nothing is padded: an equal part of what is fixed, and what a sequence adds while the
    step grows evenly to its size (the value of Aumann and Shapley). Without a correction that is the same in
    every company. A law that is young, or off its sizes, may say that more tokens cost less: then they cost
    nothing, and nobody who computed any is left without a part."""
    whole = of_step(work)
    mean, first_j = law.mean_correction(whole.tokens), law.base[0] * law.corrections[0]
    added = [own + mean * base for own, base in zip(law.smooth, law.base, strict=True)]
    based_j = _dot(law.base, whole)
    # The correction itself changes with the tokens.
    changed_j = based_j * law.correction(whole.tokens) - first_j - mean * (based_j - law.base[0])
    added[TOKENS] += changed_j / whole.tokens
    adding = Coefficients.of([max(each, 0.0) for each in added], law.base, law.corrections)
    equal_j = max(law.fixed_j + first_j, 0.0) / len(work)
    weights = [equal_j + adding.step_j(each) for each in work]
    least = LEAST * math.fsum(weights) / whole.tokens
    return [max(weight, least * each.computed) for weight, each in zip(weights, work, strict=True)]


# The same rules for steps.
_STEP_RULES: Mapping[str, Callable[[Coefficients, Sequence[Work]], list[float]]] = {
    "shapley": _step_shapley,
    "stand-alone": lambda law, work: [law.fixed_j + law.step_j(each) for each in work],
    "tokens": lambda law, work: [float(each.computed) for each in work],
}

_UNLEARNED = Coefficients(0.0, 1.0)


def split_weights(view: LawView, window: Window) -> list[float]:
    """How a window's energy is split among its sequences, under its variant's law. Where CPU time is what
    counts, each has what was done for it alone, and the law splits the rest."""
    weights = _split_weights(view, window)
    if view.cpu_second_j is None or window.cpu_ns is None or not any(window.own_ns):
        return weights
    shared_ns, whole = max(window.cpu_ns - sum(window.own_ns), 0), math.fsum(weights)
    return [
        shared_ns * weight / whole + own_ns for weight, own_ns in zip(weights, window.own_ns, strict=True)
    ]


def _split_weights(view: LawView, window: Window) -> list[float]:
    """By the law alone.

    Packed sequences do not pad each other: what one adds does not depend on the others, and its Shapley value
    is that and an equal part of what is fixed. Every token of a row attends to the row.
    """
    law = view.laws.get(window.variant)
    if window.work:
        rule = _STEP_RULES[view.split_rule]
        weights = [] if law is None else rule(law, window.work)
        return weights if any(weights) else rule(_UNLEARNED, window.work)
    if law is None or law.fixed_j + law.own_j(window.padded_length) <= 0:
        law = _UNLEARNED
    if window.packed_rows and view.split_rule == "shapley":
        per_token = law.per_token_j + law.per_square_j * window.padded_length
        return [law.fixed_j / len(window.lengths) + per_token * length for length in window.lengths]
    return SPLIT_RULES[view.split_rule](law, window.lengths)


def provisional_uj(view: LawView, window: Window) -> list[int | None]:
    """What the law says each sequence of a window cost, before the meter has covered it."""
    cost_j = _cost_j(view, window)
    if cost_j is None:
        return [None] * len(window.lengths)
    return list(split_exact(round(cost_j * 1e6), split_weights(view, window)))


def foreseen_uj(view: LawView, window: Window) -> int | None:
    """What the law says that a window would cost which has not run; None while it cannot tell."""
    cost_j = _cost_j(view, window)
    return None if cost_j is None else round(cost_j * 1e6)


def _cost_j(view: LawView, window: Window) -> float | None:
    if view.cpu_second_j is not None and window.cpu_ns is not None:
        return view.cpu_second_j * window.cpu_ns / 1e9
    law = view.laws.get(window.variant)
    if law is None or window.variant in view.uncertain:
        return None
    more = view.after_rest[rest_class(window.rested_ns / 1e9)] + view.for_time.get(window.variant, 0.0)
    return law.cost_j(features_of(window)) * max(1 + more, LEAST)
