"""Does a figure drift while it is measured? A trend test over slices of the windows, and a floor on its size.

Each window is cut into equal slices; a figure of each slice, NaN where it has none, makes a series, one for
each block. The test is the seasonal Kendall test with blocks for seasons (Hirsch, Slack and Smith, Water
Resources Research 18 (1982) 107), the size the median of the blocks' Sen slopes. Neighbouring slices are
alike, which makes chance look like a trend: S is given the variance that it has under the autocorrelation
left after each block's own trend is taken out (Hamed and Rao, Journal of Hydrology 204 (1998) 182, for a
first-order process; the estimate is corrected for its bias in short series). Three figures are tested on a
point, so each at a third of 1 %.

Simulated with 3 and 5 blocks of 8 to 20 slices and noise of 10 % (so that the floor protects little), one
figure is flagged in under 0.3 % of steady points with white noise and in 0.4-1.1 % at an autocorrelation of
0.5 (2-6 % without the correction). A drift of 10 % under white noise of 3 % is found in over 99 % of points
with 3 blocks of 20 slices, in 90 % with 3 of 12, in 55 % with 3 of 8: cut windows into 20. At an
autocorrelation of 0.5 it is found in 80 % with 3 blocks of 20 slices, in 98 % with 5.

A drift up in one block and down in another cancels: that is noise between blocks, which their intervals show.
Pure; knows nothing of requests, meters or verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattserve_common.stats import SAMPLE_FLOORS
from wattserve_loadgen.model.cells import CellResult
from wattserve_loadgen.plan.load import OFFLINE, RAMP, RECORDED, Load

SLICES = 20  # of a window
FEWEST_SLICES = 8  # with a figure, of a block that counts
FIGURES_TESTED = 3  # J/request, throughput, p50
RISK = 0.01 / FIGURES_TESTED
SHARE_FLOOR = 0.05  # of the level, over the window: less is a trend that nobody minds
THROUGHPUT, MEDIAN, JOULES = "throughput", "the median latency", "energy per request"
_STRONGEST = 0.9  # autocorrelation that a few dozen slices can tell from a trend

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Drift:
    """What a figure did over the window. `significant`: more than chance, and more than the floor."""

    share_of_level_over_window: float  # positive when it rose
    p: float
    blocks: int
    slices: int
    significant: bool


def drift_series(load: Load, cells: Sequence[CellResult]) -> Iterator[tuple[str, list[Floats]]]:
    """The name of each figure of a point that must hold still (rule 4), and its series, block by block.
    Nothing of a load that changes by design; and the median of an offline load is no figure.
    """
    if load.shape in (RAMP, RECORDED):
        return
    slices = [cell.slices for cell in cells if cell.slices is not None]
    yield THROUGHPUT, [_series(block.rate_per_second) for block in slices]
    if load.shape != OFFLINE:
        yield MEDIAN, [_series(block.p50_ns) for block in slices]
    yield JOULES, [_series(block.active_uj_per_request) for block in slices]


def _series(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def drift_of(blocks: Sequence[Floats]) -> Drift | None:
    """The drift that the blocks have in common; None when `no_drift_reason` says why there is no telling."""
    if no_drift_reason(blocks):
        return None
    series = [block for block in blocks if _counts(block)]
    score = sum(_score(block) for block in series)
    rho = _autocorrelation(series)
    variance = sum(_variance(block) * _inflation(_known(block), rho) for block in series)
    z = max(0.0, abs(score) - 1) / math.sqrt(variance) if variance > 0 else 0.0
    share = float(np.median([_share(block) for block in series]))
    p = math.erfc(z / math.sqrt(2))
    return Drift(
        share_of_level_over_window=share,
        p=p,
        blocks=len(series),
        slices=sum(_known(block) for block in series),
        significant=p < RISK and abs(share) > SHARE_FLOOR,
    )


def no_drift_reason(blocks: Sequence[Floats]) -> str:
    """Why nothing can be said about a drift; empty when something can."""
    if any(_counts(block) for block in blocks):
        return ""
    if not blocks:
        return "no block has run"
    most = max(_known(block) for block in blocks)
    if most >= FEWEST_SLICES:
        return "its level is 0"
    return f"at most {most} slices of a block have a figure; it takes {FEWEST_SLICES}"


def slice_throughput(done_ns: Ints, start_ns: int, end_ns: int, count: int = SLICES) -> Floats:
    """Requests done per second, slice by slice."""
    where = _slice_of(done_ns, start_ns, end_ns, count)
    width_s = (end_ns - start_ns) / count / 1e9
    return np.asarray(np.bincount(where[where >= 0], minlength=count) / width_s)


def slice_medians(sent_ns: Ints, latency_ns: Ints, start_ns: int, end_ns: int, count: int = SLICES) -> Floats:
    """Median latency of the requests sent in each slice, in nanoseconds; NaN below the floor of a p50."""
    where = _slice_of(sent_ns, start_ns, end_ns, count)
    medians = np.full(count, np.nan)
    for index in range(count):
        own = latency_ns[where == index]
        if len(own) >= SAMPLE_FLOORS[50.0]:
            medians[index] = np.median(own)
    return medians


def slice_means(at_ns: Ints, values: Floats, start_ns: int, end_ns: int, count: int = SLICES) -> Floats:
    """Mean of the known values in each slice: the joules of requests, say, by when they were sent. NaN is
    unknown.
    """
    where = _slice_of(at_ns, start_ns, end_ns, count)
    known = (where >= 0) & np.isfinite(values)
    sums = np.bincount(where[known], weights=values[known], minlength=count)
    counts = np.bincount(where[known], minlength=count)
    return np.asarray(np.divide(sums, counts, out=np.full(count, np.nan), where=counts > 0))


def _slice_of(at_ns: Ints, start_ns: int, end_ns: int, count: int) -> Ints:
    """The slice of each instant; -1 outside the window."""
    if end_ns <= start_ns or count < 1:
        raise ValueError(f"{count} slices from {start_ns} to {end_ns} ns")
    inside = (at_ns >= start_ns) & (at_ns < end_ns)
    index = np.minimum((at_ns - start_ns) / (end_ns - start_ns) * count, count - 1).astype(np.int64)
    return np.where(inside, index, -1)


def _known(values: Floats) -> int:
    return int(np.count_nonzero(np.isfinite(values)))


def _counts(block: Floats) -> bool:
    return _known(block) >= FEWEST_SLICES and _level(block) > 0


def _level(block: Floats) -> float:
    return float(np.nanmedian(block))


def _score(values: Floats) -> int:
    """Mann-Kendall's S: later values that are higher, less those that are lower."""
    known = values[np.isfinite(values)]
    early, late = np.triu_indices(len(known), 1)
    return int(np.sum(np.sign(known[late] - known[early])))


def _variance(values: Floats) -> float:
    """Of S without a trend, for independent values with ties."""
    known = values[np.isfinite(values)]
    ties = np.unique(known, return_counts=True)[1]
    n = len(known)
    return float(n * (n - 1) * (2 * n + 5) - np.sum(ties * (ties - 1) * (2 * ties + 5))) / 18


def _slope(block: Floats) -> float:
    """Sen's slope: the median over all pairs of slices, per slice."""
    (at,) = np.nonzero(np.isfinite(block))
    early, late = np.triu_indices(len(at), 1)
    return float(np.median((block[at[late]] - block[at[early]]) / (at[late] - at[early])))


def _share(block: Floats) -> float:
    """The slope over the whole window, as a share of the level."""
    return _slope(block) * len(block) / _level(block)


def _autocorrelation(series: Sequence[Floats]) -> float:
    """Of neighbouring slices, over all blocks, about each block's own line; 0 where it is negative."""
    products = power = 0.0
    for block in series:
        about = (block - _slope(block) * np.arange(len(block))) / _level(block)
        about = np.nan_to_num(about - np.nanmean(about), nan=0.0)
        products += float(np.sum(about[1:] * about[:-1]))
        power += float(np.sum(about * about))
    if power == 0:
        return 0.0
    slices = sum(_known(block) for block in series) / len(series)
    unbiased = (products / power + 2 / slices) / (1 - 4 / slices)  # a fitted line costs (2 + 4 rho) / n
    return min(_STRONGEST, max(0.0, unbiased))


def _inflation(n: int, rho: float) -> float:
    """How much autocorrelation widens the variance of S (Hamed and Rao, equation 6, with the ranks' own
    correlation, 6/pi asin(rho/2))."""
    lags = np.arange(1, n - 2)
    ranks = 6 / math.pi * np.arcsin(rho**lags / 2)
    weights = (n - lags) * (n - lags - 1) * (n - lags - 2)
    return 1 + 2 / (n * (n - 1) * (n - 2)) * float(np.sum(weights * ranks))
