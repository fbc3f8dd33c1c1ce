"""What of a sweep is shown, and under which words: points with their loads, and the loads that stand for all.

It knows nothing of drawing or of HTML. The baseline's twin is never among the points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattserve_loadgen.plan.load import CLOSED, CONSTANT, OFFLINE, POISSON, RAMP, RECORDED, Load
from wattserve_loadgen.results.schema import Accuracy, Figures, Point, Results

CLOSED_LOOP = "service time (closed loop: there is no schedule)"
OPEN_LOOP = "response time (open loop: counted from the schedule)"


@dataclass(frozen=True)
class Seen:
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


def seen_points(results: Results) -> list[Seen]:
    """Arm by arm in the plan's order, each by rising load."""
    found = []
    for arm in results.main_arms:
        own = [_seen(results, point) for point in results.points if point.arm == arm.name]
        found += sorted((one for one in own if one is not None), key=lambda one: one.load.order)
    return found


def point_of(results: Results, arm: str, load: Load) -> Point | None:
    return next((one for one in results.points if (one.arm, one.load) == (arm, load.name)), None)


def seen_of(results: Results, arm: str, load: Load) -> Seen | None:
    point = point_of(results, arm, load)
    return None if point is None else _seen(results, point)


def seen_under(results: Results, load: Load) -> list[Seen]:
    """The arms under one load, in the plan's order."""
    return [one for one in seen_points(results) if one.load == load]


def untold_under(results: Results, load: Load) -> set[str]:
    """The arms whose figures are withheld under that load."""
    return {one.arm for one in seen_under(results, load) if not one.told}


def twin_of_baseline(results: Results) -> str | None:
    return next((arm.name for arm in results.plan.arms if arm.twin_of == results.baseline), None)


def twin_under(results: Results, load: Load) -> Seen | None:
    """The baseline's second self under a load: its ratios show how far two equal arms differ.

    None without one, and when its figures or the baseline's are withheld.
    """
    twin = twin_of_baseline(results)
    found = None if twin is None else seen_of(results, twin, load)
    return found if found is not None and found.told else None


def twin_accuracy(results: Results) -> Accuracy | None:
    return results.accuracy.get(twin_of_baseline(results) or "")


def loads_of(results: Results) -> list[Load]:
    """Every load with a point, by shape and weight."""
    found = {one.load for one in seen_points(results)}
    return sorted(found, key=lambda load: (load.order[0], load.sequences, load.order, load.name))


def common_loads(results: Results) -> list[Load]:
    """Those that every arm meets; all of them when a sweep has nothing else."""
    found = loads_of(results)
    return [load for load in found if load in results.plan.loads] or found


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
    chosen = [max(kind, key=lambda load: _worth(results, load)) for kind in kinds if kind]
    return chosen or loads[-1:]


def table_loads(results: Results) -> list[Load]:
    """The heaviest and the lightest of each main kind, for tables that are open from the start."""
    found: list[Load] = []
    for main in main_loads(results):
        alike = [load for load in common_loads(results) if line_of(load) == line_of(main)]
        found += [main] if alike[0] == main else [main, alike[0]]
    return found


def line_of(load: Load) -> str:
    """What joins points into a line: loads of one shape that differ in weight alone."""
    if load.shape in (CLOSED, POISSON, CONSTANT):
        return f"{load.shape} {load.sequences}"
    return load.name


def at(load: Load) -> str:
    """`at concurrency 4`, `at 100 requests per second (Poisson)`."""
    text = {
        CLOSED: f"at concurrency {load.concurrency}",
        POISSON: f"at {_number(load.rate)} requests per second (Poisson)",
        CONSTANT: f"at {_number(load.rate)} requests per second (evenly spaced)",
        RAMP: f"in a ramp from {_number(load.rate)} to {_number(load.rate_end)} requests per second",
        RECORDED: f"on the recorded arrivals of {load.trace}",
        OFFLINE: f"offline, {load.concurrency} in flight",
    }[load.shape]
    if load.speed != 1:
        text += f" at {_number(load.speed)} times their speed"
    return text if load.sequences == 1 else f"{text}, {load.sequences} sequences each"


def weight(load: Load) -> str:
    """A load in the least space, under its `family`."""
    return {
        CLOSED: str(load.concurrency),
        POISSON: _number(load.rate),
        CONSTANT: _number(load.rate),
        RAMP: f"{_number(load.rate)}–{_number(load.rate_end)}",
        RECORDED: f"×{_number(load.speed)}",
        OFFLINE: str(load.concurrency),
    }[load.shape]


def family(load: Load) -> str:
    """What a weight counts, with its unit: an axis label."""
    text = {
        CLOSED: "concurrency (requests in flight)",
        POISSON: "offered requests per second (Poisson)",
        CONSTANT: "offered requests per second (evenly spaced)",
        RAMP: "ramp, requests per second",
        RECORDED: "recorded arrivals, speed",
        OFFLINE: "offline, requests in flight",
    }[load.shape]
    return text if load.sequences == 1 else f"{text}, {load.sequences} sequences each"


def short_family(load: Load) -> str:
    text = {
        CLOSED: "concurrency",
        POISSON: "per second, Poisson",
        CONSTANT: "per second, even",
        RAMP: "per second, ramp",
        RECORDED: "recorded",
        OFFLINE: "offline",
    }[load.shape]
    return text if load.sequences == 1 else f"{text}, × {load.sequences}"


def time_kind(loads: Sequence[Load]) -> str:
    """Which time a latency is, for loads that may be of both kinds: on every chart of latency."""
    kinds = [
        *([CLOSED_LOOP] if any(not load.scheduled for load in loads) else []),
        *([OPEN_LOOP] if any(load.scheduled for load in loads) else []),
    ]
    return " and ".join(kinds)


def _seen(results: Results, point: Point) -> Seen | None:
    figures = point.figures or point.withheld
    return None if figures is None else Seen(point.arm, results.load(point.load), point, figures)


def _worth(results: Results, load: Load) -> tuple[int, tuple[int, float]]:
    return sum(one.point.figures is not None for one in seen_under(results, load)), load.order


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
