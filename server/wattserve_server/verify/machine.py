"""The real rig: the server as `wattserve serve` starts it, without listeners, and the reader beside it."""

from __future__ import annotations

import asyncio
import functools
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from wattserve_server.config import ServerConfig
from wattserve_server.counters import Counter
from wattserve_server.devices import MeteredDevice
from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.receipt import ACCELERATOR, Window
from wattserve_server.energy.trials import plan_trials
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.tasks import Item
from wattserve_server.errors import ConfigError
from wattserve_server.meters.recording import create
from wattserve_server.meters.sampler import DrainWindows
from wattserve_server.service.prediction import Host
from wattserve_server.service.quota import Quotas
from wattserve_server.starting import make_plan, start
from wattserve_server.telemetry.observer import Observer
from wattserve_server.verify.board import BoardWatch
from wattserve_server.verify.reader import Reader
from wattserve_server.verify.readings import Readings, Spell
from wattserve_server.verify.rig import Asked, Shape

READINGS, BOARD = "readings.jsonl", "board.jsonl"
BEFORE_S = 3.0  # for so long the reader listens before the model is loaded


class Machine:
    """Owned by the event loop."""

    def __init__(
        self,
        host: Host,
        device: MeteredDevice,
        counter: Counter,
        reader: Reader,
        board: BoardWatch,
        before: Spell,
        drain: DrainWindows,
    ) -> None:
        self.host, self.device, self.counter = host, device, counter
        self.board, self.before = board, before
        self.variants = _default_first(host.engine)
        self.shapes = _shapes(host.engine)
        self.declared_idle_w = counter.meter.idle_watts
        self.readings: Readings = reader.readings
        self.origin_ns = reader.origin_ns  # of the recording
        self._reader = reader
        self._drain = drain
        self._windows: list[Window] = []
        self._items: dict[Shape, list[Item]] = {}
        self._lane = host.engine.lanes[device.device]

    @property
    def all_windows(self) -> Sequence[Window]:
        """Since the start, in the order in which they ended."""
        finished, _ = self._drain()
        self._windows += finished
        return self._windows

    def now_ns(self) -> int:
        return time.monotonic_ns()

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def ask(self, variant: str, shape: Shape) -> Asked:
        engine = self.host.engine
        items = self._items.get(shape)
        if items is None:
            model, (count, length) = engine.model, shape
            items = self._items[shape] = [
                model.task.example(model.facts, model.tokenizer, length, seed) for seed in range(count)
            ]
        sent_ns = time.monotonic_ns()
        answer = await engine.predict(items, engine.hosted(variant))
        return Asked(variant, shape, sent_ns, time.monotonic_ns(), answer.receipt, self.counter.part)

    async def until_settled(self, asked: Sequence[Asked]) -> None:
        await self.host.until_settled(*(each.receipt for each in asked))

    def windows(self, since_ns: int, until_ns: int) -> list[Window]:
        windows = self.all_windows
        first = bisect_left(windows, since_ns, key=lambda window: window.end_ns)
        last = bisect_right(windows, until_ns, key=lambda window: window.end_ns)
        return list(windows[first:last])

    def ledger(self) -> Ledger:
        return self.counter.sampler.ledger

    def read_every(self, seconds: float) -> None:
        self._reader.every_s = seconds

    def sample_every(self, seconds: float | None) -> None:
        for counter in self.device.counters:
            if seconds is None:
                counter.keep_pace()
            else:
                counter.sampler.poll_period_s = seconds


@asynccontextmanager
async def machine(config: ServerConfig, folder: Path) -> AsyncIterator[Machine]:
    """Raises ConfigError or MeterError. Readings and the board's state are written into the folder."""
    plan = make_plan(config)
    if len(plan.devices) > 1:
        names = ", ".join(str(device.device) for device in plan.devices)
        raise ConfigError(
            f"a meter is verified on one device, not on {names}: name one with --device, and --variants of it"
        )
    device = plan.devices[0]
    counter = verified(device)
    if not counter.tells_joules:
        raise ConfigError(f"there is nothing to verify: {device.chosen.notice}")
    task, path = asyncio.current_task(), folder / READINGS
    assert task is not None
    end = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
    reader = Reader(device.open_again(counter.part), create(path), end)
    try:
        async with AsyncExitStack() as undo:
            drain = functools.partial(device.run_log.drain, device.run_log.add_reader())
            undo.callback(reader.stop)
            kind, _, uuid = counter.meter.source.name.partition(":")
            board = BoardWatch(uuid if kind == "nvml" else "", lambda: create(folder / BOARD))
            undo.callback(board.stop)
            reader.start()
            board.start()
            since_ns = time.monotonic_ns()
            await asyncio.sleep(BEFORE_S)
            before = reader.readings.spell(since_ns, time.monotonic_ns())
            host, go_on = await start(config, plan, Observer(version("wattserve")), Quotas(), undo)
            await go_on()
            yield Machine(host, device, counter, reader, board, before, drain)
    finally:
        if reader.lost is not None:
            raise ConfigError(
                f"{path}: cannot be written ({reader.lost.strerror}); nothing is verified without it"
            ) from None


def verified(device: MeteredDevice) -> Counter:
    """The one that is held against the reader: the accelerator's, where the host has one besides."""
    return min(device.counters, key=lambda counter: counter.part != ACCELERATOR)


def _default_first(engine: Engine) -> tuple[str, ...]:
    names = [variant.name for variant in engine.roster.ready]
    return tuple(sorted(names, key=lambda name: name != engine.default_variant))


def _shapes(engine: Engine) -> tuple[Shape, ...]:
    """A small request, a middle one, and one that fills a batch: none of which another would join."""
    limits = next(iter(engine.limits.batch.values()))
    trials = plan_trials(engine.model.facts.max_tokens, limits.max_sequences, limits.max_tokens, None, 1.0)
    shapes = sorted(trials.shapes, key=lambda shape: shape[0] * shape[1])
    most = engine.limits.max_request
    shapes = [shape for shape in shapes if shape[0] <= most]
    return tuple(dict.fromkeys((shapes[0], shapes[len(shapes) // 2], shapes[-1])))
