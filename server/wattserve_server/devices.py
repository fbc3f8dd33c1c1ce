"""A device that runs variants, with all that tells its joules: run log, meter, probe, sampler, boards."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch

from wattserve_server.config import ServerConfig
from wattserve_server.energy.probe import SensorProbe, poll_period_s
from wattserve_server.energy.reading import Quality
from wattserve_server.energy.receipt import Charge
from wattserve_server.energy.trials import TrialPlan, plan_trials
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.device import device_uuid
from wattserve_server.engine.engine import Metering
from wattserve_server.engine.lane import RunLog
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.errors import MeterError
from wattserve_server.meters.choose import ChosenMeter, open_meter
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.gain import raw_energy
from wattserve_server.meters.nvml_board import Board, Nvml, learn_own_pid, load_nvml, open_board
from wattserve_server.meters.port import Meter
from wattserve_server.meters.probe import ProbedMeter, parts_of, probe_with_parts
from wattserve_server.meters.sampler import Sampler
from wattserve_server.service.prediction import DeviceMeter
from wattserve_server.service.report import meter_info
from wattserve_server.telemetry.scrape import BoardGauges
from wattserve_server.telemetry.state import BoardFigures, DeviceState

LISTENING_POLL_S = 0.05  # how often a continuous meter is read, at the least, while it is learned from

T = TypeVar("T")

# A device's name, what was settled on it, and what its active account holds with that.
OnCharges = Callable[[str, Sequence[Charge], int], None]


class MeteredDevice:
    """Opens the device's meter; raises ConfigError or MeterError. Call `probe` before everything else."""

    def __init__(
        self, config: ServerConfig, device: torch.device, is_main: bool, is_only: bool = False
    ) -> None:
        self.device = device
        self.run_log = RunLog()
        self._config, self._is_main, self._is_only = config, is_main, is_only
        self.chosen = self.open_again()
        self._listening_s = max(LISTENING_POLL_S, self.chosen.meter.poll_period_s)
        self.boards = boards_of(self.chosen.meter)
        self._probed: ProbedMeter
        self.sampler: Sampler

    def open_again(self) -> ChosenMeter:
        """Its meter, as one that shares nothing with any other; whoever asks closes it."""
        return open_meter(
            self._config,
            device_type=self.device.type,
            device_uuid=device_uuid(self.device),
            busy_ns=self.run_log.busy_ns,
            is_main=self._is_main,
            is_only=self._is_only,
        )

    async def probe(self, on_charges: OnCharges) -> None:
        """Find out what kind of sensor it is, and make the sampler that will read it."""
        if self.device.type == "cuda":
            await asyncio.to_thread(learn_own_pid, device_uuid(self.device), self._work_once)
        self._probed = await asyncio.to_thread(probe_with_parts, self.chosen.meter)
        self.sampler = Sampler(
            self.chosen.meter,
            self.run_log.drain,
            lambda charges: on_charges(str(self.device), charges, self.sampler.ledger.active_uj),
            poll_period_s=min(self._pace_s, self._listening_s),
            split_rule=self._config.split_rule,
        )

    def _work_once(self) -> None:
        with suppress(RuntimeError):  # what is wrong with the device, the loading of a variant will say
            torch.ones(1 << 20, device=self.device).sum().item()

    def keep_pace(self) -> None:
        """From now on read no more often than accounting needs."""
        self.sampler.poll_period_s = self._pace_s

    @property
    def tells_joules(self) -> bool:
        return self.chosen.meter.source.quality is not Quality.NONE

    @property
    def has_idle_to_learn(self) -> bool:
        return self.tells_joules and self.chosen.meter.idle_watts is None

    def metering(self, max_tokens: int, limits: BatchLimits) -> Metering:
        """max_tokens: that the model takes. limits: of its batches on this device."""
        return Metering(self.run_log, self.sampler, self._trials(max_tokens, limits))

    def state(self, book: ReceiptBook) -> DeviceState:
        return DeviceState(
            str(self.device),
            self.sampler.ledger,
            self.sampler.status,
            self._probed.probe,
            parts_of(self.chosen.meter, self._probed),
            self.run_log.busy_ns(),
            raw_energy(self.chosen.meter),
            book.residual_uj(str(self.device)),
        )

    def _trials(self, max_tokens: int, limits: BatchLimits) -> TrialPlan | None:
        """How to calibrate the variants of this device; None where nothing tells joules."""
        if not (self._config.calibration_seconds and self.tells_joules):
            return None
        period_s = self._probed.probe.update_period_s or self._listening_s
        return plan_trials(
            max_tokens, limits.max_sequences, limits.max_tokens, period_s, self._config.calibration_seconds
        )

    @property
    def probe_found(self) -> SensorProbe:
        """What the probe at the start has found; once there was one."""
        return self._probed.probe

    def describe(self) -> DeviceMeter:
        parts = parts_of(self.chosen.meter, self._probed)
        info = meter_info(self.sampler.status, self._probed.probe, parts, str(self.device))
        return DeviceMeter(str(self.device), self.sampler, info)

    @property
    def _pace_s(self) -> float:
        return poll_period_s(self._probed.probe, self.chosen.meter.poll_period_s)


def boards_of(meter: Meter, load: Callable[[], Nvml] = load_nvml) -> list[BoardGauges]:
    """The GPU boards that the meter, or a part of it, reads by NVML: for the gauges that perf_analyzer knows.

    Each is opened a second time: a scrape asks it by a handle of its own, and the sampler's is left alone.
    Never raises: a board that cannot be opened has no gauges.
    """
    boards = []
    for part in meter.meters if isinstance(meter, CompositeMeter) else (meter,):
        kind, _, uuid = part.source.name.partition(":")
        if kind == "nvml":
            with suppress(MeterError):
                board = open_board(uuid, load=load)
                boards.append(BoardGauges(board.uuid, functools.partial(_board_figures, board)))
    return boards


def _board_figures(board: Board) -> BoardFigures:
    used, total = _answer(board.memory_bytes) or (None, None)
    percent, power_mw = _answer(board.utilization_percent), _answer(board.average_power_mw)
    return BoardFigures(
        None if percent is None else percent / 100,
        None if power_mw is None else power_mw / 1000,
        used,
        total,
    )


def _answer(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except Exception:  # not MeterError alone: of a driver older than itself the binding says otherwise
        return None
