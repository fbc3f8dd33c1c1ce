"""Which shapes are run before a variant is ready, and what their times say."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wattserve_server.energy.receipt import Window
from wattserve_server.engine import warmup
from wattserve_server.engine.lane import Ran
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.variants import verification
from wattserve_server.engine.warmup import (
    FRONT_END_S,
    overhead_tokens,
    threads_worth,
    verify,
    warm_up,
    warmup_shapes,
)


def test_every_power_of_two_is_warmed_alone_and_two_full_batches() -> None:
    assert warmup_shapes(40, BatchLimits(max_sequences=32, max_tokens=128)) == [
        (1, 8), (1, 16), (1, 32), (1, 40), (4, 32), (3, 40),
    ]  # fmt: skip


def test_the_longest_sequence_is_always_among_them() -> None:
    assert warmup_shapes(5, BatchLimits(4, 100)) == [(1, 5), (4, 5)]
    assert (1, 512) in warmup_shapes(512, BatchLimits(32, 256))


async def test_a_request_that_comes_meanwhile_waits_for_one_batch_at_most() -> None:
    ran: list[tuple[int, int]] = []
    chores: list[int] = []  # how many batches each of them ran

    async def do(chore: Callable[[], Any]) -> Any:
        before = len(ran)
        try:
            return chore()
        finally:
            chores.append(len(ran) - before)

    def run(variant: Any, items: list[Any], *, is_first_run: bool) -> Ran:
        assert is_first_run
        ran.append((len(items), len(items[0])))
        window = Window("fp32", 0, 1_000, tuple(map(len, items)), len(items[0]))
        return Ran(window, np.zeros((len(items), 2), np.float32), None)

    limits = BatchLimits(max_sequences=4, max_tokens=64)
    told: list[tuple[Any, ...]] = []
    batcher = SimpleNamespace(limits=limits, set_cost=lambda *given: told.append(given))
    log = SimpleNamespace(finish=lambda window: None)
    lane: Any = SimpleNamespace(do=do, run=run, batcher=batcher, run_log=log)
    task = SimpleNamespace(example=lambda facts, tokenizer, length, seed: np.zeros(length))
    model = SimpleNamespace(task=task, facts=SimpleNamespace(max_tokens=32), tokenizer=None)
    variant: Any = SimpleNamespace(name="fp32", model=model, packing=None)
    await warm_up(lane, variant)
    shapes = warmup_shapes(32, limits)
    assert ran == [shape for shape in shapes for _ in range(2)]
    assert chores == [1] * len(ran)
    ((name, _, tokens, duration_ns),) = told
    assert (name, tokens, duration_ns) == ("fp32", max(count * length for count, length in ran), 1_000)


def test_the_fixed_cost_of_a_batch_is_found_in_tokens() -> None:
    shapes = [(1, 8), (4, 8), (1, 64), (8, 64)]
    seconds = [0.010 + 0.0002 * count * length for count, length in shapes]
    assert overhead_tokens(shapes, seconds) == pytest.approx(50.0)


def test_times_that_do_not_grow_with_the_work_make_starting_a_batch_dear() -> None:
    assert overhead_tokens([(1, 8), (1, 64)], [0.01, 0.01]) == 64.0
    assert overhead_tokens([(1, 8)], [0.01]) == 0.0


def test_a_slow_model_gets_every_core_and_a_fast_one_leaves_some_to_the_front_end() -> None:
    assert threads_worth(2, sequence_s=0.01) == 2
    assert threads_worth(2, sequence_s=FRONT_END_S) == 1
    assert threads_worth(16, sequence_s=FRONT_END_S) == 8
    assert threads_worth(16, sequence_s=3 * FRONT_END_S) == 12


def test_there_is_always_a_thread() -> None:
    assert threads_worth(1, sequence_s=1.0) == 1
    assert threads_worth(4, sequence_s=1e-6) == 1


async def test_a_verification_that_fails_ends_when_its_device_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    async def do(chore: Callable[[], Any]) -> Any:
        return chore()

    def fail(variant: Any) -> None:
        raise ValueError("the profiler")

    monkeypatch.setattr(verification, "verify", fail)
    monkeypatch.setattr(warmup, "wait_for", lambda device: happened.append(f"waited for {device}"))
    log = SimpleNamespace(start=lambda: (0, 0), finish=lambda window: happened.append("finished"))
    lane: Any = SimpleNamespace(do=do, run_log=log)
    variant: Any = SimpleNamespace(name="fp32", device="cuda:0")
    with pytest.raises(ValueError, match="the profiler"):
        await verify(lane, variant)
    assert happened == ["waited for cuda:0", "finished"]
