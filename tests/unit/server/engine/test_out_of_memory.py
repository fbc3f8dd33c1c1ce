"""How a want of memory is recognised, how a batch is split, and what limit is learned from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.queued import request
from tests.fixtures.windows import window
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.out_of_memory import (
    LIMIT_HOLDS_S,
    LearnedLimits,
    as_far_as_it_came,
    halves,
    memory_shortage,
    most_splits,
    token_limit,
)
from wattserve_server.engine.policy import BatchLimits


def raised(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the allocator raises
        act()
    return caught.value


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(2**50), lambda: np.empty(2**50), lambda: bytearray(2**60)],
    ids=["torch", "numpy", "python"],
)
def test_what_the_allocators_of_this_machine_raise_is_a_shortage(allocate: Callable[[], object]) -> None:
    assert memory_shortage(raised(allocate))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4503599627370496 bytes."),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
def test_so_is_what_others_raise(error: Exception) -> None:
    assert memory_shortage(error) == (str(error) or "MemoryError")


def test_a_shortage_behind_another_error_is_found() -> None:
    def wrapped() -> None:
        try:
            raise MemoryError("no room")
        except MemoryError as error:
            raise ValueError("could not make the batch") from error

    assert memory_shortage(raised(wrapped)) == "no room"


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)",
        "expected a memory format of torch.channels_last",
    ],
)
def test_other_errors_are_none_not_even_those_that_speak_of_memory(words: str) -> None:
    assert memory_shortage(RuntimeError(words)) == ""


@given(st.lists(st.integers(1, 512), min_size=2, max_size=64))
def test_a_split_loses_nobody_and_each_part_computes_less(lengths: list[int]) -> None:
    batch = request(lengths).sequences
    shorter, longer = halves(batch, evenly=False)
    assert shorter
    assert longer
    assert sorted(map(id, shorter + longer)) == sorted(map(id, batch))
    assert max(item.length for item in shorter) <= min(item.length for item in longer)
    assert len(longer) * max(lengths) < len(lengths) * max(lengths)


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([8] * 8, (4, 4)),
        ([8] * 5, (2, 3)),
        ([4, 4, 4, 4, 4, 100], (5, 1)),
        ([100, 4], (1, 1)),
    ],
)
def test_the_parts_compute_about_the_same(lengths: list[int], sizes: tuple[int, int]) -> None:
    shorter, longer = halves(request(lengths).sequences, evenly=False)
    assert (len(shorter), len(longer)) == sizes


@given(st.lists(st.integers(1, 512), min_size=2, max_size=64), st.data())
def test_any_one_that_fails_is_found_in_fewer_splits_than_there_may_be(
    lengths: list[int], data: st.DataObject
) -> None:
    part = request(lengths).sequences
    odd = data.draw(st.sampled_from(part))
    splits = 0
    while len(part) > 1:
        shorter, longer = halves(part, evenly=True)
        assert sorted(map(id, shorter + longer)) == sorted(map(id, part))
        part = shorter if odd in shorter else longer
        splits += 1
    assert part == [odd]
    assert splits < most_splits(len(lengths)) <= math.log2(len(lengths)) + 2


@pytest.mark.parametrize(
    ("failed", "worked", "limit"),
    [
        ([80], [40, 40], 40),
        ([600], [20, 100], 300),  # as much as half may well fit
        ([600], [20, 420], 420),
        ([80, 40], [20, 20, 10, 10], 20),
        ([80, 40], [40, 20, 20], 20),  # what failed has failed, even if something as large has not
        ([80], [], 40),
        ([1], [], 1),
    ],
)
def test_the_limit_is_what_worked_and_at_least_half_of_what_did_not(
    failed: list[int], worked: list[int], limit: int
) -> None:
    assert token_limit(failed, worked) == limit


class NotedLimits(Batcher):
    """A batcher that says what it was told."""

    def __init__(self) -> None:
        super().__init__(BatchLimits(8, 512), 100, lambda request, count: None)
        self.told: list[tuple[str, int]] = []

    def limit_tokens(self, variant: str, tokens: int) -> None:
        self.told.append((variant, tokens))


@dataclass
class Learning:
    now_s: float = 0.0
    batcher: NotedLimits = field(default_factory=NotedLimits)

    def __post_init__(self) -> None:
        self.limits = LearnedLimits(self.batcher, lambda: self.now_s)


def test_a_variant_that_fails_again_is_limited_further_and_never_less() -> None:
    it = Learning()
    it.limits.learn("fp32", [80], [40, 40])
    it.limits.learn("bf16", [100], [50, 50])
    it.limits.learn("fp32", [38], [19, 19])
    it.limits.learn("fp32", [90], [45, 45])
    assert it.batcher.told == [("fp32", 40), ("bf16", 50), ("fp32", 19), ("fp32", 19)]


def test_a_limit_is_forgotten_after_a_while_since_memory_may_have_come_back() -> None:
    it = Learning()
    it.limits.learn("fp32", [80], [40, 40])
    it.now_s = LIMIT_HOLDS_S / 2
    it.limits.learn("bf16", [80], [40, 40])
    it.now_s = LIMIT_HOLDS_S
    del it.batcher.told[:]
    it.limits.forget_old()
    it.limits.forget_old()
    assert it.batcher.told == [("fp32", 512)]
    it.limits.learn("fp32", [512], [256, 256])
    assert it.batcher.told[-1] == ("fp32", 256)


def test_every_limit_is_in_the_log_with_what_it_means(caplog: pytest.LogCaptureFixture) -> None:
    Learning().limits.learn("fp32", [80], [40, 40])
    (line,) = caplog.messages
    assert line == (
        "variant fp32 ran out of memory on a batch of 80 tokens, which was run in parts; for 10 minutes "
        "its batches have no more than 40"
    )


def test_the_window_of_a_failed_attempt_holds_what_its_time_suffices_for() -> None:
    whole = window(0, 100, (64,) * 16, warmup=True)
    assert as_far_as_it_came(whole, None) is whole  # nobody knows
    tenth = as_far_as_it_came(whole, whole.duration_ns / 128)
    assert (tenth.lengths, tenth.padded_length, tenth.computed_tokens) == ((64, 64), 64, 128)
    little = as_far_as_it_came(whole, whole.duration_ns / 5)
    assert (little.lengths, little.padded_length) == ((5,), 5)
    assert as_far_as_it_came(whole, 1e12).computed_tokens == 1
    assert as_far_as_it_came(whole, 1.0).computed_tokens == 1024  # and never more than was asked
    assert (tenth.start_ns, tenth.end_ns) == (whole.start_ns, whole.end_ns)
