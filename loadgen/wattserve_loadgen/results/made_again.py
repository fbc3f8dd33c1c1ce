"""The part of `validate` that makes points and accuracy again, from cells and their records. Pure.

What is stored must follow from them. What is not stored says nothing: older results lack newer figures.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.figures.accuracy import measure_accuracy
from wattserve_loadgen.figures.points import make_points
from wattserve_loadgen.model.results import Check, Point, Results
from wattserve_loadgen.model.server_info import sensor_period_seconds
from wattserve_loadgen.results.record_checks import RecordFacts
from wattserve_loadgen.results.rig_checks import ceiling_of

_COUNTS = ("blocks", "window_seconds", "offered_per_second", "answered", "failed")


def points_agree(results: Results, facts: RecordFacts) -> Check:
    """Every point that its cells make is there, with their figures, and published only where they may be."""
    name = "points agree"
    if {cell.position for cell in results.cells} != set(facts.samples):
        return Check(name, None, "the records are not those of the cells")
    targets = {arm.name: results.target_of(arm) for arm in results.plan.arms}
    made = make_points(
        results.plan,
        results.cells,
        facts.samples,
        {arm: sensor_period_seconds(target.meter) for arm, target in targets.items()},
        {arm: ceiling_of(results, target) for arm, target in targets.items()},
    )
    stored = {(point.arm, point.load): point for point in results.points}
    wrong = [
        f"{point.arm} under {point.load}: {said}"
        for point in made
        if (said := _against(stored.pop((point.arm, point.load), None), point))
    ]
    wrong += [f"{arm} under {load}: no cell has made it" for arm, load in stored]
    text = f"{words.counted(len(made), 'point')} are what the cells make"
    return Check(name, not wrong, words.first_of(wrong) or text)


def _against(stored: Point | None, made: Point) -> str:
    if stored is None:
        return "its cells have run, and it is not there"
    if stored.figures is not None and made.figures is None:
        return f"published, although {'; '.join(one.text for one in made.verdicts)}"
    told = {one.code for one in stored.verdicts}
    if unsaid := [one.text for one in made.verdicts if one.code not in told]:
        return f"without the verdict {unsaid[0]}"
    counts = (_difference(getattr(stored, one), getattr(made, one), one) for one in _COUNTS)
    return next(filter(None, counts), "") or _difference(stored.shown, made.shown, "")


def accuracy_agrees(results: Results, facts: RecordFacts) -> Check:
    """The accuracy of every arm, from what the records say was predicted and what was right."""
    name = "accuracy agrees"
    if results.accuracy_reason:
        return Check(name, None, results.accuracy_reason)
    rows, made = measure_accuracy(facts.predictions, facts.labels, results.baseline)
    wrong = [f"row {row} has several labels" for row in sorted(facts.unlike_labels)]
    wrong += [_difference(results.accuracy_rows, rows, "rows")]
    wrong += [f"{arm}: it is not there" for arm in made if arm not in results.accuracy]
    wrong += [_difference(results.accuracy.get(arm), one, arm) for arm, one in made.items()]
    wrong += [f"{arm} has one, and no record" for arm in results.accuracy if arm not in made]
    text = f"that of {words.counted(len(made), 'arm')} is what the records say"
    return Check(name, not any(wrong), words.first_of([*filter(None, wrong)]) or text)


def _difference(stored: Any, made: Any, path: str) -> str:
    """In words, where a figure that is stored is another than the one made again; else empty."""
    if stored is None or isinstance(made, str | list):
        return ""
    if is_dataclass(made) and type(stored) is type(made):
        below = (
            _difference(getattr(stored, part.name), getattr(made, part.name), f"{path} {part.name}".lstrip())
            for part in fields(made)
        )
        return next(filter(None, below), "")
    if isinstance(stored, float | int) and isinstance(made, float | int):
        is_same = math.isclose(stored, made, rel_tol=1e-9)
        return "" if is_same else f"{path} {stored:.6g}, {made:.6g} made again"
    return "" if stored == made else f"{path} is there, and cannot be made again"
