"""What each sequence of a padded batch ought to pay.

`rule_shares` is the rule that receipts name, under the true law's stand-alone costs: the truth that
requests are judged by. `exact_shares` are the Shapley values of what batches really cost, where a
batch's cost is not just a sum over its sequences: they show how good the rule itself is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np

from tests.bench.attribution.world import Floats, VariantLaw


@lru_cache(maxsize=256)
def _odds(n: int) -> Floats:
    """[m - 1, j]: how likely the j-th shortest of n - 1 is the longest of m of them drawn at random."""
    return np.array([[comb(j, m - 1) / comb(n - 1, m) for j in range(n - 1)] for m in range(1, n)])


def rule_shares(law: VariantLaw, lengths: Sequence[int]) -> Floats:
    """Shares that sum to 1, in the order of `lengths`.

    The game: n sequences cost a + n x h(longest), with a + h(length) what a sequence costs alone.
    """
    n = len(lengths)
    order = np.argsort(lengths, kind="stable")
    fixed = float(law.joules(1, 0))
    layers = np.diff(law.joules(1, np.asarray(lengths)[order]), prepend=fixed)
    reached_by = n - np.arange(n)
    reaching = np.cumsum(layers * (n / reached_by - (n - reached_by) / (reached_by + 1)))
    passed = layers * reached_by / (reached_by + 1)
    above = np.cumsum(passed[::-1])[::-1] - passed
    shares = np.empty(n)
    shares[order] = fixed / n + reaching + above
    return shares / float(shares.sum())


def exact_shares(law: VariantLaw, lengths: Sequence[int]) -> Floats:
    """Shares that sum to 1, in the order of `lengths`."""
    n = len(lengths)
    order = np.argsort(lengths, kind="stable")
    ascending = np.asarray(lengths)[order]
    if ascending[0] == ascending[-1]:
        return np.full(n, 1 / n)
    cost = law.joules(np.arange(1, n + 1)[:, None], ascending[None, :])  # [sequences - 1, longest]
    with_it, without = cost[1:], cost[:-1]
    odds = _odds(n)
    shorter = np.concatenate([np.zeros((n - 1, 1)), np.cumsum(odds, axis=1)], axis=1)
    # One sequence joins m others (m = 1..n-1): either it is the longest, or one of them is.
    as_longest = (shorter * with_it).sum(axis=0)
    below = np.concatenate([[0.0], np.cumsum((odds * without[:, :-1]).sum(axis=0))])
    above = np.cumsum((odds * (with_it - without)[:, 1:]).sum(axis=0)[::-1])[::-1]
    values = (cost[0] + as_longest - below + np.concatenate([above, [0.0]])) / n
    shares = np.empty(n)
    shares[order] = values / cost[-1, -1]
    return shares
