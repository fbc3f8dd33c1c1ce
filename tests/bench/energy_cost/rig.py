"""The shipped energy path around an imagined device, on a virtual clock: only the path's CPU time is real."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from wattserve_server.energy.costlaw import provisional_uj
from wattserve_server.energy.device import Response
from wattserve_server.energy.probe import SensorProbe, poll_period_s
from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt, Window
from wattserve_server.energy.trials import plan_trials
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.lane import RunLog
from wattserve_server.meters.sampler import DITHER, Sampler
from wattserve_server.service.inference import receipt_message
from wattserve_server.telemetry.observer import Observer

NS = 1_000_000_000
RETENTION_S, RETENTION_COUNT = 600.0, 100_000
CALIBRATION_S = 4.0
"""The server's defaults: retention of receipts, and calibration per variant."""

PARTS = ("receipt", "run log", "provisional", "reply", "tick", "charge")
"""Of the path, as a request meets them: its receipt is opened and ended; its batch's window is made and
logged; what it is told at once; that as a message; reading, accountant and charges; what book and metrics do
with these."""

VARIANTS = {"fp32": 1.0, "bf16": 0.8, "int8": 0.7}
"""Names, and how long a batch takes relative to the first."""

IDLE_W, BUSY_W, NOISE = 40.0, 150.0, 0.04
FIXED_S, TOKENS_PER_S = 0.0006, 120e3
MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Sensor:
    """period_s: of the counter's steps, None for a continuous one. idle_w: declared; None: to be learned."""

    name: str
    period_s: float | None
    response: Response
    idle_w: float | None

    @property
    def poll_s(self) -> float:
        """How often the server would read it, once it has probed it."""
        stepped = self.period_s is not None
        probe = SensorProbe(1.0, 64, stepped, update_period_s=self.period_s, read_cost_p50_s=1e-5)
        return poll_period_s(probe, usual_s=0.02)


SENSORS = (
    Sensor("100 ms steps", 0.1, Response(0.02, 0.025), None),
    Sensor("20 ms steps", 0.02, Response(0.01, 0.025), None),
    Sensor("continuous", None, Response(), IDLE_W),
)


@dataclass(frozen=True, slots=True)
class Load:
    """Batches of `requests` requests of one sequence each, one every `every_s` seconds."""

    requests: int
    every_s: float


class Device:
    """Runs one batch at a time; its counter, behind the meter port, shows what `show` has set."""

    source = Source("virtual", "apportioned simulation", Quality.SIMULATED)
    wraps_at: Energy | None = None
    most_watts: float | None = None

    def __init__(self, sensor: Sensor) -> None:
        self._sensor = sensor
        self._rng = np.random.default_rng(1)
        self._batches: deque[tuple[float, float, float]] = deque()  # start, end, joules: not counted in full
        self._counted_j = self._free_s = 0.0
        self.idle_watts = sensor.idle_w
        self.poll_period_s = sensor.poll_s
        self._reading = Reading(1, Energy(0))

    def run(self, variant: str, lengths: tuple[int, ...], due_s: float) -> Window:
        """The next batch, as soon as the device is free; without lines."""
        start_s = max(due_s, self._free_s + 5e-5)
        tokens = len(lengths) * max(lengths)
        seconds = (FIXED_S + tokens / TOKENS_PER_S) * VARIANTS[variant] * self._rng.uniform(1, 1.02)
        watts = BUSY_W * (0.4 + 0.6 * tokens / (tokens + 300)) * self._rng.normal(1, NOISE)
        rested_s, self._free_s = start_s - self._free_s, start_s + seconds
        self._batches.append((start_s, self._free_s, watts * seconds))
        return Window(
            variant, _ns(start_s), _ns(self._free_s), lengths, max(lengths), rested_ns=round(rested_s * NS)
        )

    def show(self, now_s: float) -> None:
        """Instants must not decrease."""
        period_s, response = self._sensor.period_s, self._sensor.response
        at_s = now_s - now_s % period_s if period_s else now_s
        while self._batches and self._batches[0][1] + response.lag_s + 30 * response.ramp_s < at_s:
            self._counted_j += self._batches.popleft()[2]
        starts, ends, joules = np.array(self._batches).reshape(-1, 3).T
        shown_j = self._counted_j + float(response.counted(at_s, starts, ends) @ joules) + IDLE_W * at_s
        uj = 1000 * int(1e3 * shown_j) if period_s else int(1e6 * shown_j)
        self._reading = Reading(_ns(now_s), Energy(uj))

    def read(self) -> Reading:
        return self._reading

    def neighbours(self) -> int | None:
        return 0

    def others_at_work(self) -> float | None:
        return None

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Block:
    """Requests of a while, and CPU nanoseconds by part. longest_tick_ns: while other Python waits."""

    requests: int = 0
    ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    longest_tick_ns: int = 0


class Rig:
    def __init__(self, sensor: Sensor) -> None:
        self._sensor = sensor
        self._rng = np.random.default_rng(2)
        lengths = self._rng.lognormal(math.log(24), 0.4, 4096)
        self._lengths = deque(np.clip(lengths, 8, MAX_TOKENS).astype(int).tolist())
        self._device = Device(sensor)
        self._running: Window | None = None
        self._now_s = 0.0
        self._known_until_ns = 0
        self._log = RunLog()
        self._charges: list[Charge] = []
        observer = Observer("bench")
        self.book = ReceiptBook(RETENTION_S, RETENTION_COUNT, observer.receipt_final, lambda: self._now_s)
        self.sampler = Sampler(
            self._device,
            lambda: (self._log.drain()[0], self._known_until_ns),
            self._charges.extend,
            clock_ns=lambda: self._now_ns,
        )
        self._sources = {ACCELERATOR: Source("virtual", "apportioned simulation", Quality.SIMULATED)}
        self._clock_ns = int(median(-time.thread_time_ns() + time.thread_time_ns() for _ in range(2000)))
        self._mark_ns = 0

    @property
    def _now_ns(self) -> int:
        return _ns(self._now_s)

    def start(self) -> None:
        """Idle, the calibration of every variant as the server does it, idle."""
        self.rest(2.0)
        plan = plan_trials(MAX_TOKENS, 32, 32768, self._sensor.period_s, CALIBRATION_S)
        for name in VARIANTS:
            for count, length in plan.shapes:
                self._play(self._trial(name, (length,) * count), plan.trial_s)
                self.rest(plan.pause_s)
        self.rest(2.0)

    def serve(self, load: Load, seconds: float) -> Block:
        """A steady load, for so long on the virtual clock."""
        return self._play(self._steady(load), seconds, is_served=True)

    def rest(self, seconds: float) -> Block:
        return self._play(iter(()), seconds)

    def _trial(self, variant: str, lengths: tuple[int, ...]) -> Iterator[Window]:
        while True:
            yield self._device.run(variant, lengths, self._now_s)

    def _steady(self, load: Load) -> Iterator[Window]:
        due_s = self._now_s
        while True:
            for variant in VARIANTS:
                lengths = tuple(self._lengths[index] for index in range(load.requests))
                self._lengths.rotate(-load.requests)
                yield self._device.run(variant, lengths, due_s)
                due_s += load.every_s

    def _play(self, batches: Iterator[Window], seconds: float, is_served: bool = False) -> Block:
        """Poll by poll. The batch that runs at the end is handed over in what is played next."""
        block = Block()
        end_s = self._now_s + seconds
        while self._now_s < end_s:
            self._now_s += self._sensor.poll_s * self._rng.uniform(*DITHER)
            self._running = self._running or next(batches, None)
            ended: list[Window] = []
            while self._running is not None and self._running.end_ns <= self._now_ns:
                ended.append(self._running)
                self._running = next(batches, None)
            now_ns = self._now_ns
            self._known_until_ns = min(self._running.start_ns, now_ns) if self._running else now_ns
            self._device.show(self._now_s)
            self._poll(ended, block, is_served)
        return block

    def _poll(self, ended: Sequence[Window], block: Block, is_served: bool) -> None:
        """All that is done for the batches of one poll, part after part. Those not served are a warm-up's."""
        self._mark_ns = time.thread_time_ns()
        opened = [self._open(batch) if is_served else [] for batch in ended]
        receipts = [receipt for group in opened for receipt in group]
        block.ns["receipt"] += self._lap_ns()
        windows: list[Window] = []
        for batch, group in zip(ended, opened, strict=True):
            self._log.start()
            lines = tuple(receipt.lines[0] for receipt in group)
            window = Window(
                batch.variant, batch.start_ns, batch.end_ns, batch.lengths, batch.padded_length, lines,
                rested_ns=batch.rested_ns,
            )  # fmt: skip
            windows.append(window)
            self._log.finish(window)
        block.ns["run log"] += self._lap_ns()
        for window in windows:
            for line, cost in zip(window.lines, provisional_uj(self.sampler.law, window), strict=False):
                line.ran(window.padded_length, window.duration_ns, (cost,))
        block.ns["provisional"] += self._lap_ns()
        for receipt in receipts:
            receipt.end(Outcome.COMPLETED)
            self.book.ended(receipt)
        block.ns["receipt"] += self._lap_ns()
        for receipt in receipts:
            receipt_message(receipt, self._sources)
        block.ns["reply"] += self._lap_ns()
        self.sampler.tick()
        tick_ns = self._lap_ns()
        block.ns["tick"] += tick_ns
        self.book.settle("cpu", ACCELERATOR, self._charges, 0)
        self._charges.clear()
        block.ns["charge"] += self._lap_ns()
        block.requests += len(receipts)
        block.longest_tick_ns = max(block.longest_tick_ns, tick_ns)

    def _lap_ns(self) -> int:
        """CPU time of this thread since the last call, but for reading the clock."""
        now_ns, mark_ns = time.thread_time_ns(), self._mark_ns
        self._mark_ns = time.thread_time_ns()
        return max(now_ns - mark_ns - self._clock_ns, 0)

    def _open(self, batch: Window) -> list[Receipt]:
        receipts: list[Receipt] = []
        for length in batch.lengths:
            receipt = self.book.open("", batch.variant, "cuda:0")
            receipt.lines.append(Line(receipt, length, batch_size=len(batch.lengths), windows=1))
            receipts.append(receipt)
        return receipts


def _ns(at_s: float) -> int:
    return NS + round(at_s * NS)
