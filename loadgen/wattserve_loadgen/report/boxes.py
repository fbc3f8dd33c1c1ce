"""A table as rows of boxes, and the boxes of figures that many tables have. It knows no HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wattserve_common.stats import Interval
from wattserve_loadgen import words
from wattserve_loadgen.model.cells import Percentiles


@dataclass(frozen=True)
class Box:
    """What stands where a row and a column meet."""

    text: str
    below: str = ""  # smaller: what belongs to the text
    span: int = 1  # columns


@dataclass(frozen=True)
class Table:
    """The first column names what a row is about."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Box]]
    numbers_from: int = 1  # the first column of figures
    texts_at_end: int = 0  # the last columns, that have none


def table_of(rows: Sequence[Mapping[str, str | Box]], numbers_from: int = 1, texts_at_end: int = 0) -> Table:
    """Of rows that name their columns, all the same."""
    boxes = [[box if isinstance(box, Box) else Box(box) for box in row.values()] for row in rows]
    return Table(tuple(rows[0]) if rows else (), boxes, numbers_from, texts_at_end)


def box(
    interval: Interval | None,
    figure: Callable[[float], str],
    bounds: Callable[[Interval], str] = words.bounds,
) -> Box:
    """A mean with its 95 % interval below it."""
    return Box(words.ABSENT) if interval is None else Box(figure(interval.mean), bounds(interval))


def times_box(interval: Interval | None) -> Box:
    return Box(words.times(interval), words.bounds(interval))


def percentile_box(percentiles: Percentiles, percentile: str) -> Box:
    value, bound = (getattr(percentiles, f"{percentile}{suffix}_ns") for suffix in ("", "_bound"))
    return Box(words.milliseconds(value), words.at_most(bound))


def signed_bounds(interval: Interval, scale: float = 1, decimals: int = 1) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return (
        f"{words.signed(interval.low * scale, decimals)} to {words.signed(interval.high * scale, decimals)}"
    )
