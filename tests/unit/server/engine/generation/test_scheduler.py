"""Who computes what in a step, without a model: places, turns, parts of prompts, and a bounded cache."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattserve_server.energy.receipt import Receipt, Role
from wattserve_server.engine.generation.cache import BLOCK, CachePool
from wattserve_server.engine.generation.members import Member, member_of
from wattserve_server.engine.generation.port import Wish
from wattserve_server.engine.generation.scheduler import Step, StepBatcher
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import Request
from wattserve_server.errors import WattserveError

NOBODY: Any = None


class World:
    """A queue, its caches, and what its steps do: `now_ns` is the time."""

    def __init__(self, members: int = 4, step_tokens: int = 16, blocks: int = 64) -> None:
        self.now_ns = 0
        self.left: list[tuple[Member, WattserveError | None]] = []
        self.pools: dict[str, CachePool] = {}
        self._blocks = blocks
        self.queue = StepBatcher(
            BatchLimits(members, step_tokens), 100, NOBODY, float("inf"), self._pool,
            lambda member, error: self.left.append((member, error)),
        )  # fmt: skip
        self.answered: list[Member] = []

    def _pool(self, member: Member) -> CachePool:
        pool = self.pools.setdefault(member.request.variant, CachePool(self._blocks * BLOCK, 10_000))
        pool.token_bytes = 1
        return pool

    def ask(
        self,
        prompt: int,
        new: int,
        variant: str = "fp32",
        caller: str = "a",
        deadline_ns: int | None = None,
    ) -> Member:
        receipt = Receipt("r", "", variant, "cpu", 0)
        answer = cast("asyncio.Future[Any]", SimpleNamespace())
        request = Request(receipt, NOBODY, NOBODY, self.now_ns, deadline_ns, answer, caller=caller)
        member = member_of(request, np.arange(prompt), prompt + new)
        member.wish, member.longest = Wish(new), prompt + new
        self.queue.put(request, self.now_ns)
        return member

    def step(self) -> Step | None:
        """The next one, which takes a millisecond."""
        step = self.queue.plan(self.now_ns)
        self.now_ns += 1_000_000
        if step is None:
            return None
        for pool in self.pools.values():
            assert pool.used_bytes <= pool.limit_bytes
        for member, tokens, _ in step.parts:
            assert member.cache is not None
            assert member.cache.length + tokens <= member.cache.capacity
            assert not member.reason
            member.work(tokens)
            member.take(np.zeros((1, 8), np.float32), tokens)
            if member.reason is not None:
                self.queue.forget(member)
                self.answered.append(member)
        return step

    def run(self) -> list[Step]:
        steps = []
        while (step := self.step()) is not None:
            steps.append(step)
            assert len(steps) < 10_000
        return steps


@given(
    jobs=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=12),
    members=st.integers(1, 5),
    step_tokens=st.integers(1, 40),
    blocks=st.integers(3, 9),
    leaves=st.lists(st.booleans(), min_size=12, max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_whoever_stays_is_answered_within_what_a_step_and_the_cache_hold(
    jobs: list[tuple[int, int]], members: int, step_tokens: int, blocks: int, leaves: list[bool]
) -> None:
    world = World(members, step_tokens, blocks)
    asked = [
        world.ask(prompt, new, variant="fp32" if index % 3 else "bf16", caller=str(index % 2))
        for index, (prompt, new) in enumerate(jobs)
    ]
    count = 0
    while (step := world.step()) is not None:
        count += 1
        assert len(step.parts) <= members
        assert len({part.member.request.variant for part in step.parts}) == 1
        assert sum(part.tokens for part in step.parts) <= max(step_tokens, len(step.parts))
        if count == 3:
            for member, is_leaving in zip(asked, leaves, strict=False):
                if is_leaving and world.queue.withdraw(member.request) == 0:
                    world.queue.leave(member)
        assert count < 5000
    for member, is_leaving in zip(asked, leaves, strict=False):
        if member in world.answered:
            assert len(member.produced) == member.wish.max_new_tokens  # type: ignore[union-attr]
            tokens = {line.role: line.tokens for line in member.request.receipt.lines}
            assert tokens.get(Role.OUTPUT, 0) == len(member.produced) - 1
        else:
            assert is_leaving
    assert all(pool.used_bytes == 0 for pool in world.pools.values())
    assert not world.queue.is_wanted


def test_prompts_are_read_in_parts_and_keep_nobody_from_decoding() -> None:
    world = World(members=4, step_tokens=16)
    first = world.ask(8, 40)
    world.step()
    late = world.ask(100, 5)
    steps = [world.step() for _ in range(6)]
    for step in steps:
        assert step is not None
        assert {part.member: part.tokens for part in step.parts} == {first: 1, late: 15}
    assert len(first.produced) == 7


def test_variants_take_turns() -> None:
    world = World()
    for variant in ("fp32", "bf16", "int8"):
        world.ask(4, 6, variant)
    turns = [step.variant for step in world.run()]
    assert sorted(turns[:3]) == ["bf16", "fp32", "int8"]
    assert turns[3:6] == turns[:3]


def test_callers_are_admitted_by_turns() -> None:
    world = World(members=1)
    flood = [world.ask(8, 8, caller="flood") for _ in range(5)]
    other = world.ask(8, 8, caller="other")
    world.run()
    assert world.answered.index(other) <= 1
    assert set(world.answered) == {*flood, other}


def test_who_was_admitted_last_loses_its_place_and_comes_back_before_those_who_wait() -> None:
    world = World(members=3, step_tokens=64, blocks=2)
    early, late = world.ask(BLOCK - 2, 10), world.ask(BLOCK - 2, 10)
    waits = world.ask(4, 4)
    world.run()
    assert (early.preemptions, late.preemptions > 0, waits.preemptions) == (0, True, 0)
    assert world.answered == [early, late, waits]
    assert world.queue.preemptions == late.preemptions


@pytest.mark.parametrize("is_leaving", [True, False])
def test_who_leaves_or_has_no_time_left_is_let_go_before_the_next_step(is_leaving: bool) -> None:
    world = World()
    member = world.ask(4, 50, deadline_ns=None if is_leaving else 5_500_000)
    for _ in range(5):
        world.step()
    if is_leaving:
        world.queue.leave(member)
    world.now_ns = max(world.now_ns, 6_000_000)
    assert world.step() is None
    ((left, error),) = world.left
    assert left is member
    assert (error is None) == is_leaving
    assert is_leaving or "after 5 of its tokens" in str(error)
    assert world.pools["fp32"].used_bytes == 0
