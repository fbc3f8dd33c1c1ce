"""When requests are due: schedules of arrivals as int64 nanoseconds since the start of a window, in order.

The same for the same seed, on every machine and numpy: they are made from the raw output of PCG64, which
numpy keeps stable (NEP 19). A schedule knows its rate and its seed and nothing of variants, so every variant
meets the same arrivals.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.errors import PlanError

MOST_ARRIVALS = 50_000_000
_LONGEST_SECONDS = 30 * 86_400

Offsets = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecordedArrivals:
    """Arrival times from a file, counted from its first one."""

    offsets_ns: Offsets
    sha256: str  # of the file


def constant(rate: float, seconds: float) -> Offsets:
    """Evenly spaced arrivals, the first at 0."""
    _check(seconds, rate=rate)
    count = math.ceil(round(rate * seconds, 6))
    return _nanoseconds(np.arange(count, dtype=np.float64) / rate, seconds)


def poisson(rate: float, seconds: float, seed_text: str) -> Offsets:
    """Arrivals of a Poisson process. A longer schedule of the same seed begins with the shorter one, and one
    of twice the rate is the same at twice the pace."""
    _check(seconds, rate=rate)
    return _nanoseconds(_unit_poisson(rate * seconds, seed_text) / rate, seconds)


def ramp(rate_from: float, rate_to: float, seconds: float, seed_text: str) -> Offsets:
    """A Poisson process whose rate goes linearly from one rate to another: a unit process through the inverse
    of the expected count, rate_from t + (rate_to - rate_from) t^2 / (2 seconds)."""
    if not (0 <= rate_from < math.inf and 0 <= rate_to < math.inf):
        raise PlanError(f"a ramp from {rate_from:g}/s to {rate_to:g}/s: a rate is at least 0")
    _check(seconds, rate=max(rate_from, rate_to))
    expected = (rate_from + rate_to) / 2 * seconds
    due = _unit_poisson(expected, seed_text)
    steepness = (rate_to - rate_from) / seconds
    root = np.sqrt(np.maximum(0.0, rate_from**2 + 2 * steepness * due))
    return _nanoseconds(2 * due / (rate_from + root), seconds)


def recorded(path: Path, *, speed: float = 1.0) -> RecordedArrivals:
    """Arrival times in seconds from a file: one number per line, of JSON (.jsonl) or as a CSV's only column.

    `speed` 2 plays it twice as fast. Times count from the first one, so a trace of wall-clock
    seconds does as well. PlanError names the line that cannot be used.
    """
    if not 0 < speed < math.inf:
        raise PlanError(f"speed {speed:g}: a recording plays at a speed above 0")
    try:
        contents = path.read_bytes()
        text = contents.decode("utf-8-sig")
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise PlanError(f"{path}: is not text in UTF-8") from None
    read = _json_times if path.suffix.lower() in (".jsonl", ".ndjson") else _csv_times
    seconds: list[float] = []
    for number, value in read(path, text):
        if not math.isfinite(value) or value < 0:
            raise PlanError(
                f"{path}: line {number}: {value} is no arrival time; it must be 0 or more seconds"
            )
        if seconds and value < seconds[-1]:
            raise PlanError(f"{path}: line {number}: {value} s comes after {seconds[-1]} s; sort the times")
        seconds.append(value)
    if not seconds:
        raise PlanError(f"{path}: holds no arrival time")
    times = (np.array(seconds) - seconds[0]) / speed
    if not times[-1] <= _LONGEST_SECONDS:
        raise PlanError(f"{path}: lasts {times[-1]:.6g} s; at most {_LONGEST_SECONDS} s, or raise its speed")
    return RecordedArrivals(np.rint(times * 1e9).astype(np.int64), hashlib.sha256(contents).hexdigest())


def cut(offsets_ns: Offsets, seconds: float) -> Offsets:
    """The arrivals before `seconds`."""
    return offsets_ns[: int(np.searchsorted(offsets_ns, _end_ns(seconds), side="left"))]


def repeated(offsets_ns: Offsets, seconds: float) -> Offsets:
    """The arrivals played over and over until `seconds`, then cut.

    One mean gap is left between the last arrival of a round and the first of the next.
    """
    last = int(offsets_ns[-1]) if len(offsets_ns) else 0
    if last == 0:
        raise PlanError("arrivals at a single instant cannot be repeated; give at least two")
    period = last + max(1, round(last / (len(offsets_ns) - 1)))
    rounds = math.ceil(_end_ns(seconds) / period)
    if rounds * len(offsets_ns) > MOST_ARRIVALS:
        raise PlanError(
            f"a recording repeated for {seconds:g} s has over {MOST_ARRIVALS} arrivals; shorten it"
        )
    starts = np.arange(rounds, dtype=np.int64) * period
    return cut((starts[:, None] + offsets_ns[None, :]).reshape(-1), seconds)


def _check(seconds: float, *, rate: float) -> None:
    if not 0 < rate < math.inf:
        raise PlanError(f"a rate of {rate:g}/s: it must be above 0")
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise PlanError(f"{seconds:g} s of load: it must be above 0 and at most {_LONGEST_SECONDS}")
    if rate * seconds > MOST_ARRIVALS:
        raise PlanError(f"{rate:g}/s for {seconds:g} s are over {MOST_ARRIVALS} requests; ask for fewer")


def _unit_poisson(expected: float, seed_text: str) -> Floats:
    """Arrivals of a Poisson process of rate 1 before `expected`."""
    source = np.random.PCG64(int.from_bytes(hashlib.sha256(seed_text.encode()).digest(), "big"))
    gaps: list[Floats] = []
    total = 0.0
    while total < expected:
        raw = source.random_raw(int((expected - total) * 1.05) + 64)
        gaps.append(-np.log1p(-((raw >> np.uint64(11)) * 2.0**-53)))
        total += float(gaps[-1].sum())
    due = np.cumsum(np.concatenate(gaps))
    return due[due < expected]


def _nanoseconds(due_seconds: Floats, seconds: float) -> Offsets:
    return cut(np.rint(due_seconds * 1e9).astype(np.int64), seconds)


def _end_ns(seconds: float) -> int:
    return round(seconds * 1e9)


Times = Iterator[tuple[int, float]]  # the line, counted from 1, and its seconds


def _csv_times(path: Path, text: str) -> Times:
    """Of the only column, whose name may stand above it."""
    reader = csv.reader(io.StringIO(text, newline=""))
    is_first = True
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if is_first and len(cells) > 1:
                raise PlanError(f"{path}: has {len(cells)} columns; keep only the one with the times")
            value = _number(cells[0])
            if value is not None:
                yield reader.line_num, value
            elif not is_first:
                raise PlanError(
                    f"{path}: line {reader.line_num}: {cells[0].strip()[:40]!r} is not a number of seconds"
                )
            is_first = False
    except csv.Error as error:
        raise PlanError(f"{path}: is not a CSV file: {error}") from None


def _json_times(path: Path, text: str) -> Times:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise PlanError(f"{where}: is not JSON") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PlanError(f"{where}: {str(value)[:40]!r} is not a number of seconds")
        try:
            yield number, float(value)
        except OverflowError:
            yield number, math.inf


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
