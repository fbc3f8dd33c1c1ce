"""What an NVIDIA board says of itself: its identity and caps, and, ten times a second, its clocks, why they
are held back, its performance state, temperature and power. Nothing is ever set.

Every question that the board or its driver does not answer has a reason in the place of an answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from wattserve_server.errors import MeterError
from wattserve_server.meters.nvml_board import load_nvml, open_board

EVERY_S = 0.1

SM, MEMORY = 1, 2  # nvmlClockType_t
GPU_TEMPERATURE = 0  # nvmlTemperatureSensors_t

# By what each is written down; the functions of pynvml that answer, and their further arguments. Of the
# first kind nothing changes while this runs, of the second everything may.
IDENTITY: dict[str, tuple[str, tuple[Any, ...]]] = {
    "name": ("nvmlDeviceGetName", ()),
    "vbios": ("nvmlDeviceGetVbiosVersion", ()),
    "persistence_mode": ("nvmlDeviceGetPersistenceMode", ()),
    "power_limit_mw": ("nvmlDeviceGetEnforcedPowerLimit", ()),
    "power_limits_mw": ("nvmlDeviceGetPowerManagementLimitConstraints", ()),
    "most_sm_mhz": ("nvmlDeviceGetMaxClockInfo", (SM,)),
    "most_memory_mhz": ("nvmlDeviceGetMaxClockInfo", (MEMORY,)),
    "compute_capability": ("nvmlDeviceGetCudaComputeCapability", ()),
    "mig": ("nvmlDeviceGetMigMode", ()),
}
STATE: dict[str, tuple[str, tuple[Any, ...]]] = {
    "sm_mhz": ("nvmlDeviceGetClockInfo", (SM,)),
    "memory_mhz": ("nvmlDeviceGetClockInfo", (MEMORY,)),
    "throttle_reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    "performance_state": ("nvmlDeviceGetPerformanceState", ()),
    "temperature_c": ("nvmlDeviceGetTemperature", (GPU_TEMPERATURE,)),
    "power_mw": ("nvmlDeviceGetPowerUsage", ()),
}
# Bits of the throttle reasons that are no one's fault: idle, and clocks that an application asked for.
HARMLESS = 0x1 | 0x2


class BoardWatch:
    """Of the board with this UUID; of no board (`why` says so) where there is none to be asked."""

    def __init__(self, uuid: str, file: Callable[[], TextIO]) -> None:
        """file: opened once there is something to write."""
        self.identity: dict[str, Any] = {}
        self.unanswered: dict[str, str] = {}
        self.why = ""
        self.samples: list[dict[str, Any]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattserve-verify-board", daemon=True)
        self._board = None
        if not uuid:
            self.why = "the meter reads no NVIDIA board"
            return
        try:
            self._board = open_board(uuid)
            self._nvml: Any = load_nvml()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except MeterError as error:
            self.why = str(error)
            return
        self._file = file()
        self.identity = {"uuid": uuid, "driver": self._answer("driver", self._driver)}
        for name in IDENTITY:
            self.identity[name] = self._ask(name, *IDENTITY[name])
        processes = self._board.neighbours()
        self.identity["other_processes"] = processes

    def start(self) -> None:
        if self._board is not None:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._board is not None:
            if self._thread.is_alive():
                self._thread.join()
            self._file.close()
            self._board.close()

    def look(self) -> None:
        """Once. Called by the thread; by tests, instead of it."""
        assert self._board is not None
        state: dict[str, Any] = {"at_ns": time.monotonic_ns()}
        for name in STATE:
            state[name] = self._ask(name, *STATE[name])
        state["others_at_work"] = self._board.others_at_work()
        self.samples.append(state)
        self._file.write(json.dumps(state) + "\n")

    def summary(self) -> dict[str, Any]:
        """Least and most of each figure, and for which share of the time clocks were held back."""
        found: dict[str, Any] = {"samples": len(self.samples), "unanswered": self.unanswered}
        for name in STATE:
            values = [sample[name] for sample in self.samples if sample[name] is not None]
            if name != "throttle_reasons":
                found[name] = {"least": min(values), "most": max(values)} if values else None
            elif values:
                held = [value for value in values if value & ~HARMLESS]
                found["throttled_share"] = len(held) / len(values)
                found["throttle_reasons_seen"] = sorted({value for value in values if value})
        return found

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self.look()

    def _driver(self) -> Any:
        return self._nvml.nvmlSystemGetDriverVersion()

    def _ask(self, name: str, function: str, arguments: tuple[Any, ...]) -> Any:
        return self._answer(name, lambda: getattr(self._nvml, function)(self._handle, *arguments))

    def _answer(self, name: str, question: Callable[[], Any]) -> Any:
        try:
            answer = question()
        except Exception as error:  # not NVMLError alone: of a driver older than itself the binding says else
            self.unanswered[name] = f"{type(error).__name__}: {error}"
            return None
        if isinstance(answer, bytes):
            return answer.decode()
        return list(answer) if isinstance(answer, list | tuple) else answer
