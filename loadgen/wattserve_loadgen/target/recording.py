"""Reads a meter's recording while it is being written: JSON lines, as `wattserve meter record` makes them.

    {"format": "wattserve-meter-recording", "source": {...}, "origin_monotonic_ns": ..., ...}
    {"at_ns": 20000000, "energy_uj": 120}      nanoseconds since the origin
    {"at_ns": 40000000, "error": "..."}        a reading that failed

A counter steps, and between two steps its value says nothing new: only the steps are kept. Knows nothing of
the process that writes.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wattserve_client import EnergyQuality, EnergySource, Meter
from wattserve_common.strict_json import json_of

Floats = npt.NDArray[np.float64]
METHOD = "counter over the window, read by loadgen"
_FORMAT = "wattserve-meter-recording"
_VERSION = 1


@dataclass(frozen=True)
class Track:
    """The counter's steps so far."""

    seconds: Floats  # when each was seen, on `time.perf_counter`
    joules: Floats  # from the first step on, without the counter's wrap-arounds; less where it was set back
    failures: tuple[tuple[float, str], ...]  # readings that failed: when and why

    @property
    def update_s(self) -> float | None:
        """The median time between steps; None before there are two."""
        return float(np.median(np.diff(self.seconds))) if len(self.seconds) > 1 else None

    def failure_between(self, start: float, end: float) -> str:
        """Why the first reading that failed in a window failed; "" where none did."""
        return next((reason for at, reason in self.failures if start <= at <= end), "")


class RecordingReader:
    """One recording."""

    def __init__(self, path: Path, clock_offset_ns: int) -> None:
        """`clock_offset_ns`: of `time.perf_counter_ns` over the recording's clock, `time.monotonic_ns`."""
        self.path = path
        self.meter: Meter | None = None
        self.readings = 0  # good ones
        self._offset_ns = clock_offset_ns
        self._origin_ns = 0
        self._wraps_at_uj: int | None = None
        self._position = 0
        self._last_uj: int | None = None
        self._at_ns, self._uj = array("q"), array("q")
        self._failures: list[tuple[float, str]] = []

    def read_on(self) -> None:
        """Take in what was appended. ValueError, in words, for lines that are no recording's."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            try:
                self._take(json_of(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}: holds a line that is no recording's ({error!r})") from None

    def track(self) -> Track:
        seconds = np.array(self._at_ns, dtype=np.int64) / 1e9
        joules = np.array(self._uj, dtype=np.int64) / 1e6
        return Track(seconds, joules, tuple(self._failures))

    def _take(self, values: dict[str, Any]) -> None:
        if self.meter is None:
            self._take_header(values)
        elif "end_ns" not in values:
            at_ns = self._origin_ns + self._offset_ns + int(values["at_ns"])
            if "error" in values:
                self._failures.append((at_ns / 1e9, str(values["error"])))
            else:
                self.readings += 1
                self._take_reading(at_ns, int(values["energy_uj"]))

    def _take_header(self, values: dict[str, Any]) -> None:
        if values.get("format") != _FORMAT or values.get("version") != _VERSION:
            raise ValueError(f"its header is not that of a recording of version {_VERSION}")
        if values.get("origin_monotonic_ns") is None:
            raise ValueError("its header names no origin_monotonic_ns: its recorder is too old")
        self._origin_ns, self._wraps_at_uj = int(values["origin_monotonic_ns"]), values["wraps_at_uj"]
        source = values["source"]
        is_there = source["quality"] != "none"
        notes = ["read by loadgen, not by the server" if is_there else "", source["note"]]
        quality, note = EnergyQuality(source["quality"]), "; ".join(filter(None, notes))
        self.meter = Meter(
            source=EnergySource(source["name"], METHOD, quality, note),
            poll_period_seconds=values["poll_period_s"],
            update_period_seconds=None,
            read_cost_seconds=None,
            idle_watts=None,
            idle_origin="unknown",
            boundary=source["boundary"],
        )

    def _take_reading(self, at_ns: int, uj: int) -> None:
        before, self._last_uj = self._last_uj, uj
        if before is None or uj == before:  # of the first value nobody knows since when it stood there
            return
        step_uj = uj - before
        if step_uj < 0 and self._wraps_at_uj is not None and before > self._wraps_at_uj // 2:
            step_uj += self._wraps_at_uj
        self._at_ns.append(at_ns)
        self._uj.append(self._uj[-1] + step_uj if self._uj else 0)
