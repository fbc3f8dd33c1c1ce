"""The check of rule 4: did what was measured hold still, and of what can that not be told? Pure."""

from __future__ import annotations

from wattserve_loadgen import words
from wattserve_loadgen.figures import steady
from wattserve_loadgen.figures.drifting import JOULES, drift_series
from wattserve_loadgen.results.schema import Check, Point, Results

_DRIFTS = ("drift", "energy drift")


def steady_state(results: Results) -> Check:
    """No point has a verdict on drift. What could not be tested is listed with its points."""
    wrong, untested, held = list[str](), dict[str, list[str]](), 0
    for point in results.points:
        where = f"{point.arm} under {point.load}"
        wrong += [f"{where}: {one.text}" for one in point.verdicts if one.code in _DRIFTS]
        tested, missing = _tested(results, point)
        held += tested
        if missing:
            untested.setdefault(missing, []).append(where)
    not_tested = [f"{what}: {', '.join(points)}" for what, points in untested.items()]
    if wrong:
        text = words.first_of(wrong)
    elif held:
        text = f"what could be tested holds still in {held} of {len(results.points)} points"
    else:
        text = "no point was tested for drift"
    if not_tested:
        text += f"; not tested: {'; '.join(not_tested)}"
    return Check("steady state", not wrong if wrong or held else None, text)


def _tested(results: Results, point: Point) -> tuple[bool, str]:
    """Whether any figure of a point could be tested for drift, and which could not, with the reason. Joules
    are not missed where there are none.
    """
    cells = [one for one in results.cells if (one.arm, one.load) == (point.arm, point.load)]
    series = list(drift_series(results.load(point.load), cells))
    if not series:
        return False, "a load that changes by design"
    tested, reasons = False, dict[str, list[str]]()
    for name, blocks in series:
        reason = steady.no_drift_reason(blocks) if blocks else "the windows are too short for slices"
        tested = tested or not reason
        if reason and (name != JOULES or point.shown.active_uj is not None):
            reasons.setdefault(reason, []).append(name)
    return tested, ", ".join(f"{' and '.join(names)} ({reason})" for reason, names in reasons.items())
