"""What a run of `wattserve meter verify` found, phase by phase, and its verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from wattserve_server.energy.calibration import AVERAGES_S
from wattserve_server.energy.device import MOST_LAG_S, MOST_RAMP_S
from wattserve_server.energy.probe import SensorProbe
from wattserve_server.energy.reading import Source
from wattserve_server.verify import mixed, response, waves
from wattserve_server.verify.beside import DeviceTime, Perturbation
from wattserve_server.verify.idle import Idle
from wattserve_server.verify.mixed import Mixed
from wattserve_server.verify.response import StepResponse
from wattserve_server.verify.sensor import Sensor
from wattserve_server.verify.verdicts import Verdict, conclusion, exit_code, not_measured
from wattserve_server.verify.waves import Waves

SCHEMA_VERSION = 1

WINDOWS = "windows against device time"
NOT_REACHED = "interrupted before"

# Where the server's search for a response ends.
LONGEST_LAG_S, WIDEST_S = MOST_LAG_S, {"ramp": MOST_RAMP_S, "box": max(AVERAGES_S)}


@dataclass
class Results:
    """None: not measured, or not yet."""

    started: str  # ISO 8601, UTC
    seconds: float  # that it was given
    host: Mapping[str, str]
    source: Source | None = None
    not_verified: tuple[str, ...] = ()  # the device's other counters
    device: str = ""
    model: str = ""
    variants: tuple[str, ...] = ()
    shapes: tuple[tuple[int, int], ...] = ()  # of requests: sequences, tokens of each
    most_watts: float | None = None  # that the device can be set to draw
    declared_idle_w: float | None = None
    probe: SensorProbe | None = None
    board: Mapping[str, Any] = field(default_factory=dict)  # identity, and what its state was meanwhile
    board_why: str = ""  # why there is none of it
    before_w: float | None = None  # before the model was loaded
    idle: Idle | None = None
    sensor: Sensor | None = None
    response: StepResponse | None = None
    waves: Waves | None = None
    mixed: Mixed | None = None
    perturbation: Perturbation | None = None
    device_time: DeviceTime | None = None
    reached: list[str] = field(default_factory=list)  # phases that were gone through
    took_s: float = 0.0
    is_interrupted: bool = False

    def verdicts(self) -> list[Verdict]:
        """In the order in which they matter."""
        return [
            *self._mixed_verdicts(),
            self._response_verdict(),
            waves.verdict_of(self.waves, self.took_s)
            if self.waves is not None
            else not_measured(waves.NAME, NOT_REACHED),
            *self._device_time_verdicts(),
        ]

    def _mixed_verdicts(self) -> list[Verdict]:
        if self.mixed is None:
            return [not_measured(name, NOT_REACHED) for name in (mixed.CLOSURE, mixed.SOLO)]
        return mixed.verdicts_of(self.mixed, self.took_s)

    def _response_verdict(self) -> Verdict:
        if "response" not in self.reached:
            return not_measured(response.NAME, NOT_REACHED)
        return response.verdict_of(self.response, LONGEST_LAG_S, WIDEST_S, self.took_s)

    def _device_time_verdicts(self) -> list[Verdict]:
        """There is no bound to it: only where there is no figure, a reason."""
        if self.device_time is not None:
            return []
        why = "the windows carry no device time" if self.device.startswith("cuda") else "no CUDA device"
        return [not_measured(WINDOWS, why if self.device else NOT_REACHED)]

    @property
    def exit_code(self) -> int:
        return exit_code(self.verdicts(), self.is_interrupted)

    @property
    def conclusion(self) -> str:
        return conclusion(self.verdicts(), self.is_interrupted)

    def as_plain(self) -> dict[str, Any]:
        """For programs: units in the names, null where nothing is known."""
        plain = {
            "schema": "wattserve-meter-verify",
            "version": SCHEMA_VERSION,
            "conclusion": self.conclusion,
            "exit_code": self.exit_code,
            "verdicts": [asdict(verdict) for verdict in self.verdicts()],
            **asdict(self),
        }
        adds_w = None if self.idle is None else self.idle.reading_adds_w
        plain["reading_adds_w"] = adds_w
        return {name: _plain(value) for name, value in plain.items()}


def _plain(value: Any) -> Any:
    """Of words, numbers, lists and tables."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
