"""Limits on each answer, such as `ttft<200ms,tpot<20ms`."""

from __future__ import annotations

import pytest

from tests.fixtures.loadgen_results import make_generation, make_record
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.figures.limits import parse_limits


def holds(text: str, **generation: object) -> list[bool]:
    """5 ms to the first token, 1 ms to each other, 12.5 ms in all."""
    record = make_record(sent_ns=0, done_ns=12_500_000, generation=make_generation(**generation))
    return [limit.holds(record) for limit in parse_limits(text)]


def test_each_limit_is_held_against_its_own_time() -> None:
    assert holds("ttft<6ms,tpot<2ms,latency<13ms") == [True, True, True]
    assert holds("ttft<4ms, tpot<900us, latency<12ms") == [False, False, False]


def test_a_limit_itself_is_within_only_where_it_says_so() -> None:
    assert holds("ttft<5ms,tpot<=1ms") == [False, True]


def test_a_single_token_has_no_time_per_token_and_is_within_any() -> None:
    assert holds("tpot<1us", output_tokens=1, gaps_ns=[]) == [True]


def test_objectives_of_percentiles_are_no_limits() -> None:
    assert parse_limits("p99<50ms") == ()
    assert parse_limits("nonsense") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft<5ms,p99<50ms", "'p99<50ms' is no limit on each answer"),
        ("ttft<5ms,", "'' is no limit on each answer"),
        ("ttft<5ms,TTFT<6ms", "ttft has two limits; give one"),
        ("ttft<5", "it has no unit; write us, ms or s"),
        ("tpot<5h", "the unit 'h' is unknown"),
        ("tpot<0ms", "a limit is at least 1us"),
    ],
)
def test_mistakes_are_told_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(PlanError) as raised:
        parse_limits(text)
    assert message in str(raised.value)
