"""`loadgen compare`: two results folders side by side.

The two sweeps did not run interleaved: whatever drifted between them (temperature, a neighbour, a governor)
stands in every ratio. So intervals are unpaired (Welch, on the logs of the blocks), nothing below the sweeps'
own A/A resolution counts as a difference, and the text says that this is not enough: two identical systems
measured one after the other "differed" by 38 % at 95 % confidence (Abedi and Brecht, ICPE 2017).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.figures.stats import (
    Interval,
    PairedDifference,
    differs,
    paired_difference,
    resolution,
    t_quantile,
)
from wattserve_loadgen.results.folder import read_records
from wattserve_loadgen.results.likeness import mismatches
from wattserve_loadgen.results.schema import CellResult, Point, Ratios, Record, Results

CAUTION = (
    "The two sweeps ran at different times: what drifted between them stands in every ratio, and no interval"
    " covers it (identical systems have differed by 38 % so). To be certain, put both into one sweep."
)
Right = Mapping[str, Mapping[int, bool]]
"""By arm, then by row: whether its first answer was the label."""


@dataclass(frozen=True)
class Change:
    """A figure of the second sweep over that of the first."""

    figure: str  # rate, p50, p95, active energy, total energy
    ratio: Interval  # geometric mean of the blocks, with Welch's interval; `n`: blocks of both
    resolution: float | None  # how far from 1 an A/A pair of either sweep came; None: neither has one
    differs: bool | None  # beyond interval and resolution; None where one of them is not known


@dataclass(frozen=True)
class Pair:
    """One arm under one load, in both sweeps."""

    arm: str
    load: str
    changes: list[Change]
    verdicts: list[str]  # why either point must not be published


@dataclass(frozen=True)
class Comparison:
    """Two sweeps. `first` is the baseline of every ratio."""

    first: str  # when each was made
    second: str
    caution: str
    mismatches: list[str]  # of the environments; empty unless forced
    pairs: list[Pair]
    unmatched: list[str]  # points of one sweep alone
    accuracy: dict[str, PairedDifference]  # second - first by arm, on the rows that both answered
    accuracy_reason: str  # why there is none, or ""


_OUTCOMES = ((True, True), (True, False), (False, True), (False, False))
Figure = Callable[[CellResult], float | None]
_FIGURES: tuple[tuple[str, Figure, Callable[[Ratios], Interval | None]], ...] = (
    ("rate", lambda cell: cell.rate_per_second, lambda ratios: ratios.rate),
    ("p50", lambda cell: cell.latency.p50_ns, lambda ratios: ratios.p50),
    ("p95", lambda cell: cell.latency.p95_ns, lambda ratios: ratios.p95),
    (
        "active energy",
        lambda cell: cell.energy.active_uj_per_request,
        lambda ratios: ratios.active_energy,
    ),
    ("total energy", lambda cell: cell.energy.total_uj_per_request, lambda ratios: ratios.total_energy),
)


def compare(
    first: Results,
    second: Results,
    force: bool = False,
    answers: tuple[Right, Right] | None = None,
) -> Comparison:
    """The second against the first; ResultsError names every mismatch of their environments, unless forced.

    `answers`, of `first_answers`, lets accuracy be paired by row.
    """
    unlike = mismatches(first, second)
    if unlike and not force:
        raise ResultsError(
            f"these results are not of one environment: {'; '.join(unlike)}"
            " (--force compares them all the same)"
        )
    ours, theirs = _points(first), _points(second)
    reason = "" if answers else "one of them has no records with labels"
    if first.dataset.sha256 != second.dataset.sha256:
        reason = "they replayed different datasets"
    return Comparison(
        first=first.created,
        second=second.created,
        caution=CAUTION,
        mismatches=unlike,
        pairs=[_pair(first, second, *found) for found in _matched(ours, theirs)],
        unmatched=[
            *(f"{arm}, {load}: only in the first" for arm, load in ours if (arm, load) not in theirs),
            *(f"{arm}, {load}: only in the second" for arm, load in theirs if (arm, load) not in ours),
        ],
        accuracy=_accuracies(*answers) if answers and not reason else {},
        accuracy_reason=reason,
    )


def answers_of(first: Path, second: Path) -> tuple[Right, Right] | None:
    """Of two results folders; None when one has no records with labels."""
    ours = first_answers(read_records(first))
    theirs = first_answers(read_records(second)) if ours else None
    return (ours, theirs) if ours and theirs else None


def first_answers(records: Iterator[Record]) -> Right | None:
    """Whether each arm's first answer to a row was right; None when no record has a label."""
    found: dict[str, dict[int, bool]] = {}
    for record in records:
        if record.ok and record.in_window:
            rows = found.setdefault(record.arm, {})
            for row, predicted, label in zip(record.rows, record.predicted, record.labels, strict=True):
                if label is not None:
                    rows.setdefault(row, predicted == label)
    return found if any(found.values()) else None


def welch_ratio(values: Sequence[float], base: Sequence[float]) -> Interval | None:
    """The ratio of two geometric means with Welch's 95 % interval on the logs; None when one has no positive
    figure. The bounds are None below two blocks in either.
    """
    logs = [[math.log(one) for one in group if one > 0] for group in (values, base)]
    if not all(logs):
        return None
    means = [math.fsum(group) / len(group) for group in logs]
    ratio, count = math.exp(means[0] - means[1]), sum(map(len, logs))
    if min(map(len, logs)) < 2:
        return Interval(ratio, None, None, count)
    errors = [
        math.fsum((one - mean) ** 2 for one in group) / (len(group) - 1) / len(group)
        for group, mean in zip(logs, means, strict=True)
    ]
    error = math.fsum(errors)
    if error == 0:
        return Interval(ratio, ratio, ratio, count)
    # Welch and Satterthwaite, rounded down: the next smaller table entry is the safe one.
    freedom = error**2 / sum(one**2 / (len(group) - 1) for one, group in zip(errors, logs, strict=True))
    half = t_quantile(0.975, max(1, math.floor(freedom))) * math.sqrt(error)
    middle = means[0] - means[1]
    return Interval(ratio, math.exp(middle - half), math.exp(middle + half), count)


def _points(results: Results) -> dict[tuple[str, str], Point]:
    """By arm and load, without twins: those say how far two equal arms differ."""
    names = {arm.name for arm in results.main_arms}
    return {(point.arm, point.load): point for point in results.points if point.arm in names}


_Points = Mapping[tuple[str, str], Point]


def _matched(ours: _Points, theirs: _Points) -> Iterator[tuple[Point, Point]]:
    for key, point in ours.items():
        if key in theirs:
            yield point, theirs[key]


def _pair(first: Results, second: Results, ours: Point, theirs: Point) -> Pair:
    both = (("first", ours), ("second", theirs))
    changes = []
    for name, figure, of_ratios in _FIGURES:
        if not all(_published(point, name) for _, point in both):
            continue
        ratio = welch_ratio(_blocks(second, theirs, figure), _blocks(first, ours, figure))
        if ratio is None:
            continue
        found = [resolution_of(one, ours.load, of_ratios) for one in (first, second)]
        known = [one for one in found if one is not None]
        reach = max(known) if known else None
        changes.append(Change(name, ratio, reach, differs(ratio, reach)))
    verdicts = [f"{which}: {one.text}" for which, point in both for one in point.verdicts]
    return Pair(ours.arm, ours.load, changes, verdicts)


def _published(point: Point, figure: str) -> bool:
    """A point with a verdict has no figures, and one without valid joules has no energies."""
    if point.figures is None:
        return False
    return "energy" not in figure or point.figures.active_uj is not None


def _blocks(results: Results, point: Point, figure: Figure) -> list[float]:
    found = [figure(cell) for cell in results.cells if (cell.arm, cell.load) == (point.arm, point.load)]
    return [float(one) for one in found if one is not None]


def resolution_of(
    results: Results, load: str, of_ratios: Callable[[Ratios], Interval | None]
) -> float | None:
    """How far from 1 the A/A pair under that load came, interval included; None without a pair."""
    names = {arm.name for arm in results.plan.arms if arm.twin_of}
    ratios = [of_ratios(one.shown.ratios) for one in results.points if one.arm in names and one.load == load]
    known = [resolution(one) for one in ratios if one is not None]
    return max((one for one in known if one is not None), default=None)


def _accuracies(first: Right, second: Right) -> dict[str, PairedDifference]:
    found = {}
    for arm, ours in first.items():
        rows = ours.keys() & second.get(arm, {}).keys()
        if rows:
            pairs = [(second[arm][row], ours[row]) for row in rows]
            counts = Counter(pairs)
            found[arm] = paired_difference(*(counts[one] for one in _OUTCOMES))
    return found
