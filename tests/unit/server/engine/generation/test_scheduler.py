"""Who computes what in a step, without a model: places, turns, parts of prompts, and a bounded cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.step_world import StepWorld
from wattserve_server.energy.receipt import Role
from wattserve_server.engine.generation.cache import BLOCK
from wattserve_server.engine.generation.members import Member, member_of
from wattserve_server.engine.generation.places import STAYS_KEPT_NS
from wattserve_server.engine.generation.port import Wish
from wattserve_server.errors import WattserveError


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
    world = StepWorld(members, step_tokens, blocks)
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
            assert tokens[Role.PROMPT] == len(member.prompt)  # each token once, whatever was read again
            assert sum(line.chosen for line in member.request.receipt.lines) == len(member.produced)
        else:
            assert is_leaving
    assert all(pool.used_bytes == 0 for pool in world.pools.values())
    assert not world.queue.is_wanted


def test_nobody_waits_for_a_place_that_is_free() -> None:
    world = StepWorld(members=4, step_tokens=64)

    def wait_ns() -> float:
        return world.queue.wait_ns(world.now_ns)

    world.ask(8, 2)
    world.run()  # so that it is known how long a step takes
    for _ in range(4):
        assert wait_ns() == 0
        world.ask(8, 3)
    assert wait_ns() == 3_000_000  # once they have had theirs
    world.step()  # which admits them
    assert wait_ns() == 2_000_000
    for _ in range(4):
        world.ask(8, 3)
    assert wait_ns() == 5_000_000
    world.run()
    world.ask(8, 100)
    world.step()
    assert wait_ns() == pytest.approx(1_000_000)  # the step that runs


def test_a_place_for_which_the_cache_has_no_room_is_not_free() -> None:
    world = StepWorld(members=8, step_tokens=64, blocks=4)
    world.ask(8, 2)
    world.run()
    for _ in range(3):
        world.ask(BLOCK, 2)  # two blocks each
    assert world.queue.wait_ns(world.now_ns) == 0
    world.step()
    assert world.queue.members == 2
    assert world.queue.wait_ns(world.now_ns) == 2_000_000
    world.ask(BLOCK, 2)
    assert world.queue.wait_ns(world.now_ns) == 3_000_000


def test_who_waits_for_the_cache_of_a_variant_keeps_nobody_of_another_one_waiting() -> None:
    world = StepWorld(members=8, step_tokens=64, blocks=4)
    fills = [world.ask(8, 60, "fp32") for _ in range(7)]
    for _ in range(3):
        world.step()
    assert world.queue.members == 4
    other = world.ask(8, 4, "bf16")
    for _ in range(10):
        world.step()
    assert other in world.answered
    world.run()
    assert set(world.answered) == {other, *fills}


def test_who_has_lost_a_place_in_one_cache_keeps_nobody_of_another_variant_waiting() -> None:
    world = StepWorld(members=8, step_tokens=64, blocks=2)
    world.ask(BLOCK - 2, 30, "fp32")
    lost = world.ask(BLOCK - 2, 30, "fp32")
    while not lost.preemptions:
        world.step()
    other = world.ask(8, 4, "bf16")
    for _ in range(10):
        world.step()
    assert other in world.answered
    assert lost not in world.answered


def test_the_last_places_are_for_callers_who_hold_few_while_several_come() -> None:
    world = StepWorld(members=16, step_tokens=64)
    for _ in range(40):
        world.ask(8, 20, caller="flood")
    world.step()
    assert world.queue.members == 16  # nobody else has come
    assert world.ask(8, 1, caller="other") not in world.answered
    for _ in range(23):
        world.step()
    assert world.queue.members == 13  # one had to be given
    world.now_ns += STAYS_KEPT_NS
    world.step()
    assert world.queue.members == 14
    for caller in ("other", "other", "another"):
        world.ask(8, 40, caller=caller)
    world.step()
    assert world.queue.members == 16
    for caller in ("other", "third"):  # the first one holds two, which is its part
        world.ask(8, 4, caller=caller)
    for _ in range(20):
        world.step()
    assert "third" in {member.request.caller for member in world.answered}
    world.run()
    world.now_ns += 10_000_000_000
    for _ in range(40):
        world.ask(8, 20, caller="flood")
    world.step()
    world.now_ns += 10_000_000_000
    world.step()
    world.step()
    assert world.queue.members == 16


def test_who_only_came_before_leaves_a_new_connection_all_places() -> None:
    world = StepWorld(members=16, step_tokens=128)
    for caller in ("a sweep's first connection", "its second"):
        for _ in range(40):
            world.ask(8, 20, caller=caller)
        world.step()
        assert world.queue.members == 16
        world.run()


def test_prompts_are_read_in_parts_and_keep_nobody_from_decoding() -> None:
    world = StepWorld(members=4, step_tokens=16)
    first = world.ask(8, 40)
    world.step()
    late = world.ask(100, 5)
    steps = [world.step() for _ in range(6)]
    for step in steps:
        assert step is not None
        assert {part.member: part.tokens for part in step.parts} == {first: 1, late: 15}
    assert len(first.produced) == 7


def test_a_short_prompt_waits_for_no_more_than_a_step_of_anothers_long_ones() -> None:
    world = StepWorld(members=8, step_tokens=16)
    long = [world.ask(200, 2, caller="long") for _ in range(4)]
    world.step()
    short = world.ask(4, 1, caller="short")
    step = world.step()
    assert step is not None
    assert {part.member: part.tokens for part in step.parts} == {short: 4, long[0]: 12}
    world.run()
    assert world.answered == [short, *long]


def test_a_long_prompt_waits_for_as_much_of_anothers_as_it_has_itself() -> None:
    world = StepWorld(members=4, step_tokens=16)
    long, others = world.ask(320, 1, caller="long"), 0
    while long not in world.answered:
        world.ask(16, 1, caller="short")  # without end
        step = world.step()
        assert step is not None
        others += sum(part.tokens for part in step.parts if part.member is not long)
    assert 300 <= others <= 352


def test_prompts_of_one_length_are_read_one_after_the_other() -> None:
    world = StepWorld(members=8, step_tokens=16)
    asked = [world.ask(40, 1, caller=str(caller)) for caller in range(4)]
    world.run()
    assert world.answered == asked


def test_variants_take_turns() -> None:
    world = StepWorld()
    for variant in ("fp32", "bf16", "int8"):
        world.ask(4, 6, variant)
    turns = [step.variant for step in world.run()]
    assert sorted(turns[:3]) == ["bf16", "fp32", "int8"]
    assert turns[3:6] == turns[:3]


def test_callers_are_admitted_by_turns() -> None:
    world = StepWorld(members=1)
    flood = [world.ask(8, 8, caller="flood") for _ in range(5)]
    other = world.ask(8, 8, caller="other")
    world.run()
    assert world.answered.index(other) <= 1
    assert set(world.answered) == {*flood, other}


def test_who_was_admitted_last_loses_its_place_and_comes_back_before_those_who_wait() -> None:
    world = StepWorld(members=3, step_tokens=64, blocks=2)
    early, late = world.ask(BLOCK - 2, 10), world.ask(BLOCK - 2, 10)
    waits = world.ask(4, 4)
    world.run()
    assert (early.preemptions, late.preemptions > 0, waits.preemptions) == (0, True, 0)
    assert world.answered == [early, late, waits]
    assert world.queue.preemptions == late.preemptions


@pytest.mark.parametrize("is_leaving", [True, False])
def test_who_leaves_or_has_no_time_left_is_let_go_before_the_next_step(is_leaving: bool) -> None:
    world = StepWorld()
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


def test_a_deadline_centuries_away_ends_no_lane() -> None:
    """Longer than Python waits: it stays the first to leave after its request has been answered."""
    world = StepWorld()
    world.ask(4, 1, deadline_ns=10**20)
    world.run()
    with ThreadPoolExecutor(1) as lane:
        waiting = lane.submit(world.queue.next_work)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        world.queue.close()
        assert waiting.result(30) is None


def both(members: int = 8, blocks: int = 64) -> list[StepWorld]:
    """Two lanes that draw from one queue, which the first one is asked."""
    first = StepWorld(members, blocks=blocks)
    return [first, StepWorld(members, blocks=blocks, beside=first)]


def devices_of(members: list[Member]) -> list[str]:
    return sorted(member.request.receipt.device for member in members)


@pytest.mark.parametrize("count", [2, 5, 8])
def test_two_lanes_share_what_comes_together(count: int) -> None:
    """Whoever wakes first takes no more than its part, and each member stays where it began."""
    worlds = both()
    worlds[0].now_ns = worlds[1].now_ns = 1_000_000
    asked = [worlds[0].ask(4, 30, is_bound=False) for _ in range(count)]
    for _ in range(count):
        for world in worlds:
            assert world.step() is not None
    on_each = [devices_of(asked).count(device) for device in ("cpu:0", "cpu:1")]
    assert sum(on_each) == count
    assert abs(on_each[0] - on_each[1]) <= 1
    for world, device in zip(worlds, ("cpu:0", "cpu:1"), strict=True):
        world.run()
        assert devices_of(world.answered) == [device] * len(world.answered)
    assert {member for world in worlds for member in world.answered} == set(asked)


def test_a_lane_that_takes_nothing_keeps_nobody_waiting() -> None:
    """One a step, each of which waits no longer than it takes."""
    working, _ = both(members=4)
    asked = [working.ask(4, 30, is_bound=False) for _ in range(4)]
    for _ in range(4):
        working.step()
    assert devices_of(asked) == ["cpu:0"] * 4


def test_a_lane_without_room_leaves_who_waits_to_the_other() -> None:
    worlds = both(blocks=2)
    long, short = (worlds[0].ask(BLOCK + 1, 4, is_bound=False) for _ in range(2))
    worlds[0].step()
    assert (long.request.receipt.device, short.cache) == ("cpu:0", None)
    worlds[1].step()
    assert short.request.receipt.device == "cpu:1"
    assert [world.pools["fp32"].used_bytes for world in worlds] == [2 * BLOCK] * 2


def test_the_prompts_of_one_request_stay_on_one_lane() -> None:
    worlds = both()
    request = worlds[0].ask(4, 6, is_bound=False).request
    worlds[0].queue.withdraw(request)
    member_of(request, np.arange(4), 10).wish = Wish(6)
    worlds[0].queue.put(request, worlds[0].now_ns)
    assert worlds[1].step() is not None
    assert worlds[0].step() is None
    assert request.receipt.device == "cpu:1"


def test_members_of_a_lane_that_is_lost_leave_and_their_room_is_free() -> None:
    worlds = both(members=2)
    asked = [worlds[0].ask(4, 30, is_bound=False) for _ in range(6)]
    for _ in range(3):
        for world in worlds:
            world.step()
    lost, kept = worlds
    stepping, other = (member for member in asked if member.request.receipt.device == "cpu:0")
    error = WattserveError("lost")
    assert lost.queue.give_up() == {}
    lost.queue.lose_all(error, [stepping])
    assert lost.left == [(other, error)]
    assert lost.pools["fp32"].used_bytes == 0
    kept.run()
    assert set(kept.answered) == set(asked) - {stepping, other}
