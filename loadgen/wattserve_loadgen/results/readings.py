"""The meters' readings of a results folder, and whether they say what results.json does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from wattserve_loadgen import words
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.cells import CellResult
from wattserve_loadgen.model.results import Check, Results
from wattserve_loadgen.results.folder import READINGS_FILE
from wattserve_loadgen.target.energy_window import NoEnergy, delta_between

MOST_METERS = 8  # of one target; beyond it too many of them could be a variant's
TOLERANCE = 1e-4  # readings are kept to the microsecond and microjoule


@dataclass(frozen=True)
class MeterReadings:
    """What one meter counted while the sweep ran, by rising time."""

    target: str
    device: str  # "" when it has no name
    seconds: npt.NDArray[np.float64]  # since the sweep's start
    joules: npt.NDArray[np.float64]  # cumulative
    idle_watts: float | None  # the last that it stated


_Possible = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]  # beyond it is no meter's


class _Reading(msgspec.Struct):
    """A line of readings.jsonl."""

    target: str
    seconds: _Possible  # since the sweep's start
    joules: _Possible  # cumulative
    device: str | None = None
    idle_watts: _Possible | None = None


def _readings_of(folder: Path) -> Iterator[_Reading]:
    """ResultsError for a line that is none. A last one without its end is what a killed sweep left, and is
    passed over.
    """
    path = folder / READINGS_FILE
    for number, line in enumerate(path.read_bytes().splitlines(True) if path.is_file() else (), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            yield msgspec.json.decode(line, type=_Reading)
        except (ValueError, RecursionError):
            raise ResultsError(f"{path}: line {number}: not a reading of a meter") from None


def last_instant(folder: Path) -> float:
    """The latest of its readings, in seconds since the start of the sweep; 0 without any."""
    return max((reading.seconds for reading in _readings_of(folder)), default=0.0)


def read_meters(folder: Path) -> list[MeterReadings]:
    """Each meter with two readings or more; [] without the file."""
    meters: dict[tuple[str, str], list[_Reading]] = {}
    for reading in _readings_of(folder):
        readings = meters.setdefault((reading.target, reading.device or ""), [])
        if not readings or reading.seconds > readings[-1].seconds:
            readings.append(reading)
    return [_joined(readings) for readings in meters.values() if len(readings) > 1]


def _joined(readings: Sequence[_Reading]) -> MeterReadings:
    first = readings[0]
    seconds, joules = np.array([(reading.seconds, reading.joules) for reading in readings]).T
    idle = [reading.idle_watts for reading in readings if reading.idle_watts is not None]
    return MeterReadings(first.target, first.device or "", seconds, joules, idle[-1] if idle else None)


def readings_agree(results: Results, meters: Sequence[MeterReadings]) -> Check:
    """What the meters counted over each cell's window, made again from their readings."""
    name = "readings agree"
    targets = {arm.name: arm.target for arm in results.plan.arms}
    cells = [cell for cell in results.cells if _window(cell) is not None]
    if not cells:
        return Check(name, None, "the meter was read over no window")
    if not meters:
        return Check(name, None, f"without {READINGS_FILE} this cannot be seen")
    wrong = [
        f"cell {cell.position}: {said}"
        for cell in cells
        if (said := _against(cell, [each for each in meters if each.target == targets[cell.arm]]))
    ]
    text = f"{words.counted(len(cells), 'window')} are what {READINGS_FILE} makes"
    return Check(name, not wrong, words.first_of(wrong) or text)


def _window(cell: CellResult) -> tuple[float, float] | None:
    """Its edges, where the meter's count over it is told."""
    meter, start = cell.energy.meter, cell.window_start_seconds
    if meter is None or meter.measured_uj is None or start is None:
        return None
    return start, start + meter.seconds


def _against(cell: CellResult, meters: Sequence[MeterReadings]) -> str:
    """Which of a target's meters are a variant's, the results do not say: some of them must make the sum."""
    told, edges = cell.energy.meter, _window(cell)
    assert told is not None
    assert edges is not None
    if not edges[0] < edges[1]:
        return f"its window from {edges[0]:g} s to {edges[1]:g} s is empty"
    made = [delta_between(each.seconds, each.joules, *edges, math.inf) for each in meters]
    known = [joules * 1e6 for joules in made if not isinstance(joules, NoEnergy)]
    if not known:
        return "no readings around its window"
    if len(known) > MOST_METERS:
        return ""
    told_uj = told.measured_uj or 0
    some = (sum(part) for count in range(1, len(known) + 1) for part in combinations(known, count))
    if min(abs(sum_uj - told_uj) for sum_uj in some) <= max(TOLERANCE * told_uj, 1000.0):
        return ""
    return f"the meter counted {words.energy(told_uj)}, and its readings make {words.energy(sum(known))}"
