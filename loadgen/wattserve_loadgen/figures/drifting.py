"""Which figures of a point must hold still (rule 4), as the series that `steady` tests. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from wattserve_loadgen.figures import steady
from wattserve_loadgen.plan.load import OFFLINE, RAMP, RECORDED, Load
from wattserve_loadgen.results.schema import CellResult, Slices

THROUGHPUT, MEDIAN, JOULES = "throughput", "the median latency", "energy per request"
_Series = Callable[[Slices], Sequence[float | None]]
_FIGURES: tuple[tuple[str, _Series], ...] = (
    (THROUGHPUT, lambda slices: slices.rate_per_second),
    (MEDIAN, lambda slices: slices.p50_ns),
    (JOULES, lambda slices: slices.active_uj_per_request),
)


def drift_series(load: Load, cells: Sequence[CellResult]) -> Iterator[tuple[str, list[steady.Slices]]]:
    """The name of each figure and its slices, block by block. Nothing of a load that changes by design; and
    the median of an offline load is no figure.
    """
    if load.shape in (RAMP, RECORDED):
        return
    for name, figure in _FIGURES:
        if load.shape != OFFLINE or name != MEDIAN:
            yield name, [_series(cell.slices, figure) for cell in cells if cell.slices is not None]


def _series(slices: Slices, figure: _Series) -> steady.Slices:
    values = np.array([np.nan if value is None else value for value in figure(slices)], dtype=np.float64)
    return steady.Slices((np.arange(len(values), dtype=np.float64) + 0.5) * slices.seconds, values)
