"""`loadgen compare`: two results folders side by side.

The two sweeps did not run interleaved: whatever drifted between them (temperature, a neighbour, a governor)
stands in every ratio. So intervals are unpaired (Welch, on the logs of the blocks), nothing below the sweeps'
own A/A resolution counts as a difference, and the text says that this is not enough: two identical systems
measured one after the other "differed" by 38 % at 95 % confidence (Abedi and Brecht, ICPE 2017).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattserve_common.stats import (
    NO_CONCLUSION,
    Interval,
    PairedDifference,
    differs,
    finite_exp,
    paired_difference,
    resolution,
    t_quantile,
)
from wattserve_loadgen import words
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.model.ratios import COMPARED, Compared
from wattserve_loadgen.model.results import Point, Results

CAUTION = (
    "The two sweeps ran at different times: what drifted between them stands in every ratio, and no interval"
    " covers it (identical systems have differed by 38 % so). To be certain, put both into one sweep."
)
Right = Mapping[str, Mapping[int, bool]]  # by arm, then by row: whether its first answer was the label

_PACKAGES = ("torch", "grpcio")
# What must be alike (rule 12), and where `_environment` has it.
_LOOKED_AT = {
    "client CPU": "client.cpu_model",
    "client cores": "client.usable_cpus",
    "client governor": "client.governor",
    "client on the server's machine": "client.same_machine_as_server",
    **{f"client {name}": f"client.packages.{name}" for name in _PACKAGES},
    "server hardware": "server.hardware",
    **{f"server {name}": f"server.versions.{name}" for name in _PACKAGES},
    "model": "server.model_name",
    "model source": "server.model_source",
    "dataset": "dataset",
    "protocol": "protocol",
    "energy source": "meter.source.name",
    "energy method": "meter.source.method",
    "energy quality": "meter.source.quality",
    "energy boundary": "meter.boundary",
    "preset": "preset",
    "seconds of a window": "seconds",
}
_HEAD = ("variant", "load", "figure", "second / first", "95 % interval", "twins differ by", "verdict")


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
        pairs=[_pair(first, second, *matched) for matched in _matched(ours, theirs)],
        unmatched=[
            *(f"{arm}, {load}: only in the first" for arm, load in ours if (arm, load) not in theirs),
            *(f"{arm}, {load}: only in the second" for arm, load in theirs if (arm, load) not in ours),
        ],
        accuracy=_accuracies(*answers) if answers and not reason else {},
        accuracy_reason=reason,
    )


def mismatches(first: Results, second: Results) -> list[str]:
    """A text for each thing in which their environments differ: `governor: performance, then powersave`. What
    neither states is no mismatch; what one states and the other does not is one.
    """
    ours, theirs = _environment(first), _environment(second)
    pairs = [(name, _at(ours, path), _at(theirs, path)) for name, path in _LOOKED_AT.items()]
    return [f"{name}: {_said(one)}, then {_said(other)}" for name, one, other in pairs if one != other]


def _environment(results: Results) -> dict[str, Any]:
    target = results.target_of(results.plan.baseline)
    return {
        "client": results.client,
        "server": results.server,
        "meter": target.meter,
        "dataset": results.dataset.sha256[:12],
        "protocol": target.protocol,
        "preset": results.plan.preset,
        "seconds": float(results.plan.seconds),
    }


def _at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = (values or {}).get(name)
    return values


def _said(value: Any) -> str:
    if value is None or value == "":
        return "not stated"
    return f"{value:g}" if isinstance(value, float) else str(value)


def answers_of(first: Iterator[Record], second: Iterator[Record]) -> tuple[Right, Right] | None:
    """Of the records of two sweeps; None when one has none with labels."""
    ours = first_answers(first)
    theirs = first_answers(second) if ours else None
    return (ours, theirs) if ours and theirs else None


def first_answers(records: Iterator[Record]) -> Right | None:
    """Whether each arm's first answer to a row was right; None when no record has a label."""
    answers: dict[str, dict[int, bool]] = {}
    for record in records:
        if record.ok and record.in_window:
            rows = answers.setdefault(record.arm, {})
            for row, predicted, label in zip(record.rows, record.predicted, record.labels, strict=True):
                if label is not None:
                    rows.setdefault(row, predicted == label)
    return answers if any(answers.values()) else None


def welch_ratio(values: Sequence[float], base: Sequence[float]) -> Interval | None:
    """The ratio of two geometric means with Welch's 95 % interval on the logs; None when one has no positive
    figure. The bounds are None below two blocks in either.
    """
    logs = [[math.log(one) for one in group if one > 0] for group in (values, base)]
    if not all(logs):
        return None
    means = [math.fsum(group) / len(group) for group in logs]
    ratio, count = finite_exp(means[0] - means[1]), sum(map(len, logs))
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
    return Interval(ratio, finite_exp(middle - half), finite_exp(middle + half), count)


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
    for figure in COMPARED.values():
        if not all(_published(point, figure) for _, point in both):
            continue
        ratio = welch_ratio(_blocks(second, theirs, figure), _blocks(first, ours, figure))
        if ratio is None:
            continue
        resolutions = [resolution_of(sweep, ours.load, figure) for sweep in (first, second)]
        reach = max((one for one in resolutions if one is not None), default=None)
        changes.append(Change(figure.short_name, ratio, reach, differs(ratio, reach)))
    verdicts = [f"{which}: {one.text}" for which, point in both for one in point.verdicts]
    return Pair(ours.arm, ours.load, changes, verdicts)


def _published(point: Point, figure: Compared) -> bool:
    """A point with a verdict has no figures, and one without valid joules has no energies."""
    if point.figures is None:
        return False
    return not figure.of_energy or point.figures.active_uj is not None


def _blocks(results: Results, point: Point, figure: Compared) -> list[float]:
    return [float(value) for cell in results.cells_of(point) if (value := figure.of_cell(cell)) is not None]


def resolution_of(results: Results, load: str, figure: Compared) -> float | None:
    """How far from 1 the A/A pair under that load came, interval included; None without a pair."""
    names = {arm.name for arm in results.plan.arms if arm.twin_of}
    twins = [point.shown.ratios for point in results.points if point.arm in names and point.load == load]
    reaches = [resolution(ratio) for ratios in twins if (ratio := figure.of(ratios)) is not None]
    return max((reach for reach in reaches if reach is not None), default=None)


def _accuracies(first: Right, second: Right) -> dict[str, PairedDifference]:
    differences = {}
    for arm, ours in first.items():
        rows = ours.keys() & second.get(arm, {}).keys()
        if rows:
            pairs = [(second[arm][row], ours[row]) for row in rows]
            counts = Counter(pairs)
            differences[arm] = paired_difference(*(counts[one] for one in _OUTCOMES))
    return differences


def comparison_text(comparison: Comparison) -> str:
    """For the terminal: the caution first, what is not compared last."""
    lines = [f"first  {comparison.first}", f"second {comparison.second}", "", comparison.caution, ""]
    lines += [f"not alike: {one}" for one in comparison.mismatches]
    rows = [row for pair in comparison.pairs for row in _rows(pair)]
    lines += words.in_columns([_HEAD, *rows]) if rows else ["no point is in both"]
    lines.append("")
    for pair in comparison.pairs:
        lines += [f"{pair.arm}, {pair.load}: {one}" for one in pair.verdicts]
    for arm, difference in comparison.accuracy.items():
        lines.append(
            f"accuracy of {arm}: {words.signed(difference.difference * 100, 2)} points"
            f" ({words.signed(difference.low * 100, 2)} to {words.signed(difference.high * 100, 2)},"
            f" p = {difference.p:.2g}), paired on {difference.items} rows"
        )
    if comparison.accuracy_reason:
        lines.append(f"accuracy is not compared: {comparison.accuracy_reason}")
    lines += comparison.unmatched
    return "\n".join(lines)


def _rows(pair: Pair) -> list[tuple[str, ...]]:
    return [(pair.arm, pair.load, one.figure, *_cells(one)) for one in pair.changes]


def _cells(change: Change) -> tuple[str, ...]:
    judgement = {True: "differs", False: "no difference", None: "cannot be judged"}[change.differs]
    if (change.resolution or 0.0) > NO_CONCLUSION and not change.differs:
        judgement = "cannot be judged"
    return words.times(change.ratio), words.bounds(change.ratio), words.band(change.resolution), judgement
