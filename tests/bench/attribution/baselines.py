"""What others do, on the same polls: three ways to put joules on requests.

All of them are kinder than what is in use: they subtract an idle draw (the median over the intervals
in which no window ran), know the batches' exact instants, and split a batch equally.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.bench.attribution.realise import Realisation, to_ns
from tests.bench.attribution.world import Floats


@dataclass(frozen=True, slots=True)
class Estimates:
    """Microjoules per batch, and the idle account over the bill where the method has one."""

    batch_uj: Floats
    idle_uj: float | None = None


def baselines(case: Realisation, poll_ns: list[int], poll_uj: list[int]) -> dict[str, Estimates]:
    at_s = (np.array(poll_ns) - to_ns(0.0)) / 1e9
    uj = np.array(poll_uj, float)
    everything = np.array([(batch.start_s, batch.end_s) for batch in case.history.batches])
    is_measured = np.array([not batch.is_calibration for batch in case.history.batches])
    steps = np.concatenate([[0], np.flatnonzero(np.diff(uj)) + 1])
    edges, energy = at_s[steps], np.diff(uj[steps])
    interval, batch, overlap = _overlaps(everything, edges)
    busy = np.bincount(interval, overlap, len(energy))
    quiet = np.flatnonzero(busy == 0)
    lengths = np.diff(edges)
    idle_watts = float(np.median(energy[quiet] / lengths[quiet])) / 1e6 if len(quiet) else 0.0
    idle_uj = np.where(busy == 0, energy, np.minimum(energy, 1e6 * idle_watts * lengths))
    active = energy - idle_uj
    shared = np.bincount(batch, active[interval] * overlap / busy[interval], len(everything))
    starts, ends = everything[is_measured].T
    seconds = ends - starts
    return {
        "naive delta": Estimates(_delta(at_s, uj, starts, ends, idle_watts)),
        "power x duration": Estimates(1e6 * _power(case, at_s, ends, idle_watts) * seconds),
        "share by time": Estimates(shared[is_measured], float(idle_uj.sum())),
    }


def _overlaps(windows: Floats, edges: Floats) -> tuple[np.ndarray, np.ndarray, Floats]:
    """Every pair of an interval and a window that overlap: their indices, and for how long (s)."""
    first = np.maximum(np.searchsorted(edges, windows[:, 0], side="right") - 1, 0)
    last = np.minimum(np.searchsorted(edges, windows[:, 1], side="left") - 1, len(edges) - 2)
    counts = np.maximum(last - first + 1, 0)
    window = np.repeat(np.arange(len(windows)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    interval = first[window] + within
    begin = np.maximum(windows[window, 0], edges[interval])
    overlap = np.minimum(windows[window, 1], edges[interval + 1]) - begin
    keep = overlap > 0
    return interval[keep], window[keep], overlap[keep]


def _delta(at_s: Floats, uj: Floats, starts: Floats, ends: Floats, idle_watts: float) -> Floats:
    """The counter before and after, as last polled, less the idle draw of the batch's time."""
    before = uj[np.maximum(np.searchsorted(at_s, starts, side="right") - 1, 0)]
    after = uj[np.maximum(np.searchsorted(at_s, ends, side="right") - 1, 0)]
    return np.maximum(after - before - 1e6 * idle_watts * (ends - starts), 0.0)


def _power(case: Realisation, at_s: Floats, ends: Floats, idle_watts: float) -> Floats:
    """Watts above idle that the power sensor showed at the last poll before the batch's end."""
    polled = at_s[np.maximum(np.searchsorted(at_s, ends, side="right") - 1, 0)]
    shown = np.searchsorted(case.published.power_at_s, polled, side="right") - 1
    watts = np.where(shown >= 0, case.published.power_watts[np.maximum(shown, 0)], idle_watts)
    return np.maximum(watts - idle_watts, 0.0)
