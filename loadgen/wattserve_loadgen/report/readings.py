"""readings.jsonl of a results folder, as arrays: what each meter counted while the sweep ran.

A line is {"target", "device", "seconds" since the sweep's start, "joules" cumulative, "idle_watts" or null}.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.results.folder import READINGS_FILE

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Meter:
    """One meter's readings, by rising time."""

    target: str
    device: str  # "" when it has no name
    seconds: Numbers  # since the sweep's start
    joules: Numbers  # cumulative
    idle_watts: float | None  # the last that it stated


def read_meters(folder: Path) -> list[Meter]:
    """Every meter with two readings or more; [] without the file. ResultsError for a line that is none.

    A last line without its end is what a killed sweep left, and is passed over.
    """
    path = folder / READINGS_FILE
    if not path.is_file():
        return []
    rows: dict[tuple[str, str], list[tuple[float, float, float | None]]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                break
            try:
                value = json.loads(line)
                key = (str(value["target"]), str(value.get("device") or ""))
                row = (float(value["seconds"]), float(value["joules"]), value.get("idle_watts"))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ResultsError(f"{path}: line {number}: not a reading of a meter") from None
            own = rows.setdefault(key, [])
            if not own or row[0] > own[-1][0]:
                own.append(row)
    return [
        Meter(
            *key,
            np.array([row[0] for row in own]),
            np.array([row[1] for row in own]),
            next((row[2] for row in reversed(own) if row[2] is not None), None),
        )
        for key, own in rows.items()
        if len(own) > 1
    ]


def power_steps(
    meter: Meter, most: int, start: float | None = None, end: float | None = None
) -> tuple[Numbers, Numbers]:
    """(edges in seconds, mean watts between them): at most `most` steps, each from reading to reading.

    A counter that steps back has no power there: NaN.
    """
    kept = np.ones(len(meter.seconds), dtype=bool)
    if start is not None:
        kept &= meter.seconds >= start
    if end is not None:
        kept &= meter.seconds <= end
    seconds, joules = meter.seconds[kept], meter.joules[kept]
    if len(seconds) < 2:
        return np.zeros(0), np.zeros(0)
    wanted = np.linspace(seconds[0], seconds[-1], most + 1)
    places = np.unique(np.clip(np.searchsorted(seconds, wanted), 0, len(seconds) - 1))
    edges = seconds[places]
    watts = np.diff(joules[places]) / np.diff(edges)
    return edges, np.where(watts < 0, np.nan, watts)
