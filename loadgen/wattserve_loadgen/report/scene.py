"""What of a sweep is shown: points with their loads, the loads that stand for all, what equal arms differ by.

It knows no HTML. The baseline's twin is never among the points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattserve_common.stats import Interval, differs, resolution
from wattserve_loadgen.model.ratios import COMPARED, Compared
from wattserve_loadgen.model.results import Accuracy, Figures, Point, Results
from wattserve_loadgen.plan.load import CLOSED, CONSTANT, POISSON, Load
from wattserve_loadgen.report.ink import Looks
from wattserve_loadgen.results.folder import Columns
from wattserve_loadgen.results.readings import MeterReadings

Numbers = npt.NDArray[np.float64]
Records = Mapping[tuple[str, str], Columns]  # by arm and load


@dataclass(frozen=True)
class ShownPoint:
    """A point that may be drawn, if need be hollow."""

    arm: str
    load: Load
    point: Point
    figures: Figures

    @property
    def hollow(self) -> bool:
        return self.point.hollow

    @property
    def told(self) -> bool:
        """Whether its figures may be written, and not only drawn."""
        return self.point.figures is not None

    @property
    def energy_hollow(self) -> bool:
        """Whether its joules must be drawn hollow: every verdict spoils them."""
        return bool(self.point.verdicts)

    @property
    def energy(self) -> Figures:
        """The figures to take joules from."""
        if self.figures.active_uj is None and self.point.withheld is not None:
            return self.point.withheld
        return self.figures


def shown_points(results: Results) -> list[ShownPoint]:
    """Arm by arm in the plan's order, each by rising load."""
    arms = [arm.name for arm in results.main_arms]
    points = [shown for point in results.points if point.arm in arms and (shown := _shown(results, point))]
    return sorted(points, key=lambda point: (arms.index(point.arm), point.load.order))


def point_of(results: Results, arm: str, load: Load) -> Point | None:
    return next((point for point in results.points if (point.arm, point.load) == (arm, load.name)), None)


def shown_under(results: Results, load: Load) -> list[ShownPoint]:
    """The arms under one load, in the plan's order."""
    return [point for point in shown_points(results) if point.load == load]


def untold_under(results: Results, load: Load) -> set[str]:
    """The arms whose figures are withheld under that load."""
    return {point.arm for point in shown_under(results, load) if not point.told}


def twin_of_baseline(results: Results) -> str | None:
    return next((arm.name for arm in results.plan.arms if arm.twin_of == results.baseline), None)


def twin_under(results: Results, load: Load) -> ShownPoint | None:
    """The baseline's second self under a load: its ratios show how far two equal arms differ.

    None without one, and when its figures or the baseline's are withheld.
    """
    twin = twin_of_baseline(results)
    point = None if twin is None else point_of(results, twin, load)
    return None if point is None or point.figures is None else _shown(results, point)


def loads_of(results: Results) -> list[Load]:
    """Every load with a point, by shape and weight."""
    loads = {point.load for point in shown_points(results)}
    return sorted(loads, key=lambda load: (load.order[0], load.sequences, load.order, load.name))


def common_loads(results: Results) -> list[Load]:
    """Those that every arm meets; all of them when a sweep has nothing else."""
    loads = loads_of(results)
    return [load for load in loads if load in results.plan.loads] or loads


def main_loads(results: Results) -> list[Load]:
    """One closed and one open load that stand for all, the closed first; offline when there is nothing else.

    The one under which the most arms have figures, and of those the heaviest: overload says little.
    """
    loads = common_loads(results)
    kinds = [
        [load for load in loads if load.shape == CLOSED],
        [load for load in loads if load.shape in (POISSON, CONSTANT)]
        or [load for load in loads if load.scheduled],
    ]
    told = {load: sum(point.told for point in shown_under(results, load)) for load in loads}
    return [max(kind, key=lambda load: (told[load], load.order)) for kind in kinds if kind] or loads[-1:]


def table_loads(results: Results) -> list[Load]:
    """The heaviest and the lightest of each main kind, for tables that are open from the start."""
    loads: list[Load] = []
    for main in main_loads(results):
        lightest = next(load for load in common_loads(results) if load.line == main.line)
        loads += [main] if lightest == main else [main, lightest]
    return loads


def _shown(results: Results, point: Point) -> ShownPoint | None:
    figures = point.figures or point.withheld
    return None if figures is None else ShownPoint(point.arm, results.load(point.load), point, figures)


@dataclass(frozen=True)
class Sheet:
    """What the charts of one report are drawn from."""

    results: Results
    records: Records
    meters: Sequence[MeterReadings]
    looks: Looks  # of every arm, the twin too

    @property
    def main_looks(self) -> Looks:
        """Without the twin."""
        return {arm.name: self.looks[arm.name] for arm in self.results.main_arms}

    @property
    def points(self) -> list[ShownPoint]:
        return shown_points(self.results)

    @property
    def unit(self) -> str:
        """What a request holds."""
        return "images" if self.results.dataset.pixel_shape else "sequences"

    def columns(self, load: Load) -> dict[str, Columns]:
        """The records of each arm under a load, where there are any."""
        return {
            name: self.records[name, load.name]
            for name in self.main_looks
            if (name, load.name) in self.records
        }


# Energies first, and what should rise behind what should fall.
METRICS = sorted(COMPARED.values(), key=lambda figure: (not figure.of_energy, figure.better == "↑"))
ACTIVE, P50, RATE = COMPARED["active_energy"], COMPARED["p50"], COMPARED["rate"]
TOTAL = COMPARED["total_energy"]


def finest(results: Results, load: Load, metric: Compared) -> float | None:
    """The rig's own resolution in that figure, from the A/A pair; None where it is not known."""
    twin = twin_under(results, load)
    ratio = None if twin is None else metric.of(twin.figures.ratios)
    return None if ratio is None else resolution(ratio)


def resolved(results: Results, load: Load, ratio: Interval | None, metric: Compared) -> bool:
    """Whether a ratio is a difference for certain: its interval excludes 1, and two equal arms are known to
    differ by less.
    """
    return ratio is not None and differs(ratio, finest(results, load, metric)) is True


def mean(interval: Interval | None) -> float:
    return 0.0 if interval is None else interval.mean


def bounds(interval: Interval | None, scale: float) -> tuple[float, float]:
    """The interval of a positive figure in the axis' unit; the mean twice when there is none."""
    if interval is None:
        return 0.0, 0.0
    low = interval.mean if interval.low is None else max(0.0, interval.low)
    high = interval.mean if interval.high is None else interval.high
    return low / scale, high / scale


def accuracy_difference(accuracy: Accuracy) -> Interval | None:
    """To the baseline, in percentage points; None of the baseline itself."""
    if accuracy.difference is None:
        return None
    low, high = (
        None if edge is None else edge * 100 for edge in (accuracy.difference_low, accuracy.difference_high)
    )
    return Interval(accuracy.difference * 100, low, high, accuracy.rows)
