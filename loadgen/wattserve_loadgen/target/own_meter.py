"""A meter that loadgen reads itself, for the joules of a peer on this machine.

It is `wattserve meter record` in a process of its own: loadgen uses no code of the server's. No sensor here,
or a recorder that dies, is not an error: `reason` says why there are no joules from then on. Knows nothing of
windows and requests; `target.energy_window` makes energies of what it recorded.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wattserve_client import EnergyQuality, EnergySource, Meter
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.target.energy_window import NoEnergy, delta_between
from wattserve_loadgen.target.recording import RecordingReader, Track

# A console script may lie elsewhere than this interpreter; the modules are where loadgen is. -P: files of the
# user's folder are not taken for modules.
RECORDER = ("-P", "-m", "wattserve_tools.cli", "meter", "record")
# Becomes the Python program of its arguments, which ends when this process ends: a killed loadgen leaves no
# recorder running. Only Linux offers it; elsewhere the program just runs.
_CHILD = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
_ITSELF_ONLY = "it counts the CPU time of the process that reads it, so it would miss the peer"
_LOOK_S = 0.02
_START_S = 120.0  # importing torch on a busy machine, and the probe of the sensor
_STOP_S = 10.0
_PERIODS_IN_A_GAP = 5
_SHORTEST_GAP_S = 0.25
_WORDS = 300


@dataclass(frozen=True)
class Rest:
    """What the machine draws at rest."""

    watts: float | None  # None: `reason` says why
    seconds: float
    reason: str = ""


class OwnMeter:
    """One recording into `path`, which must not be there yet, from `start` to `stop`."""

    def __init__(self, path: Path, meter: str = "auto", recorder: Sequence[str] = RECORDER) -> None:
        """`meter`: as for `wattserve meter record`. `recorder`: what Python runs.

        Raises PlanError for a meter that cannot see a peer.
        """
        for name, why in (("estimate", _ITSELF_ONLY), ("none", "it reads nothing")):
            if name in meter.split("+"):
                raise PlanError(f"loadgen's own meter cannot be {meter!r}: {why}; use auto, nvml or rapl")
        self.reason = "loadgen's own meter has not been started"
        self._command = ("-P", "-c", _CHILD, *recorder, str(path), "--meter", meter)
        self._reader = RecordingReader(path, _clock_offset_ns())
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=50)

    @property
    def info(self) -> Meter:
        """The meter, its quality and boundary; where there is none, quality NONE and the reason."""
        meter = self._reader.meter
        if meter is None or meter.source.quality in (EnergyQuality.ESTIMATED, EnergyQuality.NONE):
            none = EnergySource("none", "none", EnergyQuality.NONE, self.reason)
            return Meter(none, 0.0, None, None, None, idle_origin="unknown", boundary="")
        return replace(meter, update_period_seconds=self._reader.track().update_s)

    async def start(self, limit_s: float = _START_S) -> None:
        """Returns once readings arrive, or with `reason` set."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is loadgen's, which ends the recorder after the last window
        )
        self.reason = ""
        self._watching = asyncio.create_task(self._watch(self._process))
        give_up = time.monotonic() + limit_s
        while not self.reason and self._reader.readings == 0:
            if time.monotonic() > give_up:
                failed = next(iter(self._reader.track().failures), (0.0, self._last_words()))
                self.reason = f"the meter gave no reading within {limit_s:g} s: {failed[1]}"
            await asyncio.sleep(_LOOK_S)
            self._read_on()
            if not self.reason and self._unusable():
                await self._end()  # and with it comes all that the recorder has said, which explains it
                self.reason = self._unusable()
                return
        if self.reason:
            await self._end()

    async def stop(self) -> None:
        """Ends the recorder and takes in its last readings; what was recorded stays. May be called twice."""
        reason = self.reason
        await self._end()
        self._read_on()
        self.reason = reason or "loadgen's own meter was stopped"

    def track(self) -> Track:
        """What was recorded so far."""
        self._read_on()
        return self._reader.track()

    @property
    def gap_limit_s(self) -> float:
        """The longest time between two steps of the counter that is not a gap."""
        period = self._reader.track().update_s or 0.0
        return max(_SHORTEST_GAP_S, _PERIODS_IN_A_GAP * period)

    async def covers(self, instant: float, limit_s: float = 2.0) -> bool:
        """Waits until the counter has stepped at or after `instant` (perf_counter seconds); false when it has
        not within `limit_s`.
        """
        give_up = time.monotonic() + limit_s
        while not (len(seconds := self.track().seconds) and seconds[-1] >= instant):
            if self.reason or time.monotonic() >= give_up:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    def watts_between(self, start: float, end: float) -> float | NoEnergy:
        """Mean watts of a window, in perf_counter seconds."""
        track = self.track()
        joules = delta_between(track.seconds, track.joules, start, end, self.gap_limit_s)
        return joules if isinstance(joules, NoEnergy) else joules / (end - start)

    async def rest(self, seconds: float) -> Rest:
        """Mean watts from now on; for a moment when nothing runs."""
        if self.reason:
            return Rest(None, seconds, self.reason)
        start = time.perf_counter()
        await self.covers(start)  # the first step, which only opens the record, may be yet to come
        start = max(start, float(self.track().seconds[0])) if len(self.track().seconds) else start
        await asyncio.sleep(seconds)
        await self.covers(start + seconds)
        watts = self.watts_between(start, start + seconds)
        if isinstance(watts, NoEnergy):
            return Rest(None, seconds, self.reason or watts.value)
        return Rest(watts, seconds)

    def _read_on(self) -> None:
        try:
            self._reader.read_on()
        except (ValueError, OSError) as error:
            self.reason = self.reason or f"the meter's recording cannot be read: {error}"

    def _unusable(self) -> str:
        """Why a meter is of no use for a peer; "" where it is, or has not said yet what it is."""
        if self._reader.meter is None:
            return ""
        source = self._reader.meter.source
        if source.quality == EnergyQuality.NONE:
            return f"no energy sensor: {source.note}"
        if source.quality == EnergyQuality.ESTIMATED:
            missing = next((line for line in self._said if "NO ENERGY SENSOR" in line), "")
            why = missing.partition("NO ENERGY SENSOR: ")[2].partition("; joules are")[0]
            return f"no energy sensor on this machine ({why or source.name}); of the estimate: {_ITSELF_ONLY}"
        return ""

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Keeps what the recorder says; its end, when nobody asked for it, is a reason."""
        assert process.stderr is not None
        async for line in process.stderr:
            self._said.append(line.decode(errors="replace").strip())
        code = await process.wait()
        if self.reason:
            return
        if self._reader.meter is None:
            self.reason = f"no meter: {self._last_words()}"
        else:
            error = next((f": {line}" for line in reversed(self._said) if "error" in line.lower()), "")
            self.reason = f"the meter's recorder ended by itself, with exit code {code}{error[:_WORDS]}"

    def _last_words(self) -> str:
        line = next((line for line in reversed(self._said) if line), "its recorder said nothing")
        return line.removeprefix("wattserve: ").removeprefix("error: ")[:_WORDS]

    async def _end(self) -> None:
        process, watching = self._process, self._watching
        if process is None or watching is None:
            return
        self.reason = self.reason or "loadgen's own meter was stopped"
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(watching), _STOP_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await watching


def _clock_offset_ns() -> int:
    """Of perf_counter over monotonic: nothing where both are one clock, as on Linux and macOS."""
    clocks = [time.get_clock_info(name).implementation for name in ("perf_counter", "monotonic")]
    if clocks[0] == clocks[1]:
        return 0
    pairs = [(time.perf_counter_ns(), time.monotonic_ns()) for _ in range(100)]
    return int(np.median([perf_counter - monotonic for perf_counter, monotonic in pairs]))
