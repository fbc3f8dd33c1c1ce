"""How many tokens the prompts and answers of a synthetic load have: a distribution, as a user names it.

64                    always 64
uniform:16-64         each from 16 to 64 as likely
lognormal:40,0.8      median 40, deviation of the logarithm 0.8
recorded:FILE         the numbers of a file, one a line, in their order and over again
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattserve_common.arguments import float_of
from wattserve_common.errors import DatasetError

FORMS = "64, uniform:16-64, lognormal:40,0.8 or recorded:FILE"
_LONGEST = 1_000_000
_NUMBER = re.compile(r"[0-9]{1,9}")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_Generator = np.random.Generator


@dataclass(frozen=True)
class Lengths:
    """`text`: as it was written."""

    text: str
    draw: Callable[[int, _Generator], list[int]]  # so many lengths, each at least 1


def parse_lengths(flag: str, text: str) -> Lengths:
    """DatasetError names the flag and says what is wrong with its value."""
    kind, _, rest = text.partition(":")
    if _NUMBER.fullmatch(text):
        fixed = _length(flag, text, text)
        return Lengths(text, lambda count, generator: [fixed] * count)
    if kind == "uniform" and (ends := _RANGE.fullmatch(rest)):
        low, high = (_length(flag, text, end) for end in ends.groups())
        if low > high:
            raise DatasetError(f"{flag} {text}: {low} is above {high}")
        return Lengths(text, lambda count, generator: generator.integers(low, high + 1, size=count).tolist())
    if kind == "lognormal":
        median, deviation = _two_numbers(flag, text, rest)
        return Lengths(text, lambda count, generator: _log_normal(median, deviation, count, generator))
    if kind == "recorded" and rest:
        numbers = _recorded(flag, Path(rest))
        return Lengths(text, lambda count, generator: [numbers[row % len(numbers)] for row in range(count)])
    raise DatasetError(f"{flag} {text!r}: not a distribution of lengths; write {FORMS}")


def _length(flag: str, text: str, digits: str) -> int:
    value = int(digits)
    if not 1 <= value <= _LONGEST:
        raise DatasetError(f"{flag} {text}: a length is from 1 to {_LONGEST:,} tokens")
    return value


def _two_numbers(flag: str, text: str, rest: str) -> tuple[float, float]:
    try:
        median, deviation = (float_of(part) for part in rest.split(","))
    except ValueError:
        raise DatasetError(
            f"{flag} {text!r}: write the median and the deviation, like lognormal:40,0.8"
        ) from None
    if not (1 <= median <= _LONGEST and 0 <= deviation <= 3 and math.isfinite(deviation)):
        raise DatasetError(f"{flag} {text}: the median is 1 or more, and the deviation from 0 to 3")
    return median, deviation


def _log_normal(median: float, deviation: float, count: int, generator: _Generator) -> list[int]:
    drawn = generator.lognormal(math.log(median), deviation, size=count)
    lengths: list[int] = np.clip(np.round(drawn), 1, _LONGEST).astype(np.int64).tolist()
    return lengths


def _recorded(flag: str, path: Path) -> list[int]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{flag} recorded:{path}: cannot be read ({error})") from None
    numbers = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if not _NUMBER.fullmatch(line.strip()):
            raise DatasetError(f"{flag} recorded:{path}: line {number}: {line.strip()[:40]!r} is no length")
        numbers.append(_length(flag, f"recorded:{path}: line {number}", line.strip()))
    if not numbers:
        raise DatasetError(f"{flag} recorded:{path}: no lengths in it; it holds a number a line")
    return numbers
