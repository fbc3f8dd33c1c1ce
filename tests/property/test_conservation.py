"""Conservation, under any interleaving of batches, readings, failures, resets, freezes and neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.arbitrary_device import ArbitraryDevice

lengths = st.lists(st.integers(1, 512), min_size=1, max_size=6).map(tuple)
starts = st.tuples(
    st.just("start"),
    st.sampled_from(["fp32", "bf16", "int8"]),
    lengths,
    st.sampled_from(["request", "request", "request", "warm-up", "first run"]),
)
events = st.one_of(
    starts,
    st.tuples(st.just("end")),
    st.tuples(st.just("wait"), st.floats(0.0, 300.0)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 20.0, 900.0, 2500.0, 20_000.0])),
    st.tuples(st.just("read")),
    st.tuples(st.just("fail")),
    st.tuples(st.just("draw"), st.floats(0.0, 1000.0)),
    st.tuples(st.just("add"), st.integers(0, 60_000_000)),
    st.tuples(st.just("reset"), st.integers(0, 60_000_000)),
    st.tuples(st.just("freeze"), st.booleans()),
    st.tuples(st.just("see_neighbours"), st.sampled_from([None, 0, 1, 3])),
)
stretches = st.tuples(
    st.sampled_from(["poll", "serve", "burst", "warm up"]),
    st.integers(1, 25),
    st.sampled_from([5.0, 20.0, 50.0, 100.0]),
    st.floats(0.0, 400.0),
)


def play(device: ArbitraryDevice, step: tuple[Any, ...]) -> None:
    kind, *arguments = step
    if kind not in ("poll", "serve", "burst", "warm up"):
        getattr(device, kind)(*arguments)
        return
    count, period_ms, watts = arguments
    device.draw(watts)
    for index in range(count):
        if kind == "burst":
            for number in range(3 * index):
                device.start(("fp32", "bf16")[number % 2], (8,))
                device.wait(0.1)
                device.end()
        elif kind != "poll":
            device.start("fp32", (16 + index, 16), "request" if kind == "serve" else "warm-up")
        device.wait(period_ms)
        if kind != "poll":
            device.end()
        device.read()


@given(
    st.lists(st.one_of(events, events, stretches), max_size=40),
    st.sampled_from([None, None, 0.0, 12.5]),
    st.booleans(),
)
def conserves(steps: list[tuple[Any, ...]], idle_watts: float | None, wraps: bool) -> None:
    device = ArbitraryDevice(idle_watts, wraps)
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        for step in steps:
            play(device, step)
        device.rest()


# What the garbage of an earlier test says while this one runs is not this one's.
@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("examples", [50, pytest.param(250, marks=pytest.mark.long)])
def test_every_microjoule_is_somewhere_and_nothing_is_negative(examples: int) -> None:
    bound = settings(deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    bound(conserves)()
