"""Figures as people read them: three significant digits and a unit that fits. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from wattserve_common.stats import NO_CONCLUSION, Interval

ABSENT = "–"


def significant(value: float, digits: int = 3) -> str:
    """`value` with that many significant digits, zeros kept: 0.0500, 12.3, 1,230. It has an exponent only
    where nobody could count the zeros.
    """
    if value == 0:
        return "0"
    if not 1e-15 < abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    value = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def energy(microjoules: float | None) -> str:
    """In µJ, mJ, J or kJ."""
    if microjoules is None:
        return ABSENT
    scale, unit = energy_unit(microjoules)
    return f"{significant(microjoules / scale)} {unit}"


def energy_unit(microjoules: float) -> tuple[float, str]:
    """(microjoules in one unit, unit) that suit a figure of this size."""
    for scale, unit in ((1e9, "kJ"), (1e6, "J"), (1e3, "mJ")):
        if abs(microjoules) >= scale:
            return scale, unit
    return 1.0, "µJ"


def milliseconds(nanoseconds: float | None) -> str:
    return ABSENT if nanoseconds is None else f"{significant(nanoseconds / 1e6)} ms"


def rate(per_second: float | None) -> str:
    return ABSENT if per_second is None else f"{significant(per_second)}/s"


def percent(share: float | None, decimals: int = 1) -> str:
    return ABSENT if share is None else f"{share * 100:.{decimals}f} %"


def bytes_size(count: int | None) -> str:
    """In decimal megabytes or gigabytes; 0 counts as not known."""
    if not count:
        return ABSENT
    return f"{significant(count / 1e9)} GB" if count >= 1e9 else f"{significant(count / 1e6)} MB"


def mean_energy(interval: Interval | None) -> str:
    return energy(None if interval is None else interval.mean)


def times(interval: Interval | None) -> str:
    """`1.82×`"""
    return ABSENT if interval is None else f"{significant(interval.mean)}×"


def bounds(interval: Interval | None, scale: float = 1) -> str:
    """`1.74–1.90`: the 95 % interval of a positive figure, or nothing when there is none."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"{significant(max(0.0, interval.low / scale))}–{significant(interval.high / scale)}"


def counted(count: int, noun: str, nouns: str = "") -> str:
    """`1 block`, `3 blocks`; `nouns` is the plural where it takes more than an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def first_of(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are; "" of none."""
    more = f"; and {len(texts) - 1} more" if len(texts) > 1 else ""
    return texts[0] + more if texts else ""


def duration(seconds: float) -> str:
    """`45 s`, `3 min 5 s`, `10 min`, `4 h 12 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    large, small, units = (whole // 60, whole % 60, ("min", "s"))
    if whole >= 3600:
        large, small, units = (whole // 3600, whole % 3600 // 60, ("h", "min"))
    return f"{large} {units[0]}" + (f" {small} {units[1]}" if small else "")


def signed(value: float | None, decimals: int) -> str:
    """`+1.2`, `−0.3`, with a true minus; `0.0` has no sign."""
    if value is None:
        return ABSENT
    text = f"{value:+.{decimals}f}".replace("-", "−")
    return text[1:] if float(f"{value:.{decimals}f}") == 0 else text


def change(share: float | None, decimals: int = 1) -> str:
    """`+1.2 %`: a difference as a share."""
    return ABSENT if share is None else f"{signed(share * 100, decimals)} %"


def band(resolution: float | None) -> str:
    """`± 3.0 %`: how far from 1 the ratio of two equal arms reaches."""
    if resolution is None:
        return "not known"
    return "more than 2×: no conclusion" if resolution > NO_CONCLUSION else f"± {percent(resolution)}"


def at_most(nanoseconds: float | None) -> str:
    """`≤ 12.3 ms`: an upper bound, or nothing when there is none."""
    return "" if nanoseconds is None else f"≤ {milliseconds(nanoseconds)}"


def energy_bounds(interval: Interval | None) -> str:
    """`19.8–20.2`: `bounds` in the unit of the mean."""
    return bounds(interval, energy_unit(interval.mean)[0]) if interval else ""


def in_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Rows of a table as lines, each column as wide as its widest text; the columns `right` end flush."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if index in right else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def unlabelled(missing: int, rows: int) -> str:
    """Of a dataset with `missing` rows without a label among its `rows`: what that does to accuracy."""
    have = "has" if missing == 1 else "have"
    return f"{missing:,} of {rows:,} dataset rows {have} no label: accuracy is of the others"
