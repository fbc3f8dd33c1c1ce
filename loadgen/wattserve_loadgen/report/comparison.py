"""How arms are compared with the baseline, and what the A/A pair makes of it: how far two equal arms differ.

Pure sentences and bounds; it knows no HTML.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wattserve_loadgen import words
from wattserve_loadgen.figures.stats import Interval, differs, resolution
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.report.scene import at, main_loads, twin_of_baseline, twin_under
from wattserve_loadgen.results.schema import Ratios, Results


@dataclass(frozen=True)
class Metric:
    """A figure that is compared. `arrow` says which way is better."""

    name: str
    arrow: str
    of: Callable[[Ratios], Interval | None]
    of_energy: bool = False


ACTIVE = Metric("active energy", "↓", lambda ratios: ratios.active_energy, of_energy=True)
TOTAL = Metric("total energy", "↓", lambda ratios: ratios.total_energy, of_energy=True)
P50 = Metric("p50 latency", "↓", lambda ratios: ratios.p50)
P95 = Metric("p95 latency", "↓", lambda ratios: ratios.p95)
RATE = Metric("throughput", "↑", lambda ratios: ratios.rate)
METRICS = (ACTIVE, TOTAL, P50, P95, RATE)


def twin_sentence(results: Results, load: Load) -> str:
    """`fp32, measured twice under two names, differed by +1.2 % (−0.5 to +3.0 %) in active energy ...`; empty
    without a twin, or without a figure of it under that load.
    """
    twin = twin_under(results, load)
    found = [] if twin is None else [_difference(one, twin.figures.ratios) for one in METRICS]
    texts = [text for text in found if text]
    if not texts:
        return ""
    return (
        f"{results.baseline}, measured twice under two names, differed {at(load)} by {', '.join(texts)}:"
        " smaller differences than that mean nothing here."
    )


def twin_sentences(results: Results) -> list[str]:
    """For the page: one for each main load, or why there is none."""
    if not results.points:
        return []
    if twin_of_baseline(results) is None:
        return ["No variant was measured twice under two names, so this rig's own resolution is not known."]
    found = [text for load in main_loads(results) if (text := twin_sentence(results, load))]
    return found or [
        "The baseline's second measurement has no figures: the rig's own resolution is not known."
    ]


def finest(results: Results, load: Load, of: Metric) -> float | None:
    """The rig's own resolution in that figure, from the A/A pair; None where it is not known."""
    twin = twin_under(results, load)
    ratio = None if twin is None else of.of(twin.figures.ratios)
    return None if ratio is None else resolution(ratio)


def resolved(results: Results, load: Load, ratio: Interval | None, of: Metric) -> bool:
    """Whether a ratio is a difference for certain: its interval excludes 1, and two equal arms are known to
    differ by less.
    """
    return ratio is not None and differs(ratio, finest(results, load, of)) is True


def _difference(metric: Metric, ratios: Ratios) -> str:
    found = metric.of(ratios)
    if found is None:
        return ""
    text = words.change(found.mean - 1)
    if found.low is not None and found.high is not None:
        text += f" ({words.signed((found.low - 1) * 100, 1)} to {words.change(found.high - 1)})"
    return f"{text} in {metric.name}"
