"""A sweep in one sentence: the arm that used the least energy, against the baseline. It knows no HTML.

Only published figures speak, or those of a look; and only differences that the intervals and the A/A pair
show.
"""

from __future__ import annotations

from wattserve_loadgen import words
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.report.comparison import ACTIVE, P50, RATE, finest, resolved
from wattserve_loadgen.report.scene import Seen, at, main_loads, seen_under
from wattserve_loadgen.report.sources import energy_source
from wattserve_loadgen.results.schema import Results


def headline(results: Results) -> str:
    if not results.points:
        return "Nothing was measured."
    if not any(point.figures for point in results.points):
        return "No point of this sweep has figures: each has a verdict instead."
    load = main_loads(results)[0]
    text = _under(results, load)
    return text if results.plan.withholds else f"{text} Too short to publish: only a look."


def _under(results: Results, load: Load) -> str:
    points = [one for one in seen_under(results, load) if one.point.figures is not None]
    base = next((one for one in points if one.arm == results.baseline), None)
    where = at(load)[0].upper() + at(load)[1:]
    if base is None:
        return f"{where}, {results.baseline} has no figures, so there is nothing to compare with."
    rivals = [one for one in points if one is not base]
    if not rivals:
        return f"{where}, {_alone(base)}."
    best = min(rivals, key=_energy_ratio)
    text = f"{where}, {_claims(results, best)}"
    if all(finest(results, load, one) is None for one in (ACTIVE, P50, RATE)):
        text += " (without figures of an A/A pair this rig's resolution is not known)"
    own, other = results.accuracy.get(best.arm), results.accuracy.get(base.arm)
    if own and other:
        text += f"; accuracy {words.percent(own.share)} against {words.percent(other.share)}"
    return text + "."


def _alone(base: Seen) -> str:
    figures = base.figures
    each = f" at {words.mean_energy(figures.active_uj)} each" if figures.active_uj else ""
    if figures.rate_per_second is None:
        return f"nothing was answered by {base.arm}"
    return f"{base.arm} answers {words.significant(figures.rate_per_second.mean)} requests per second{each}"


def _energy_ratio(point: Seen) -> float:
    ratio = point.figures.ratios.active_energy
    return ratio.mean if ratio else float("inf")


def _claims(results: Results, best: Seen) -> str:
    """Only what the intervals over blocks show: a ratio whose interval holds 1 is no difference."""
    pair = f"{best.arm} and {results.baseline}"
    speed, fast = _speed(results, best)
    ratio = best.figures.ratios.active_energy
    if ratio is None:
        link = "of" if best.load.scheduled else "as"
        told = f"{best.arm} {speed} {link} {results.baseline}"
        return told if fast else f"{speed} between {pair} could be shown"
    quality = energy_source(results).get("quality")
    kind = f" ({quality})" if quality in ("estimated", "simulated") else ""
    if not resolved(results, best.load, ratio, ACTIVE):
        text = f"no difference in active energy per request{kind} between {pair} could be shown"
        return f"{text}; {best.arm} {speed}" if fast else f"{text}, nor in speed"
    change = ratio.mean - 1
    less = f"{words.percent(abs(change), 0)} {'less' if change < 0 else 'more'}"
    text = f"{best.arm} needs {less} active energy per request{kind} than {results.baseline}"
    return f"{text} and {speed}" if fast else f"{text}; {speed} could be shown"


def _speed(results: Results, best: Seen) -> tuple[str, bool]:
    """What to say of speed, and whether it is a difference: throughput, or under a schedule latency."""
    ratios = best.figures.ratios
    if best.load.scheduled:
        shown, text = (
            resolved(results, best.load, ratios.p50, P50),
            f"has {words.times(ratios.p50)} the median latency",
        )
    else:
        shown = resolved(results, best.load, ratios.rate, RATE)
        text = f"answers {words.times(ratios.rate)} as many requests per second"
    return (text, True) if shown else ("no difference in speed", False)
