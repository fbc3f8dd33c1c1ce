"""A variant's calibration, on a lane whose time is the test's: alone, beside traffic, and without an end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wattserve_server.energy.receipt import Window
from wattserve_server.energy.trials import TrialPlan
from wattserve_server.engine.calibrating import KNOWN_WITHIN_S, LONGER_BESIDE_S, SHARE_BESIDE, Calibration
from wattserve_server.engine.lane import Ran
from wattserve_server.errors import ConfigError

MS = 1_000_000
PLAN = TrialPlan(((1, 8), (4, 8), (4, 64)), trial_s=0.2, pause_s=0.25)


@dataclass
class World:
    """A device on which a batch takes a millisecond for each 16 tokens, and neighbours' batches 10 ms.

    The neighbours' clients send again as soon as they are answered, until `traffic_until_s`.
    """

    traffic_until_s: float = 0.0
    knows: bool = True
    launch_ns: int = 0  # of the host's time for a batch, in which the device has not begun it
    most_tokens: int = 1000  # that fit into the memory
    now_ns: int = 0
    mine: list[tuple[int, int, int]] = field(default_factory=list)  # start, sequences, tokens of each
    theirs: list[int] = field(default_factory=list)  # starts of the neighbours' batches
    waited_ns: list[int] = field(default_factory=list)  # of the neighbours' batches
    slept: list[float] = field(default_factory=list)
    _busy_ns: int = 0
    _asked_ns: int = 0  # when the neighbours' clients sent last

    def __post_init__(self) -> None:
        self.run_log = SimpleNamespace(busy_ns=lambda: self._busy_ns, finish=lambda window: None)
        self.laws = {
            "accelerator": SimpleNamespace(law=SimpleNamespace(laws={"fp32": 1} if self.knows else {}))
        }
        self.batcher = self
        example = lambda facts, tokenizer, length, seed: np.zeros(length)  # noqa: E731
        task = SimpleNamespace(example=example, length=len)
        model = SimpleNamespace(task=task, facts=None, tokenizer=None)
        self.variant: Any = SimpleNamespace(name="fp32", model=model)

    @property
    def is_wanted(self) -> bool:
        return len(self) > 0

    def __len__(self) -> int:
        """Who waits: a neighbour, once its last answer has come."""
        return int(self._has_traffic)

    @property
    def _has_traffic(self) -> bool:
        return self.now_ns < self.traffic_until_s * 1e9

    def now_s(self) -> float:
        return self.now_ns / 1e9

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until_ns = self.now_ns + round(seconds * 1e9)
        while self._has_traffic and self.now_ns < until_ns:
            self._neighbour()
        self.now_ns = max(self.now_ns, until_ns)

    async def do(self, chore: Callable[[], Any]) -> Any:
        """As the lane: a batch that waits goes first when the last turn was a chore's."""
        if self._has_traffic:
            self._neighbour()
        return chore()

    def run(self, variant: Any, items: list[Any], *, is_first_run: bool = False) -> Ran:
        assert not is_first_run
        lengths = tuple(len(item) for item in items)
        start_ns = self.now_ns
        self.mine.append((start_ns, len(lengths), sum(lengths)))
        self._pass(max(sum(lengths) // 16, 1) * MS)
        host_ns = start_ns, self.now_ns
        window = Window(
            "fp32", start_ns + self.launch_ns, self.now_ns, lengths, max(lengths), host_ns=host_ns
        )
        if sum(lengths) > self.most_tokens:
            return Ran(window, None, MemoryError("no more"))
        return Ran(window, np.zeros((len(items), 2), np.float32), None)

    def _neighbour(self) -> None:
        self.theirs.append(self.now_ns)
        self.waited_ns.append(self.now_ns - self._asked_ns)
        self._pass(10 * MS)
        self._asked_ns = self.now_ns

    def _pass(self, for_ns: int) -> None:
        self._busy_ns += for_ns
        self.now_ns += for_ns

    async def calibrate(self, plan: TrialPlan = PLAN) -> None:
        lane: Any = self
        await Calibration(lane, self.variant, plan, self.now_s, self.sleep).run()

    def ran_ms(self, count: int, tokens: int) -> int:
        """For how long a shape has run."""
        return sum(max(each // 16, 1) for _, number, each in self.mine if (number, each) == (count, tokens))


SHAPES = [(1, 8), (4, 32), (4, 256)]
"""Sequences and tokens of the plan's batches."""


async def test_alone_each_shape_runs_for_its_time_without_a_break_and_then_the_device_rests() -> None:
    world = World()
    await world.calibrate()
    assert list(dict.fromkeys(each[1:] for each in world.mine)) == SHAPES
    assert [world.ran_ms(*shape) for shape in SHAPES] == [200, 200, 208]
    assert world.slept == [PLAN.pause_s] * 3
    assert world.now_ns == (200 + 200 + 208 + 3 * 250) * MS


async def test_what_the_host_needs_for_a_batch_beside_the_gpu_is_not_taken_for_others() -> None:
    world = World(launch_ns=MS // 2)
    await world.calibrate()
    assert world.slept == [PLAN.pause_s] * 3


async def test_beside_traffic_a_waiting_request_waits_for_one_batch_at_most() -> None:
    world = World(traffic_until_s=60)
    await world.calibrate()
    assert [world.ran_ms(*shape) for shape in SHAPES] == [200, 200, 208]
    assert max(world.waited_ns) == 16 * MS  # the largest of the calibration's own


async def test_beside_traffic_it_takes_its_share_of_the_device_and_no_more() -> None:
    world = World(traffic_until_s=60)
    await world.calibrate()
    mine_ns = sum(world.ran_ms(*shape) for shape in SHAPES) * MS
    assert 0.25 * SHARE_BESIDE < mine_ns / world.now_ns <= SHARE_BESIDE


async def test_beside_traffic_the_shapes_take_turns() -> None:
    world = World(traffic_until_s=60)
    await world.calibrate()
    assert [each[1:] for each in world.mine[1:6]] == [*SHAPES, *SHAPES[:2]]  # after the first, alone


async def test_when_the_traffic_ends_it_goes_on_as_if_alone() -> None:
    world = World(traffic_until_s=0.5)
    await world.calibrate()
    assert [world.ran_ms(*shape) for shape in SHAPES] == [200, 200, 208]
    assert world.slept.count(PLAN.pause_s) == 3
    assert world.now_ns < 3_000 * MS


async def test_it_ends_in_time_whatever_the_traffic_does_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(traffic_until_s=1e6)
    plan = TrialPlan(PLAN.shapes, trial_s=5.0, pause_s=0.2)
    await world.calibrate(plan)
    assert LONGER_BESIDE_S < world.now_s() - plan.seconds < LONGER_BESIDE_S + 1
    assert "the calibration of fp32 was stopped after 46 s beside traffic" in caplog.text
    assert {each[1:] for each in world.mine} == set(SHAPES)  # each of them has run by then


async def test_a_shape_that_does_not_fit_into_the_memory_is_left_out() -> None:
    world = World(most_tokens=100)
    await world.calibrate()
    assert [world.ran_ms(*shape) for shape in SHAPES] == [200, 200, 16]


async def test_a_batch_that_fails_otherwise_is_told() -> None:
    world = World(most_tokens=7)  # not even one short sequence
    with pytest.raises(ConfigError, match=r"failed its warm-up on 1 x 8 tokens: MemoryError: no more"):
        await world.calibrate()


async def test_it_is_over_once_there_is_a_law(caplog: pytest.LogCaptureFixture) -> None:
    world = World(knows=False)
    answers = iter(range(10))
    look = world.sleep

    async def sleep(seconds: float) -> None:
        await look(seconds)
        if len(world.slept) > 3 and next(answers) == 9:
            world.laws["accelerator"].law.laws["fp32"] = 1

    world.sleep = sleep  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        await world.calibrate()
    assert len(world.slept) == 3 + 10
    assert "calibrated fp32 in 1.6 s" in caplog.text


async def test_a_meter_that_teaches_nothing_does_not_hold_it_up_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(knows=False)
    await world.calibrate()
    assert "the calibration of fp32 has taught nothing yet" in caplog.text
    assert sum(world.slept[3:]) == pytest.approx(KNOWN_WITHIN_S, abs=0.1)
