"""A device that runs variants, with everything that tells its joules: run log, meter, probe, sampler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import torch

from wattserve_server.boards import boards_of
from wattserve_server.config import ServerConfig
from wattserve_server.energy.probe import poll_period_s
from wattserve_server.energy.reading import Quality
from wattserve_server.energy.trials import TrialPlan, plan_trials
from wattserve_server.energy.window import Charge
from wattserve_server.engine.device import device_uuid
from wattserve_server.engine.engine import Metering
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.runlog import RunLog
from wattserve_server.metering import open_configured
from wattserve_server.meters.probe import ProbedMeter, parts_of, probe_with_parts
from wattserve_server.meters.sampler import Sampler
from wattserve_server.service.meter_info import meter_info
from wattserve_server.service.serving import DeviceMeter
from wattserve_server.telemetry.meter_figures import MeterFigures
from wattserve_server.telemetry.state import DeviceState

LISTENING_POLL_S = 0.05
"""How often a continuous meter is read, at the least, while it is learned from."""


class MeteredDevice:
    """Opens the device's meter: raises ConfigError or MeterError. `probe` comes before everything else."""

    def __init__(self, config: ServerConfig, device: torch.device, is_main: bool) -> None:
        self.device = device
        self.run_log = RunLog()
        self.chosen = open_configured(
            config,
            device_type=device.type,
            device_uuid=device_uuid(device),
            busy_ns=self.run_log.busy_ns,
            is_main=is_main,
        )
        self._config = config
        self._listening_s = max(LISTENING_POLL_S, self.chosen.meter.poll_period_s)
        self._boards = boards_of(self.chosen.meter)
        self._probed: ProbedMeter
        self.sampler: Sampler

    async def probe(self, on_charges: Callable[[Sequence[Charge]], None]) -> None:
        """Find out what kind of sensor it is, and make the sampler that will read it."""
        self._probed = await asyncio.to_thread(probe_with_parts, self.chosen.meter)
        self.sampler = Sampler(
            self.chosen.meter,
            self.run_log.drain,
            on_charges,
            poll_period_s=min(self._pace_s, self._listening_s),
            split_rule=self._config.split_rule,
        )

    def keep_pace(self) -> None:
        """From now on read no more often than accounting needs."""
        self.sampler.poll_period_s = self._pace_s

    @property
    def tells_joules(self) -> bool:
        return self.chosen.meter.source.quality is not Quality.NONE

    @property
    def has_idle_to_learn(self) -> bool:
        return self.tells_joules and self.chosen.meter.idle_watts is None

    @property
    def metering(self) -> Metering:
        return Metering(self.run_log, lambda: self.sampler.law)

    @property
    def state(self) -> DeviceState:
        figures = MeterFigures(self._probed.probe, lambda: parts_of(self.chosen.meter, self._probed))
        return DeviceState(
            str(self.device),
            lambda: self.sampler.ledger,
            lambda: self.sampler.status,
            figures,
            self.run_log.busy_ns,
            self._boards,
        )

    def plan(self, max_tokens: int, limits: BatchLimits) -> TrialPlan | None:
        """How to calibrate the variants of this device; None where there is nothing to listen to."""
        if not (self._config.calibration_seconds and self.tells_joules):
            return None
        period_s = self._probed.probe.update_period_s or self._listening_s
        return plan_trials(
            max_tokens, limits.max_sequences, limits.max_tokens, period_s, self._config.calibration_seconds
        )

    def describe(self) -> DeviceMeter:
        parts = parts_of(self.chosen.meter, self._probed)
        info = meter_info(self.sampler.status, self._probed.probe, parts, str(self.device))
        return DeviceMeter(str(self.device), self.sampler, info)

    @property
    def _pace_s(self) -> float:
        return poll_period_s(self._probed.probe, self.chosen.meter.poll_period_s)
