"""The device's idle draw: its shape over the time since the last batch.

A board idles differently just after work than after a long rest, so idle power has one level for each
class of that time. Knows how long a span was in each class; the levels are learned by `filter`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

REST_S = (0.25, 1.0, 4.0, 16.0)
"""Bounds between the classes of rest, in seconds since the last batch; the first holds work itself."""

CLASSES = len(REST_S) + 1


def rest_class(rested_s: float) -> int:
    """The class of a rest of this length."""
    return sum(rested_s > bound for bound in REST_S)


_BOUNDS = np.array([0.0, *REST_S, np.inf])


def rest_times(
    since_s: float, until_s: float, busy: Sequence[tuple[float, float]], last_end_s: float
) -> Array:
    """Seconds of [since_s, until_s] in each class of rest; they sum to its length.

    busy: windows (start, end) that touch the span, by their start. last_end_s: when work had ended
    before them; -inf if there was none.
    """
    times = np.zeros(CLASSES)
    at = since_s
    for start, end in busy:
        if start > at:
            _rest(times, at, min(start, until_s), last_end_s)
        last_end_s = max(last_end_s, end)
        reached = min(max(end, at), until_s)
        times[0] += reached - max(at, min(start, until_s))
        at = max(at, reached)
        if at >= until_s:
            return times
    _rest(times, at, until_s, last_end_s)
    return times


def _rest(times: Array, since_s: float, until_s: float, last_end_s: float) -> None:
    low, high = since_s - last_end_s, until_s - last_end_s
    if high <= REST_S[0]:
        times[0] += until_s - since_s
    elif low >= REST_S[-1]:
        times[-1] += until_s - since_s
    else:
        times += np.maximum(np.minimum(high, _BOUNDS[1:]) - np.maximum(low, _BOUNDS[:-1]), 0.0)
