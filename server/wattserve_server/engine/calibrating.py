"""A variant's calibration on its lane: batches that nobody asked for, to learn from the meter what they cost.

Alone on the device, each shape runs for as long as the sensor needs, and then the device rests. Beside
traffic the shapes take turns, a batch is a chore of its own, and pauses leave most of the device to those
who asked.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from wattserve_server.energy.receipt import Window
from wattserve_server.energy.trials import TrialPlan
from wattserve_server.engine.generation.lane import StepLane
from wattserve_server.engine.generation.unasked import UnaskedStep
from wattserve_server.engine.lane import Lane
from wattserve_server.engine.out_of_memory import memory_shortage
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.warmup import examples, run_unasked
from wattserve_server.errors import ConfigError

log = logging.getLogger(__name__)

# Of the device's time, at the most, while others use it; and how much longer than alone it may take then.
SHARE_BESIDE, LONGER_BESIDE_S = 0.2, 30.0

# There is a law once the meter has covered what ran: looked for so often, and for so long at the most.
LOOK_S, KNOWN_WITHIN_S = 0.02, 10.0


@dataclass(slots=True)
class _Trial:
    words: str
    count: int
    run: Callable[[], Window]  # on the lane's thread
    left_ns: int  # for which it has still to run


class Calibration:
    """now_s, sleep: whose time it is, in seconds."""

    def __init__(
        self,
        lane: Lane,
        variant: Variant,
        plan: TrialPlan,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._lane = lane
        self._variant = variant
        self._plan = plan
        self._now_s = now_s
        self._sleep = sleep
        self._trials: deque[_Trial] = deque()  # those that have still to run
        self._others_ns = lane.run_log.busy_ns()  # for which others have used the device, as of the last look
        self._mine_ns = 0

    async def run(self) -> None:
        """Until every shape has had its time, or there is no more time, and the law is known. Raises
        ConfigError when a batch fails, except for one that is too large for the memory."""
        name, begun_s = self._variant.name, self._now_s()
        is_beside = False
        self._trials.extend(await asyncio.to_thread(self._make_trials))
        while self._trials:
            if self._now_s() - begun_s > self._plan.seconds + LONGER_BESIDE_S:
                left = ", ".join(trial.words for trial in self._trials)
                log.warning(
                    "the calibration of %s was stopped after %.0f s beside traffic, before %s had run for "
                    "%.2g s each: requests will teach its law the rest",
                    name, self._now_s() - begun_s, left, self._plan.trial_s,
                )  # fmt: skip
                break
            trial = self._trials.popleft()
            last_ns = await self._try(trial, is_beside)
            if trial.left_ns > 0:
                self._trials.insert(len(self._trials) if is_beside else 0, trial)
            is_beside = self._others_use_it()
            if is_beside:
                await self._sleep(last_ns / 1e9 * (1 / SHARE_BESIDE - 1))
            elif trial.left_ns <= 0:
                await self._sleep(self._plan.pause_s)
        if await self._is_known():
            log.info("calibrated %s in %.1f s", name, self._now_s() - begun_s)
        else:
            log.warning("the calibration of %s has taught nothing yet: does the meter answer?", name)

    def _make_trials(self) -> list[_Trial]:
        trial_ns = round(self._plan.trial_s * 1e9)
        lane, variant = self._lane, self._variant
        if isinstance(lane, StepLane):
            return [
                _Trial(str(shape), shape.sequences, UnaskedStep(lane, variant, shape).run, trial_ns)
                for shape in self._plan.steps
            ]
        runs = [
            (count, length, functools.partial(run_unasked, lane, variant, examples(variant, count, length)))
            for count, length in self._plan.shapes
        ]
        return [_Trial(f"{count} x {length} tokens", count, run, trial_ns) for count, length, run in runs]

    async def _try(self, trial: _Trial, is_beside: bool) -> int:
        """Let it run once, or for as long as nobody waits; nanoseconds that its last batch took."""
        for_ns = 0 if is_beside else trial.left_ns
        try:
            ran_ns, last_ns = await self._lane.do(functools.partial(self._run_for, trial.run, for_ns))
        except ConfigError as error:
            if trial.count == 1 or not memory_shortage(error):
                raise
            trial.left_ns = 0  # the warm-up has found out too, and said so
            return 0
        trial.left_ns -= ran_ns
        return last_ns

    def _run_for(self, run: Callable[[], Window], for_ns: int) -> tuple[int, int]:
        """On the lane's thread: batches for so long, or until somebody waits; at least one. Nanoseconds that
        all of them took, and the last one."""
        ran_ns = 0
        while True:
            last_ns = run().held_ns
            self._mine_ns += last_ns
            ran_ns += last_ns
            if ran_ns >= for_ns or self._lane.batcher.is_wanted:
                return ran_ns, last_ns

    def _others_use_it(self) -> bool:
        """Whether somebody waits, or has run since the last look."""
        before_ns, self._others_ns = self._others_ns, self._lane.run_log.busy_ns() - self._mine_ns
        return self._others_ns > before_ns or self._lane.batcher.is_wanted

    async def _is_known(self) -> bool:
        """Whether there is a law, once there is or it is late."""
        until_s = self._now_s() + KNOWN_WITHIN_S
        while not all(self._variant.name in each.law.laws for each in self._lane.laws.values()):
            if self._now_s() > until_s:
                return False
            await self._sleep(LOOK_S)
        return True
