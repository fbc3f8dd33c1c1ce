"""A comparison as a table for the terminal. Pure."""

from __future__ import annotations

from wattserve_loadgen import words
from wattserve_loadgen.results.compare import Change, Comparison, Pair

_HEAD = ("arm", "load", "figure", "second / first", "95 % interval", "A/A band", "")


def comparison_text(comparison: Comparison) -> str:
    """Lines, the caution first and last things last."""
    lines = [f"first  {comparison.first}", f"second {comparison.second}", "", comparison.caution, ""]
    lines += [f"not alike: {one}" for one in comparison.mismatches]
    rows = [row for pair in comparison.pairs for row in _rows(pair)]
    lines += _table([_HEAD, *rows]) if rows else ["no point is in both"]
    lines.append("")
    for pair in comparison.pairs:
        lines += [f"{pair.arm}, {pair.load}: {one}" for one in pair.verdicts]
    for arm, found in comparison.accuracy.items():
        lines.append(
            f"accuracy of {arm}: {words.signed(found.difference * 100, 2)} points"
            f" ({words.signed(found.low * 100, 2)} to {words.signed(found.high * 100, 2)},"
            f" p = {found.p:.2g}), paired on {found.items} rows"
        )
    if comparison.accuracy_reason:
        lines.append(f"accuracy is not compared: {comparison.accuracy_reason}")
    lines += comparison.unmatched
    return "\n".join(lines)


def _rows(pair: Pair) -> list[tuple[str, ...]]:
    return [(pair.arm, pair.load, one.figure, *_cells(one)) for one in pair.changes]


def _cells(change: Change) -> tuple[str, ...]:
    band = "not known" if change.resolution is None else f"± {change.resolution * 100:.1f} %"
    judgement = {True: "differs", False: "no difference", None: "cannot be judged"}[change.differs]
    return words.times(change.ratio), words.bounds(change.ratio), band, judgement


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    padded = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in padded]
