"""Loads: their names, and which of them make no sense."""

from __future__ import annotations

import pytest

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import (
    CLOSED,
    CONSTANT,
    OFFLINE,
    POISSON,
    RAMP,
    RECORDED,
    SHAPES,
    Load,
    Shape,
    check_loads,
    closed,
)

EVERY_SHAPE = (
    closed(8),
    Load(POISSON, rate=100),
    Load(CONSTANT, rate=0.5),
    Load(RAMP, rate=10, rate_end=200),
    Load(RECORDED, trace="day.csv"),
    Load(OFFLINE, concurrency=64),
)


def test_every_shape_has_a_name_that_says_what_it_is() -> None:
    assert [load.name for load in EVERY_SHAPE] == [
        "concurrency 8",
        "100/s poisson",
        "0.5/s constant",
        "10-200/s ramp",
        "recorded day.csv",
        "offline, 64 in flight",
    ]
    assert tuple(load.shape for load in EVERY_SHAPE) == tuple(SHAPES)


def test_a_name_says_speed_and_sequences_where_they_are_not_one() -> None:
    assert Load(RECORDED, trace="day.csv", speed=2.5).name == "recorded day.csv x2.5"
    assert closed(1, sequences=8).name == "concurrency 1, 8 sequences each"


def test_a_load_in_a_sentence_and_on_an_axis() -> None:
    assert [load.phrase for load in EVERY_SHAPE] == [
        "at concurrency 8",
        "at 100 requests per second (Poisson)",
        "at 0.5 requests per second (evenly spaced)",
        "in a ramp from 10 to 200 requests per second",
        "on the recorded arrivals of day.csv",
        "offline, 64 in flight",
    ]
    assert [load.weight for load in EVERY_SHAPE] == ["8", "100", "0.5", "10–200", "×1", "64"]
    assert (
        Load(RECORDED, trace="a", speed=2.5).phrase
        == "on the recorded arrivals of a at 2.5 times their speed"
    )
    assert closed(4, sequences=8).axis == "concurrency (requests in flight), 8 sequences each"
    assert closed(4, sequences=8).short_axis == "concurrency, × 8"


def test_a_line_joins_loads_that_differ_in_weight_alone() -> None:
    assert closed(4).line == closed(8).line != closed(8, sequences=2).line
    assert Load(RAMP, rate=1, rate_end=9).line != Load(RAMP, rate=2, rate_end=9).line


def test_a_new_shape_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    square = Shape(("rate", "rate_end"), "{rate} or {rate_end}/s", "at {rate}", "{rate}", "square wave", "sq")
    monkeypatch.setitem(SHAPES, "square", square)
    load = Load("square", rate=5.0, rate_end=7.5, sequences=2)
    check_loads([load])
    assert (load.name, load.axis) == ("5 or 7.5/s, 2 sequences each", "square wave, 2 sequences each")
    assert load.scheduled
    with pytest.raises(PlanError, match="a load of the shape square needs rate-end"):
        check_loads([Load("square", rate=5.0)])


def test_an_open_loop_has_a_schedule_and_the_others_have_none() -> None:
    assert [load.scheduled for load in EVERY_SHAPE] == [False, True, True, True, True, False]


def test_loads_that_make_sense_pass() -> None:
    check_loads(EVERY_SHAPE)
    check_loads([])


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (Load("square"), "shape 'square' is unknown; choose from closed, poisson, constant, ramp, recorded"),
        (Load(CLOSED), "a load of the shape closed needs concurrency"),
        (Load(POISSON, concurrency=3), "a load of the shape poisson needs rate"),
        (Load(RAMP, rate=3), "a load of the shape ramp needs rate-end"),
        (Load(RECORDED), "a load of the shape recorded needs trace"),
        (closed(0), "concurrency 0: it must be from 1 to 4096"),
        (closed(5000), "concurrency 5000: it must be from 1 to 4096"),
        (Load(POISSON, rate=0.0), "rate 0: it must be above 0 and at most 100000 per second"),
        (Load(RAMP, rate=1.0, rate_end=-2.0), "rate -2: it must be above 0"),
        (Load(CONSTANT, rate=float("nan")), "rate nan: it must be above 0"),
        (Load(CONSTANT, rate=float("inf")), "rate inf: it must be above 0"),
        (Load(RECORDED, trace="a", speed=0.0), "speed 0: it must be above 0 and at most 1000"),
        (closed(1, sequences=0), "0 sequences in a request: it must be from 1 to 4096"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(load: Load, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_loads([load])
    assert str(caught.value).startswith(message)


def test_a_load_listed_twice_is_refused() -> None:
    with pytest.raises(PlanError, match="concurrency 2 is listed twice"):
        check_loads([closed(2), closed(4), closed(2)])
