"""Sharing an amount of energy: exactly, never negative, and by a named rule inside a batch.

Pure functions. They know nothing of meters, clocks or requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# How much of the device's idle draw receipts show as their idle share; named on each. busy-time: the draw of
# the time in which a batch ran is its, and that between batches is nobody's. none: all of it is nobody's.
# by-active: that of each interval of the meter is shared by the active joules charged in it, and nobody's
# where there are none. by-time: likewise among the requests in flight in it, by their time there.
BUSY_TIME, NONE, BY_ACTIVE, BY_TIME = IDLE_POLICIES = ("busy-time", "none", "by-active", "by-time")


def split_exact(amount_uj: int, weights: Sequence[float]) -> list[int]:
    """Shares of `amount_uj` in proportion to `weights` (largest remainder): they sum to it exactly.

    Weights must be finite and not negative; when all are 0 the shares are equal. Raises ValueError
    for a negative amount, no weights, or a bad weight.
    """
    if amount_uj < 0:
        raise ValueError(f"cannot share a negative amount: {amount_uj} uJ")
    if not weights:
        raise ValueError("cannot share an amount among nobody")
    if any(not math.isfinite(weight) or weight < 0 for weight in weights):
        raise ValueError(f"weights must be finite and not negative: {list(weights)}")
    if len(weights) == 1:
        return [amount_uj]
    largest = max(weights)
    if largest == 0:
        weights = [1.0] * len(weights)
    else:  # scaled, so that neither tiny nor huge weights overflow in the sum
        weights = [weight / largest for weight in weights]
    whole = math.fsum(weights)
    exact = [amount_uj * (weight / whole) for weight in weights]
    shares = [math.floor(value) for value in exact]
    missing = amount_uj - sum(shares)
    # Float rounding may put the floors a few units off for huge amounts, in either direction.
    order = sorted(range(len(shares)), key=lambda i: exact[i] - shares[i], reverse=missing > 0)
    step = 1 if missing > 0 else -1
    position = 0
    while missing:
        index = order[position % len(order)]
        if weights[index] > 0 and shares[index] + step >= 0:
            shares[index] += step
            missing -= step
        position += 1
    return shares


def shapley_weights(own: Sequence[float], fixed: float) -> list[float]:
    """Shapley values of the sequences of one padded batch.

    own: what each sequence would cost at its own length, without the fixed part. A batch of n costs
    `fixed + n * max(own)`: all are computed at the longest one's length. Each layer between two costs next
    to each other in sorted order is a game of its own, in which padding is shared between who causes it and
    who suffers it; of a layer that m of n sequences reach, each of those m pays n/m - (n-m)/(m+1) of its
    thickness and each of the others m/(m+1). The fixed part is shared equally. The values sum to the cost.
    """
    n = len(own)
    if n == 1:
        return [fixed + own[0]]
    order = sorted(range(n), key=lambda i: own[i])
    reaching: list[float] = []  # for each rank: what the layers up to its own cost it
    ended: list[float] = []  # for each rank: what the layer at its rank costs the smaller ones
    paid = 0.0
    previous = 0.0
    for rank, index in enumerate(order):
        m = n - rank
        thickness = own[index] - previous
        paid += thickness * (n / m - (n - m) / (m + 1))
        reaching.append(paid)
        ended.append(thickness * m / (m + 1))
        previous = own[index]
    values = [0.0] * n
    above = 0.0  # what the layers above this rank cost a sequence that does not reach them
    for rank in range(n - 1, -1, -1):
        values[order[rank]] = fixed / n + reaching[rank] + above
        above += ended[rank]
    return values
