"""A device that runs variants, with all that tells its joules: run log, meter, probe, sampler, boards."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from wattserve_server.config import ServerConfig
from wattserve_server.counters import Counter
from wattserve_server.energy.probe import MeterPart
from wattserve_server.energy.receipt import HOST
from wattserve_server.energy.trials import TrialPlan, plan_step_trials, plan_trials
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.device import device_uuid
from wattserve_server.engine.engine import Metering
from wattserve_server.engine.generation.cache import token_bytes
from wattserve_server.engine.lane import RunLog
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.meters.choose import ChosenMeter, notice_of, open_meter, part_of
from wattserve_server.meters.composite import CompositeMeter, joined
from wattserve_server.meters.nvml_board import Board, Nvml, learn_own_pid, load_nvml, open_board
from wattserve_server.meters.port import Meter
from wattserve_server.meters.together import Together
from wattserve_server.service.prediction import DeviceMeter
from wattserve_server.service.report import meter_info
from wattserve_server.telemetry.scrape import BoardGauges
from wattserve_server.telemetry.state import BoardFigures, DeviceState

T = TypeVar("T")


class MeteredDevice:
    """Opens the device's meters; raises ConfigError or MeterError. Call `get_ready` before all else."""

    def __init__(
        self, config: ServerConfig, device: torch.device, is_main: bool, host: Counter | None = None
    ) -> None:
        """host: the counter of the machine's host, where another device has opened one: it has no second."""
        self.device = device
        self.run_log = RunLog()
        self._config, self._is_main = config, is_main
        self.chosen = self._open()
        self.counters: list[Counter] = []
        for meter in added_up(self.chosen.meter):
            part = part_of(meter.source)
            if part == HOST and host is not None:
                meter.close()
                self._draw_on(host)
            else:
                self._draw_on(Counter(part, meter))
        charging = joined(tuple(counter.meter.source for counter in self.counters))
        if charging.name != self.chosen.meter.source.name:
            self.chosen = ChosenMeter(self.chosen.meter, notice_of(charging))
        self.boards = boards_of(self.chosen.meter, has_dcgm=config.dcgm_metrics)

    def open_again(self, part: str) -> Meter:
        """The meter of one of its counters, sharing nothing with any other; whoever asks closes it."""
        meters = {part_of(meter.source): meter for meter in added_up(self._open().meter)}
        again = meters.pop(part)
        for other in meters.values():
            other.close()
        return again

    def _open(self) -> ChosenMeter:
        return open_meter(
            self._config,
            device_type=self.device.type,
            device_uuid=device_uuid(self.device),
            busy_ns=self.run_log.busy_ns,
            is_main=self._is_main,
        )

    def _draw_on(self, counter: Counter) -> None:
        reader = self.run_log.add_reader() if self.counters else 0
        counter.draw(
            str(self.device),
            functools.partial(self.run_log.drain, reader),
            functools.partial(self.run_log.drain_visits, reader),
        )
        self.counters.append(counter)

    async def get_ready(self) -> None:
        """Let its driver know this process, before it is asked who else is there."""
        if self.device.type == "cuda":
            await asyncio.to_thread(learn_own_pid, device_uuid(self.device), self._work_once)

    def _work_once(self) -> None:
        with suppress(RuntimeError):  # what is wrong with the device, the loading of a variant will say
            torch.ones(1 << 20, device=self.device).sum().item()

    def metering(self, model: LoadedModel, limits: BatchLimits, cache_bytes: int = 0) -> Metering:
        """limits: of the model's batches on this device. cache_bytes: of a variant, where it generates."""
        laws = {counter.part: counter.sampler for counter in self.counters}
        goes_by_cpu = any(counter.meter.source.cpu_watts is not None for counter in self.counters)
        return Metering(self.run_log, laws, self._trials(model, limits, cache_bytes), goes_by_cpu)

    def _trials(self, model: LoadedModel, limits: BatchLimits, cache_bytes: int) -> TrialPlan | None:
        """How to calibrate the variants of this device, long enough for its slowest counter; None where
        nothing tells joules."""
        told = [counter for counter in self.counters if counter.tells_joules]
        if not (self._config.calibration_seconds and told):
            return None
        most_tokens, meter = (
            model.facts.max_tokens,
            (
                max(counter.update_period_s for counter in told),
                self._config.calibration_seconds,
                max(counter.meter.source.averages_s for counter in told),
            ),
        )
        if model.task.generates:
            cache_tokens = cache_bytes // token_bytes(model.config, 4)
            return plan_step_trials(
                most_tokens, limits.max_sequences, limits.max_tokens, cache_tokens, *meter
            )
        return plan_trials(most_tokens, limits.max_sequences, limits.max_tokens, *meter)


def open_devices(
    config: ServerConfig, devices: Sequence[torch.device], main: torch.device
) -> list[MeteredDevice]:
    """With one counter of the host among them, whoever draws on it: the one that --meter names, if it does.
    main: the device that --meter is of. Raises ConfigError or MeterError."""
    opened: dict[torch.device, MeteredDevice] = {}
    host: Counter | None = None
    for device in sorted(devices, key=lambda device: device.type != main.type):
        opened[device] = MeteredDevice(config, device, device.type == main.type, host)
        hosts = [counter for counter in opened[device].counters if counter.part == HOST]
        host = hosts[0] if hosts else host
    if config.dcgm_metrics and not any(device.boards for device in opened.values()):
        meters = " and ".join(device.chosen.meter.source.name for device in opened.values())
        raise ConfigError(
            f"--dcgm-metrics tells what a GPU's board counted, and the meter here is {meters}: leave it out, "
            "or serve on a GPU with --meter nvml"
        )
    return [opened[device] for device in devices]


def check_alike(devices: Sequence[MeteredDevice], where: str) -> None:
    """Raises ConfigError, naming `where` they were given, for devices of one queue whose receipts would have
    other parts."""
    parts = {
        str(device.device): " and ".join(counter.part for counter in device.counters) for device in devices
    }
    if len(set(parts.values())) > 1:
        told = ", ".join(f"{device} by its {part}" for device, part in parts.items())
        raise ConfigError(
            f"{where}: these devices are not metered alike ({told}); name those that are, or a --meter that "
            "fits all of them"
        )


@dataclass(frozen=True, slots=True)
class Account:
    """What one ledger of the server holds, under the name of its device: the counters that are this device's
    alone. A counter that several devices share has a ledger of its own, so that no joule is told twice."""

    name: str
    counters: Sequence[Counter]

    @property
    def together(self) -> Together:
        return Together([counter.sampler for counter in self.counters])

    def describe(self) -> DeviceMeter:
        shared_by = dict.fromkeys(device for counter in self._shared for device in counter.devices)
        info = meter_info(self.together.status, self.counters[0].probed, self._parts(), self.name)
        info.shared_by.extend(shared_by)
        return DeviceMeter(
            self.name,
            self.together,
            info,
            {counter.part: counter.sampler for counter in self.counters},
        )

    def state(self, book: ReceiptBook) -> DeviceState:
        together, first = self.together, self.counters[0]
        return DeviceState(
            self.name,
            together.ledger,
            together.status,
            first.probed,
            self._parts(),
            first.raw_energy,
            is_shared=bool(self._shared),
            receipts_residual_uj=sum(book.residual_uj(counter.name) for counter in self.counters),
        )

    @property
    def _shared(self) -> list[Counter]:
        return [counter for counter in self.counters if len(counter.devices) > 1]

    def _parts(self) -> list[MeterPart]:
        """None of a counter that is alone."""
        return [counter.described() for counter in self.counters] if len(self.counters) > 1 else []


def accounts_of(devices: Sequence[MeteredDevice]) -> list[Account]:
    """In the order of the devices, with those that they share behind them. Of devices that have the same
    counter and no other, as two lanes of a CPU have, the first one holds it."""
    accounts = []
    shared = dict.fromkeys(
        counter for device in devices for counter in device.counters if len(counter.devices) > 1
    )
    for device in devices:
        own = [counter for counter in device.counters if len(counter.devices) == 1]
        if not own:  # the CPU, whose counter is the host's of others
            own = [counter for counter in device.counters if counter in shared]
            shared = {counter: None for counter in shared if counter not in own}
        if own:
            accounts.append(Account(str(device.device), own))
    return [*accounts, *(Account(counter.part, [counter]) for counter in shared)]


def added_up(meter: Meter) -> Sequence[Meter]:
    """The meters whose sum it is: itself, where it is none."""
    return meter.meters if isinstance(meter, CompositeMeter) else (meter,)


def boards_of(
    meter: Meter, load: Callable[[], Nvml] = load_nvml, *, has_dcgm: bool = False
) -> list[BoardGauges]:
    """The GPU boards that the meter, or a part of it, reads by NVML: for the gauges that perf_analyzer knows,
    and with `has_dcgm` for those of NVIDIA's exporter.

    Each is opened a second time: a scrape asks it by a handle of its own, and the sampler's is left alone.
    Never raises: a board that cannot be opened has no gauges.
    """
    boards = []
    for part in added_up(meter):
        kind, _, uuid = part.source.name.partition(":")
        if kind == "nvml":
            with suppress(MeterError):
                board = open_board(uuid, load=load)
                boards.append(BoardGauges(board.uuid, functools.partial(_board_figures, board, has_dcgm)))
    return boards


def _board_figures(board: Board, has_dcgm: bool) -> BoardFigures:
    used, total = _answer(board.memory_bytes) or (None, None)
    percent, power_mw = _answer(board.utilization_percent), _answer(board.average_power_mw)
    figures = BoardFigures(
        None if percent is None else percent / 100,
        None if power_mw is None else power_mw / 1000,
        used,
        total,
    )
    if not has_dcgm:
        return figures
    return replace(figures, index=_answer(board.index), name=board.name, energy_mj=_answer(board.energy_mj))


def _answer(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except Exception:  # not MeterError alone: of a driver older than itself the binding says otherwise
        return None
