"""Batches that the counter has begun to hold, alone or followed together, and the tails of settled ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.fixtures.windows import batch, entry, window
from wattserve_server.energy import openbatches
from wattserve_server.energy.device import Response
from wattserve_server.energy.openbatches import MOST_APART, Entry, OpenBatches, Tails
from wattserve_server.energy.receipt import Window


def entries_of(windows: Sequence[Window], among: int = 0) -> list[Entry]:
    return openbatches.entries_of([batch(each) for each in windows], among)


def opened(*windows: Window) -> OpenBatches:
    batches = OpenBatches()
    batches.add(entries_of(windows))
    return batches


def tiny(count: int, variant: str = "fp32", warmup: bool = False, rested_ms: float = 0.0) -> list[Window]:
    return [window(2 * i, 2 * i + 1, (8,), variant, warmup, rested_ms=rested_ms) for i in range(count)]


def test_up_to_a_limit_each_new_batch_is_followed_alone() -> None:
    assert [len(each.batches) for each in entries_of(tiny(MOST_APART))] == [1] * MOST_APART


def test_beyond_it_those_alike_are_followed_together() -> None:
    (together,) = entries_of(tiny(MOST_APART + 1))
    assert len(together.batches) == len(together.idle_share_j) == MOST_APART + 1


def test_batches_of_another_variant_shape_rest_or_purpose_are_not_alike() -> None:
    windows = tiny(50) + tiny(20, "bf16") + tiny(10, rested_ms=300.0) + tiny(5, warmup=True)
    windows += [window(300, 301, (16,)), window(302, 303, (4, 8))]
    entries = entries_of(windows)
    # Two sequences of 8 compute 16 tokens as one of 16 does, but at another length.
    assert [len(each.batches) for each in entries] == [50, 20, 10, 5, 1, 1]
    assert [batch.window for each in entries for batch in each.batches] == windows


def test_an_entry_knows_the_class_of_rest_before_it() -> None:
    assert entry(window(0, 1, rested_ms=100)).rest == 0
    assert entry(window(0, 1, rested_ms=300)).rest == 1
    assert entry(window(0, 1, rested_ms=20_000)).rest == 4


def test_of_an_entry_the_mean_part_of_its_batches_is_counted() -> None:
    batches = opened(window(0, 100), window(100, 200))
    assert batches.counted(0.15, Response()).tolist() == pytest.approx([1.0, 0.5])
    together = OpenBatches()
    together.add([entry(window(0, 100), window(100, 200))])
    assert together.counted(0.15, Response()).tolist() == pytest.approx([0.75])


def test_an_entry_took_as_long_as_its_batches_together() -> None:
    batches = opened(*tiny(MOST_APART + 1), window(500, 530, (64,)))
    assert batches.seconds == pytest.approx([0.001 * (MOST_APART + 1), 0.03])


def test_nothing_open_counts_nothing() -> None:
    batches = OpenBatches()
    assert batches.counted(1.0, Response()).tolist() == []
    assert batches.ended_before(1.0).tolist() == []
    assert batches.spans(0.0) == []
    batches.show_idle(0.0, 1.0, 5.0)


def test_an_entry_has_ended_when_its_last_batch_has() -> None:
    together = OpenBatches()
    together.add([entry(window(100, 200), window(0, 50)), entry(window(60, 90))])
    assert together.ended_before(0.1).tolist() == [False, True]
    assert together.ended_before(0.2).tolist() == [True, True]


def test_taking_leaves_the_others_in_their_order() -> None:
    first, second, third = windows = [window(0, 10), window(10, 20), window(20, 30)]
    batches = opened(*windows)
    (taken,) = batches.take(np.array([False, True, False]))
    assert taken.batches == [batch(second)]
    assert [each.batches for each in batches.entries] == [[batch(first)], [batch(third)]]
    assert len(batches) == 2
    assert batches.spans(0.015) == [(0.02, 0.03)]


def test_a_batch_is_shown_the_idle_draw_of_the_time_it_ran() -> None:
    batches = opened(window(0, 50), window(60, 80), window(500, 600))
    batches.show_idle(0.0, 0.1, 5.0)
    assert [entry.idle_share_j for entry in batches.entries] == [
        pytest.approx([2.5]), pytest.approx([1.0]), [0.0],
    ]  # fmt: skip
    batches.show_idle(0.1, 0.6, 25.0)
    assert batches.entries[2].idle_share_j == pytest.approx([5.0])


def test_batches_side_by_side_are_together_shown_no_more_than_there_was() -> None:
    batches = opened(window(0, 100), window(0, 100), window(50, 100))
    batches.show_idle(0.0, 0.1, 5.0)
    shown = [entry.idle_share_j[0] for entry in batches.entries]
    assert shown == pytest.approx([2.0, 2.0, 1.0])


def test_the_tail_of_a_settled_batch_is_what_the_counter_does_not_hold_yet() -> None:
    tails, response = Tails(), Response(lag_s=0.1)
    tails.add(entry(window(0, 100), window(100, 200)), joules=8.0)
    assert tails.left_j(0.1, response) == pytest.approx(8.0)
    assert tails.left_j(0.15, response) == pytest.approx(2.0 + 4.0)
    assert tails.left_j(0.25, response) == pytest.approx(2.0)
    assert tails.left_j(0.3, response) == pytest.approx(0.0, abs=1e-12)


def test_a_tail_is_forgotten_when_it_is_counted_or_cleared() -> None:
    tails, ramp = Tails(), Response(ramp_s=0.02)
    tails.add(entry(window(0, 100)), joules=1.0)
    assert 0 < tails.left_j(0.15, ramp) < 0.05
    assert tails.left_j(2.0, ramp) < 1e-6
    assert tails.left_j(0.0, ramp) == 0.0  # it would be 1, were it still remembered
    tails.add(entry(window(0, 100)), joules=1.0)
    tails.clear()
    assert tails.left_j(0.0, ramp) == 0.0
