"""How long generations hold their places, and who is let in for it; in a time of the test's own."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import pytest

from tests.fixtures.step_world import StepWorld
from wattserve_server.engine.generation.cache import BLOCK
from wattserve_server.engine.generation.members import Member
from wattserve_server.errors import ExpiredError, OverloadedError

MS = 1_000_000


def refused(
    world: StepWorld, deadline_ns: int | None, prompt: int = 8, new: int = 16
) -> OverloadedError | None:
    try:
        world.ask(prompt, new, caller="late", deadline_ns=deadline_ns)
    except OverloadedError as error:
        return error
    return None


def test_a_deadline_before_a_place_is_free_is_refused_though_nobody_waits() -> None:
    world = StepWorld(members=2, step_tokens=64)
    for _ in range(2):
        world.ask(8, 200)
    for _ in range(20):
        world.step()
    error = refused(world, world.now_ns + 100 * MS)
    assert error is not None
    assert error.limit == "deadline"
    assert "what goes before it, or is likely to, will take 0.18 s" in str(error)
    assert refused(world, world.now_ns + 300 * MS) is None


def test_no_more_than_may_wait_is_waited_for_a_place_that_is_held_for_longer() -> None:
    world = StepWorld(members=2, step_tokens=64, most_wait_ns=100 * MS)
    for _ in range(2):
        world.ask(8, 200)
    for _ in range(20):
        world.step()
    error = refused(world, None)
    assert error is not None
    assert error.limit == "time"
    assert error.retry_after_s == pytest.approx(0.08, rel=0.1)
    late = refused(world, world.now_ns + 30 * MS)  # its deadline lies nearer than that
    assert late is not None
    assert late.retry_after_s is not None
    assert late.retry_after_s == pytest.approx(0.181 + 0.016 - 0.030 / 1.25, rel=0.05)
    for _ in range(90):
        world.step()
    assert refused(world, None) is None


def test_a_deadline_that_is_shorter_than_the_answer_is_refused_unless_nobody_else_is_there() -> None:
    world = StepWorld(members=8, step_tokens=64)
    world.ask(8, 100)
    world.run()
    assert refused(world, world.now_ns + 10 * MS) is None  # the pace may be wrong
    world.step()
    error = refused(world, world.now_ns + 10 * MS)
    assert error is not None
    assert error.limit == "deadline"
    assert "it itself 0.016 s" in str(error)
    assert refused(world, world.now_ns + 10 * MS, new=4) is None


def test_who_has_nothing_else_is_let_in_whatever_others_answers_are_like() -> None:
    """Refused callers teach nothing: what is wrongly believed of their answers would last."""
    world = StepWorld(members=8, step_tokens=64)
    for _ in range(3):
        world.ask(8, 100, caller="long", may_end=True)
    world.run()
    world.ask(8, 400, caller="long")
    world.step()
    deadline_ns = world.now_ns + 20 * MS
    first = world.ask(8, 300, caller="short", deadline_ns=deadline_ns, may_end=True)
    assert not world.queue.have_room([first.request], world.now_ns)  # so each is looked at by itself
    with pytest.raises(OverloadedError, match="deadline cannot be met"):  # one is enough to show
        world.ask(8, 300, caller="short", deadline_ns=deadline_ns, may_end=True)
    with pytest.raises(OverloadedError, match="deadline cannot be met"):  # which cannot end earlier
        world.ask(8, 300, caller="another", deadline_ns=deadline_ns)


def test_who_waits_for_the_place_that_it_lost_has_something() -> None:
    world = StepWorld(members=8, step_tokens=64, blocks=2)
    world.ask(BLOCK - 2, 10, caller="long")
    lost = world.ask(BLOCK - 2, 10, caller="short", may_end=True)
    while not lost.preemptions:
        world.step()
    with pytest.raises(OverloadedError, match="deadline cannot be met"):
        world.ask(8, 300, caller="short", deadline_ns=world.now_ns + 20 * MS, may_end=True)


def test_what_is_refused_is_let_in_when_it_was_told_to_come_again() -> None:
    world = StepWorld(members=4, step_tokens=64)
    told: list[tuple[int, float]] = []
    for _ in range(40):
        world.ask(8, 16)
        if len(told) < 1:
            world.step()
        error = refused(world, world.now_ns + 60 * MS)
        if error is not None and error.retry_after_s is not None:
            told.append((world.now_ns, error.retry_after_s))
    refused_ns, after_s = told[-1]
    while refused(world, world.now_ns + 60 * MS) is not None:
        world.step()
    assert (world.now_ns - refused_ns) / 1e9 == pytest.approx(after_s, rel=0.5)


@pytest.mark.parametrize("outstanding", [16, 32, 60])  # of 32 places
def test_another_callers_long_prompts_refuse_nobody_who_does_not_wait_for_them(outstanding: int) -> None:
    world = StepWorld(members=32, step_tokens=128, blocks=2000, most_wait_ns=350 * MS)
    flood: list[Member] = []
    victims: list[Member] = []
    for step in range(600):
        flood = [member for member in flood if member not in world.answered]
        with contextlib.suppress(OverloadedError):
            while len(flood) < outstanding:
                flood.append(world.ask(900, 1, caller="flood"))
        if step % 10 == 9:
            victims.append(world.ask(5, 4, caller="victim", deadline_ns=world.now_ns + 60 * MS))
        world.step()
    world.run()
    assert not world.left
    assert set(victims) <= set(world.answered)
    assert len(world.answered) > len(victims) + 50


def test_who_fills_the_cache_of_a_variant_refuses_nobody_of_another_one() -> None:
    world = StepWorld(members=16, step_tokens=64, blocks=8, most_wait_ns=200 * MS)
    world.ask(8, 8)
    world.run()
    answered = 0
    for step in range(400):
        with contextlib.suppress(OverloadedError):
            world.ask(8, 56, "fp32", caller="long")
        if step % 20 == 19:
            world.ask(8, 4, "bf16", caller="other", deadline_ns=world.now_ns + 20 * MS)
            answered += 1
        world.step()
    assert world.queue.wait_ns(world.now_ns) > 100 * MS  # for that variant
    world.run()
    assert not world.left
    assert sum(member.request.variant == "bf16" for member in world.answered) == answered


def test_who_would_not_find_room_in_the_cache_is_refused_though_nobody_waits() -> None:
    world = StepWorld(members=8, step_tokens=64, blocks=4)
    for _ in range(2):
        world.ask(BLOCK, 60)
    for _ in range(20):
        world.step()
    assert refused(world, world.now_ns + 30 * MS) is not None
    assert refused(world, world.now_ns + 100 * MS) is None


def busier(members: int) -> int:
    """How long a step takes where all of it is work for each member."""
    return (4 + members) * MS


def test_several_that_come_together_are_foreseen_beside_each_other() -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=200, step_ns=busier)
    for count in (1, 32):
        for _ in range(count):
            world.ask(8, 40)
        world.run()
    world.ask(8, 150)
    world.step()
    deadline_ns = world.now_ns + int(1.25 * 150 * busier(20))
    together = [world.wanting(8, 150, deadline_ns=deadline_ns).request for _ in range(30)]
    assert not world.queue.have_room(together, world.now_ns)
    assert world.queue.have_room(together[:12], world.now_ns)


def test_short_answers_are_given_beside_a_flood_of_long_ones() -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=500, most_wait_ns=10_000 * MS, step_ns=busier)
    flood: list[Member] = []
    were_let_in: list[bool] = []
    for step in range(1000):
        flood = [member for member in flood if member not in world.answered]
        with contextlib.suppress(OverloadedError):
            while len(flood) < 64:
                flood.append(world.ask(8, 150, caller="flood"))
        if step % 5 == 4:
            were_let_in.append(False)
            with contextlib.suppress(OverloadedError):
                world.ask(8, 8, caller="other", deadline_ns=world.now_ns + 1000 * MS)
                were_let_in[-1] = True
        world.step()
    world.run()
    assert not world.left
    assert all(were_let_in[40:])  # once those who were there before have ended
    assert len(world.answered) - sum(were_let_in) > 28 * 5


def test_places_that_callers_give_back_early_are_not_waited_for() -> None:
    """Answers that may have 900 tokens, whose callers leave after six of them."""
    world = StepWorld(members=32, step_tokens=512, blocks=2000, most_wait_ns=1000 * MS)
    outstanding: list[Member] = []
    refusals = 0
    for step in range(600):
        outstanding = [each for each in outstanding if not each.is_leaving]
        for member in outstanding:
            if len(member.produced) >= 6:
                world.queue.leave(member)
        with contextlib.suppress(OverloadedError):
            while len(outstanding) < 40:
                outstanding.append(world.ask(8, 900, caller=f"{step} {len(outstanding)}"))
        if step % 5 == 4:
            refusals += refused(world, world.now_ns + 100 * MS) is not None
        world.step()
    assert refusals < 0.1 * 120


def test_who_is_cut_at_its_deadline_does_not_pass_for_one_who_leaves() -> None:
    world = StepWorld(members=4, step_tokens=64)
    for _ in range(8):
        deadline_ns = world.now_ns + 40 * MS
        member = world.ask(8, 100, caller="late", deadline_ns=deadline_ns)
        while world.now_ns < deadline_ns - MS:
            world.step()
        world.queue.leave(member)  # as its client does
        world.run()
    for _ in range(4):
        world.ask(8, 100, caller="late")
    world.step()
    assert world.queue.wait_ns(world.now_ns) > 90 * MS


def test_places_are_kept_while_another_caller_comes_and_taken_back_where_they_are_not() -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=2000, step_ns=lambda members: 100 * MS)
    world.ask(8, 8)
    world.run()
    world.now_ns += 10_000 * MS

    def others_refused(calls: int, every_ms: int) -> int:
        told = 0
        for _ in range(calls):
            until_ns = world.now_ns + every_ms * MS
            told += refused(world, world.now_ns + 3000 * MS) is not None
            while world.now_ns < until_ns:
                world.step()
        return told

    for _ in range(64):
        world.ask(8, 800, caller="night batch")
    for _ in range(20):
        world.step()
    assert world.queue.members == 32  # nobody else has been there
    assert others_refused(20, every_ms=1000) == 0
    assert 0 < world.queue.preemptions <= 4
    assert others_refused(3, every_ms=11_000) == 0  # who is there no more in between
    world.run()
    assert not world.left
    assert sum(member.request.caller == "night batch" for member in world.answered) == 64


@pytest.mark.parametrize(
    "held",
    [
        [26, 3, 3],
        [8] * 8,
        [3] * 11,
        [2] * 16,
        [30, 1, 1],
        [28, 1, 1, 1, 1],
        [7, 7, 7, 7, 1, 1, 1, 1],
        [40, 40],
    ],
)
def test_whoever_holds_the_places_a_caller_of_little_is_answered(held: list[int]) -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=4000, most_wait_ns=10_000 * MS, step_ns=busier)
    asked = [world.ask(8, 900, caller=f"long {who}") for who, count in enumerate(held) for _ in range(count)]
    for _ in range(100):
        world.step()
    short = []
    for _ in range(20):
        short.append(world.ask(8, 8, caller="short", deadline_ns=world.now_ns + 1000 * MS))
        for _ in range(30):
            world.step()
        assert short[-1] in world.answered
    assert world.queue.preemptions <= 4
    assert world.queue.members >= 27
    world.run()
    assert not world.left
    assert {*world.answered} == {*asked, *short}


class Comers:
    """Callers, each of whom always has so many requests, of which it leaves those that have so many tokens:
    what has ended is asked for again after a while."""

    def __init__(self, world: StepWorld, callers: int, each: int, again_ns: int, tokens: int = 1) -> None:
        self._world, self._again_ns, self._tokens = world, again_ns, tokens
        self._asked: list[tuple[str, Member | None, int]] = [
            (f"comer {who}", None, 0) for who in range(callers) for _ in range(each)
        ]

    def come(self) -> None:
        world = self._world
        for place, (caller, asked, since_ns) in enumerate(self._asked):
            if asked is not None and len(asked.produced) >= self._tokens:
                world.queue.leave(asked)
                self._asked[place] = caller, None, world.now_ns
            elif asked is None and world.now_ns >= since_ns + self._again_ns:
                with contextlib.suppress(OverloadedError):
                    self._asked[place] = caller, world.ask(8, 900, caller=caller), world.now_ns


@pytest.mark.parametrize(
    ("leavers", "tokens", "seconds"), [(0, 0, 4), (2, 1, 4), (2, 1, 5), (2, 1, 6), (2, 3, 4), (4, 5, 4)]
)
def test_of_a_burst_beside_long_answers_as_many_are_let_in_as_are_in_time(
    leavers: int, tokens: int, seconds: int
) -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=4000, most_wait_ns=10_000 * MS, step_ns=busier)
    for who in range(6):
        for _ in range(4):
            world.ask(8, 900, caller=f"long {who}")
    comers = Comers(world, leavers, 8, again_ns=100 * MS, tokens=tokens)
    burst: list[Member] = []
    for _ in range(3):
        for _ in range(50):
            world.step()
            comers.come()
        deadline_ns = world.now_ns + seconds * 1000 * MS
        together = [world.wanting(8, 80, caller="burst", deadline_ns=deadline_ns) for _ in range(16)]
        has_room = world.queue.have_room([member.request for member in together], world.now_ns)
        with contextlib.suppress(OverloadedError):
            for member in together:
                world.queue.put(member.request, world.now_ns, has_room)
                burst.append(member)
        while world.now_ns < deadline_ns:
            world.step()
            comers.come()
    in_time = [member for member in burst if member in world.answered]
    assert len(in_time) >= 3
    assert len(in_time) >= 0.85 * len(burst)


@pytest.mark.parametrize("may_end", [False, True])
def test_others_who_leave_or_end_at_once_do_not_have_a_new_callers_burst_let_in(may_end: bool) -> None:
    """Each of them is a connection of its own."""
    world = StepWorld(members=32, step_tokens=512, blocks=4000, most_wait_ns=10_000 * MS, step_ns=busier)
    for _ in range(40):
        world.ask(8, 40, caller="early", may_end=may_end)
    world.run()
    in_time = late = 0
    for number in range(5):
        for other in range(30):
            member = world.ask(8, 900, caller=f"other {number} {other}")
            member.end_ids = frozenset({0}) if may_end else frozenset()  # what it chooses
            while not member.produced:
                world.step()
            if not may_end:
                world.queue.leave(member)
        deadline_ns, burst = world.now_ns + 7000 * MS, []
        for _ in range(5):
            together = [
                world.wanting(8, 80, caller=f"burst {number}", deadline_ns=deadline_ns, may_end=may_end)
                for _ in range(19)
            ]
            has_room = world.queue.have_room([member.request for member in together], world.now_ns)
            with contextlib.suppress(OverloadedError):
                for member in together:
                    world.queue.put(member.request, world.now_ns, has_room)
                    burst.append(member)
        world.run()
        world.now_ns = max(world.now_ns, deadline_ns)
        answered = sum(member in world.answered for member in burst)
        in_time, late = in_time + answered, late + len(burst) - answered
    assert in_time >= 5 * 32
    assert late <= 0.02 * in_time


@pytest.mark.parametrize("held", [[32], [16, 16], [4] * 6])
def test_however_many_come_and_go_no_answer_is_read_again_more_than_twice(held: list[int]) -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=4000, step_ns=busier)
    asked = [world.ask(8, 400, caller=f"long {who}") for who, count in enumerate(held) for _ in range(count)]
    comers = Comers(world, 20, 1, again_ns=100 * MS)
    while any(member not in world.answered for member in asked):
        world.step()
        comers.come()
    again = [0 if member.again is None else member.again.tokens for member in asked]
    assert sum(again) > 0
    assert max(again) <= 2 * 408


def test_a_burst_beside_callers_who_ask_again_at_once_is_let_in_as_far_as_it_is_in_time() -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=4000, step_ns=busier)
    asked: list[Member] = []

    def step() -> None:
        outstanding = Counter(each.request.caller for each in asked if each not in world.answered)
        for who in range(7):
            for _ in range(6 - outstanding[f"other {who}"]):
                asked.append(world.ask(8, 38, caller=f"other {who}"))
        world.step()

    burst: list[Member] = []
    for _ in range(6):
        for _ in range(60):
            step()
        deadline_ns = world.now_ns + 3600 * MS
        with contextlib.suppress(OverloadedError):
            for _ in range(16):
                burst.append(world.ask(8, 40, caller="burst", deadline_ns=deadline_ns))
        while world.now_ns < deadline_ns:
            step()
    in_time = sum(member in world.answered for member in burst)
    assert in_time >= 6 * 3
    assert in_time >= 0.75 * len(burst)


def test_who_teaches_that_he_leaves_and_then_stays_has_hardly_any_of_a_burst_let_in_late() -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=4000, step_ns=busier)
    for _ in range(20):
        taught = [world.ask(8, 900, caller=f"bait {who % 8}") for who in range(32)]
        while not all(member.is_leaving for member in taught):
            world.step()
            for member in taught:
                if len(member.produced) >= 2:
                    world.queue.leave(member)
    for who in range(32):
        world.ask(8, 900, caller=f"bait {who % 8}")
    for _ in range(100):
        world.step()
    burst = []
    with contextlib.suppress(OverloadedError):
        for _ in range(16):
            burst.append(world.ask(8, 80, caller="burst", deadline_ns=world.now_ns + 7000 * MS))
    world.run()
    assert burst
    assert all(member in world.answered for member in burst)


def test_who_has_a_deadline_gives_his_place_after_who_has_none() -> None:
    world = StepWorld(members=8, step_tokens=64)
    urgent = [world.ask(8, 100, caller="urgent", deadline_ns=world.now_ns + 150 * MS) for _ in range(4)]
    patient = [world.ask(8, 100, caller="patient") for _ in range(4)]
    for _ in range(20):
        world.step()
    world.ask(8, 20, caller="late")
    world.run()
    assert not world.left
    assert [member.preemptions for member in (*patient, *urgent)] == [0, 0, 0, 1] + [0] * 4


def test_who_comes_where_many_hold_few_places_is_answered_in_his_turn() -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=4000)
    for who in range(12):
        for _ in range(8):
            world.ask(8, 900, caller=f"early {who}")
    world.step()
    late = [world.ask(8, 8, caller=f"late {who}") for who in range(2)]
    for _ in range(30):
        world.step()
    assert {*world.answered} == {*late}
    assert world.queue.preemptions == 2


def test_who_holds_one_of_few_places_keeps_it() -> None:
    """Nine callers for eight places: none of them has one to give."""
    world = StepWorld(members=8, step_tokens=64)
    for who in range(8):
        world.ask(8, 40, caller=f"early {who}")
    world.step()
    world.ask(8, 8, caller="late")
    world.run()
    assert len(world.answered) == 9
    assert world.queue.preemptions == 0


def test_nobody_leaves_places_free_for_who_holds_as_many() -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=4000)
    for who in range(4):
        for _ in range(12):
            world.ask(8, 100, caller=f"caller {who}")
    for _ in range(20):
        world.step()
    assert world.queue.members == 32
    assert world.queue.preemptions == 0


@pytest.mark.parametrize("seed", [4, 7, 21, 26])
def test_whoever_comes_and_goes_places_change_hands_to_an_end(seed: int) -> None:
    """Of three of these seeds callers once took a place from each other for ever, within a step."""
    chance = random.Random(seed)
    world = StepWorld(
        members=chance.choice([4, 8, 16, 32, 64]),
        step_tokens=chance.choice([16, 64, 512]),
        blocks=chance.choice([60, 200, 4000]),
        most_wait_ns=chance.choice([1e18, 10_000 * MS]),
        step_ns=lambda members: 2 * MS,
    )
    callers, asked = chance.choice([2, 3, 5, 9, 20, 70]), list[Member]()
    for _ in range(chance.choice([100, 400, 900])):
        for _ in range(chance.choice([0, 0, 1, 1, 2, 6])):
            caller = min(callers - 1, int(chance.expovariate(1 / max(1, callers / 3))))
            with contextlib.suppress(OverloadedError):
                asked.append(
                    world.ask(
                        chance.choice([2, 8, 30]),
                        chance.choice([1, 4, 20, 120]),
                        variant=chance.choice(["fp32", "fp32", "bf16"]),
                        caller=str(caller),
                        deadline_ns=None
                        if chance.random() < 0.6
                        else world.now_ns + chance.choice([50, 500, 5000]) * MS,
                    )
                )
        if chance.random() < 0.05 and asked:
            world.queue.leave(chance.choice(asked))
        world.step()
        if chance.random() < 0.01:
            world.now_ns += chance.choice([1000, 12_000]) * MS
    world.run()
    assert not world.queue.is_wanted
    assert world.answered


def test_what_is_believed_of_more_members_does_not_keep_them_out_for_ever() -> None:
    world = StepWorld(members=32, step_tokens=512, blocks=500, step_ns=busier)
    for members in (1, 32) * 30:  # as if all of a step were work for each member
        world.queue._told.pace.learn(members, False, members * busier(1), 32)
    world.ask(8, 200)
    due_ns, offered = 0, 0
    while world.now_ns < 40_000 * MS:
        if due_ns <= world.now_ns:
            due_ns, offered = world.now_ns + 250 * MS, offered + 1
            with contextlib.suppress(OverloadedError):
                world.ask(8, 200, deadline_ns=world.now_ns + int(1.25 * 200 * busier(4)))
        world.step()
    assert not world.left
    assert len(world.answered) > 0.5 * offered


def crowd(seed: int, callers: str, prompts: list[int], answers: list[int]) -> tuple[StepWorld, random.Random]:
    """A queue in the middle of its work, and what may be drawn next; the same for the same seed."""
    draws, world = random.Random(seed), StepWorld(members=8, step_tokens=64, blocks=2000)
    for _ in range(10):  # so that the pace is known
        world.ask(8, 8)
    world.run()
    for _ in range(draws.randint(1, 20)):
        world.ask(draws.choice(prompts), draws.choice(answers), caller=draws.choice(callers))
        for _ in range(draws.randint(1, 2)):
            world.step()
    return world, draws


@pytest.mark.parametrize(
    ("callers", "prompts", "answers", "right"),
    [("a", [600], [1], 1.0), ("abc", [8, 40, 200, 600], [1, 8, 40], 0.9), ("a", [8], [40], 0.9)],
)
def test_what_a_request_will_take_is_foreseen(
    callers: str, prompts: list[int], answers: list[int], right: float
) -> None:
    """A deadline of half of it is refused, and one of three times as much is not."""
    found = []
    for seed in range(100):
        world, draws = crowd(seed, callers, prompts, answers)
        asked = draws.choice([8, 300]), draws.choice([1, 20])
        if world.queue._is_idle:
            continue
        begun_ns, member = world.now_ns, world.ask(*asked, caller="late")
        world.run()
        took_ns = world.answered_ns[world.answered.index(member)] - begun_ns
        outcomes = []
        for times in (0.5, 3.0):
            world, _ = crowd(seed, callers, prompts, answers)
            outcomes.append(refused(world, world.now_ns + int(times * took_ns), *asked) is not None)
        found.append(outcomes == [True, False])
    assert len(found) > 80
    assert sum(found) >= right * len(found)


@pytest.mark.parametrize(("times", "new"), [(2, 16), (4, 16), (10, 16), (4, 1), (10, 64)])
def test_under_overload_what_can_be_done_in_time_is_done_and_hardly_anything_else(
    times: int, new: int
) -> None:
    """Deadlines of one and a half times what an answer takes when all places are held."""
    places, prompt, steps = 8, 8, 200 + 50 * new
    world = StepWorld(members=places, step_tokens=64, most_wait_ns=10_000 * MS)
    draws, due_ns = random.Random(times), 0.0
    peak = places / new  # answers a step
    for _ in range(steps):
        while due_ns <= world.now_ns:
            with contextlib.suppress(OverloadedError):
                world.ask(prompt, new, deadline_ns=world.now_ns + int(1.5 * (new + 1) * MS))
            due_ns += draws.expovariate(times * peak / MS)
        world.step()
    world.run()
    ended = zip(world.answered, world.answered_ns, strict=True)
    in_time = [member for member, at_ns in ended if at_ns <= (member.request.deadline_ns or 0)]
    assert len(in_time) >= 0.9 * peak * steps
    cut = sum(len(member.produced) for member, error in world.left if isinstance(error, ExpiredError))
    assert cut <= 0.03 * sum(len(member.produced) for member in world.answered)
