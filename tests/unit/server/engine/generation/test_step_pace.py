"""What steps and answers tell of how long places are held."""

from __future__ import annotations

import random
from statistics import harmonic_mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattserve_server.engine.generation.pace import Chances, StepPace, expected_tokens, place_free_ns

MS = 1_000_000


def test_steps_of_more_members_take_longer_by_what_was_learned_of_them() -> None:
    pace = StepPace()
    assert pace.step_ns(8) == 0  # nothing is known yet
    for members in [*range(1, 33)] * 3:
        pace.learn(members, False, 2 * MS + members * MS, 32)
        pace.learn(1, True, 50 * MS, 32)  # of the first of many who come at once
    assert pace.step_ns(24) - pace.step_ns(4) == pytest.approx(20 * MS)


def test_what_was_learned_of_more_members_fades_while_there_are_none() -> None:
    pace = StepPace()
    for members in (1, 32) * 20:
        pace.learn(members, False, 5 * members * MS, 32)
    assert pace.step_ns(32) == pytest.approx(160 * MS, rel=0.05)
    for _ in range(100):
        pace.learn(1, False, 5 * MS, 32)
    assert pace.step_ns(32) > 80 * MS
    for _ in range(1000):
        pace.learn(1, False, 5 * MS, 32)
    assert pace.step_ns(32) == pytest.approx((5 + 31 * 0.5) * MS, rel=0.1)


def test_a_step_of_fewer_members_takes_no_less_than_nothing_and_of_more_no_less_than_of_fewer() -> None:
    pace = StepPace()
    for members, ms in ((1, 1), (32, 90), (1, 1), (32, 90)):
        pace.learn(members, False, ms * MS, 32)
    assert 0 <= pace.step_ns(1) <= pace.step_ns(32)
    for members, ms in ((1, 90), (32, 1), (1, 90), (32, 1)):
        pace.learn(members, False, ms * MS, 32)
    assert 0 < pace.step_ns(1) == pace.step_ns(32)


def test_a_process_that_was_stopped_tells_no_pace_of_steps_and_rare_prompts_do() -> None:
    pace = StepPace()
    for number in range(1000):
        pace.learn(4, False, 200 * MS if number % 20 == 0 else 2 * MS, 32)
    assert pace.step_ns(4) == pytest.approx(12 * MS, rel=0.6)
    pace.learn(4, False, 3_600_000 * MS, 32)
    assert pace.step_ns(4) < 120 * MS
    for _ in range(50):
        pace.learn(4, False, 3_600_000 * MS, 32)  # they do take so long
    assert pace.step_ns(4) == pytest.approx(3_600_000 * MS, rel=0.5)


def test_answers_are_as_long_as_they_may_be_until_some_have_ended_earlier() -> None:
    ends = Chances(1 / 256)
    assert expected_tokens(1000, 0.0) == 1000
    for _ in range(300):
        ends.learn("a", 64, False)
    assert expected_tokens(64, ends.of("a")) > 63
    for _ in range(300):
        ends.learn("a", 20, True)
    assert expected_tokens(1000, ends.of("a")) == pytest.approx(20, rel=0.05)
    assert expected_tokens(4, ends.of("a")) == pytest.approx(4, rel=0.15)


def test_answers_that_were_cut_do_not_make_the_others_shorter() -> None:
    draws, ends, found = random.Random(7), Chances(1 / 256), []
    for _ in range(2000):  # of 50 tokens in the mean, of which nobody sees more than 30
        length = draws.expovariate(1 / 50)
        ends.learn("a", int(min(length, 30)), length < 30)
        found.append(expected_tokens(10**6, ends.of("a")))
    assert harmonic_mean(found) == pytest.approx(50, rel=0.15)


def test_a_callers_answers_are_foreseen_by_its_own_and_a_new_ones_by_everybodys() -> None:
    ends = Chances(1 / 256)
    for _ in range(200):
        ends.learn("chats", 20, True)
        ends.learn("summaries", 700, True)
    assert expected_tokens(1000, ends.of("chats")) == pytest.approx(20, rel=0.05)
    # Of 700 in the mean, none above 1000:
    assert 400 < expected_tokens(1000, ends.of("summaries")) < 600
    assert 200 < expected_tokens(1000, ends.of("new")) < 360
    for number in range(3000):
        ends.learn(f"peer {number}", 20, True)
    assert expected_tokens(1000, ends.of("summaries")) < 30  # it has been forgotten


def test_nobody_is_taken_to_leave_until_some_have_and_a_new_ones_first_answers_tell() -> None:
    leaves = Chances(0.0)
    assert leaves.of("a") == 0
    for _ in range(50):
        leaves.learn("stays", 300, False)
    assert leaves.of("leaves") == 0
    for _ in range(5):
        leaves.learn("leaves", 6, True)
    assert expected_tokens(1000, leaves.of("leaves")) < 100
    assert leaves.of("stays") < 1e-6


def test_a_caller_who_leaves_again_and_again_tells_little_of_the_others() -> None:
    leaves = Chances(0.0)
    for _ in range(200):
        leaves.learn("leaves", 1, True)
    assert expected_tokens(900, leaves.of("leaves")) < 2
    assert expected_tokens(900, leaves.of("new")) > 120
    assert expected_tokens(900, leaves.of("new", so_far=300)) > 300, "it has not left so far"
    for number in range(300):
        leaves.learn(f"leaves {number}", 6, True)
    assert expected_tokens(900, leaves.of("new")) < 12


def test_an_answer_that_runs_for_longer_than_its_callers_others_is_believed() -> None:
    leaves = Chances(0.0)
    for _ in range(40):
        leaves.learn("leaves, and then does not", 2, True)
    assert expected_tokens(900, leaves.of("leaves, and then does not")) < 3
    assert expected_tokens(800, leaves.of("leaves, and then does not", so_far=100)) > 90


def test_many_callers_short_answers_tell_a_caller_little_of_his_own() -> None:
    """As where each call is a connection, and so a caller, of its own."""
    leaves, ends = Chances(0.0), Chances(1 / 256)
    for number in range(300):
        for _ in range(16 if number % 30 == 0 else 1):
            is_short = number % 30 > 0
            leaves.learn(f"{number}", 1 if is_short else 80, is_short)
            ends.learn(f"{number}", 1 if is_short else 80, is_short)
    for told in (leaves, ends):
        assert expected_tokens(80, told.of("new", own=True)) > 60
        assert expected_tokens(80, told.of("new")) < 10
        for _ in range(20):
            told.learn("known", 1, True)
        assert expected_tokens(80, told.of("known", own=True)) < 10


@given(
    held=st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    ahead=st.integers(0, 40),
    hold=st.integers(1, 300),
)
def test_who_comes_has_the_place_that_is_free_once_those_ahead_have_theirs(
    held: list[int], ahead: int, hold: int
) -> None:
    starts = sorted(until + turn * hold for until in held for turn in range(ahead + 1))
    assert place_free_ns(held, ahead, hold) == starts[ahead]
