"""What is usual for a variant's batches, and how much longer each one took."""

from __future__ import annotations

import numpy as np
import pytest

from wattserve_server.energy.costlaw import Array, of_rows
from wattserve_server.energy.durations import FIRST, Durations, own_seconds

SIZES = (8, 64, 512)


def usual_s(tokens: int) -> float:
    return 0.002 + tokens / 50_000


def excess(
    durations: Durations, tokens: list[int], seconds: Array, is_trial: bool = False, has_rested: bool = False
) -> Array:
    features = np.array([of_rows(each, 8) for each in tokens])
    count = len(tokens)
    return durations.excess(
        ["fp32"] * count,
        features,
        seconds,
        np.ones(count),
        np.full(count, is_trial),
        np.full(count, has_rested),
    )


def calibrated() -> Durations:
    durations = Durations()
    for tokens in SIZES:
        assert excess(durations, [tokens] * 40, np.full(40, usual_s(tokens)), is_trial=True).max() == 0.0
    return durations


def test_time_that_windows_share_is_shared_equally() -> None:
    starts_s, ends_s = np.array([0.0, 1.0, 1.5, 5.0]), np.array([2.0, 3.0, 2.0, 6.0])
    assert own_seconds(starts_s, ends_s) == pytest.approx(
        [1 + 0.25 + 0.5 / 3, 0.25 + 0.5 / 3 + 1, 0.5 / 3, 1]
    )


def test_a_batch_is_held_against_what_its_size_takes() -> None:
    durations = calibrated()
    for tokens in (8, 30, 200, 512):
        took_s = np.array([usual_s(tokens), 1.5 * usual_s(tokens)])
        assert excess(durations, [tokens] * 2, took_s) == pytest.approx([0.0, 0.5], abs=0.03)


def test_what_is_usual_does_not_follow_a_busy_hour() -> None:
    durations = calibrated()
    for _ in range(50):
        late = excess(durations, [64] * 20, np.full(20, 1.6 * usual_s(64)))
    assert late == pytest.approx(0.6, abs=0.03)
    assert durations.levels["fp32"] == pytest.approx(0.6, abs=0.05)  # but it is known how long they take now


def test_without_trials_the_first_batches_say_what_is_usual() -> None:
    durations = Durations()
    count = int(FIRST)
    assert excess(durations, [64] * count, np.full(count, usual_s(64))).max() == pytest.approx(0.0, abs=1e-9)
    assert excess(durations, [64], np.array([2 * usual_s(64)])) == pytest.approx([1.0], abs=0.05)


@pytest.mark.parametrize("slower", [0.85, 1.15])
def test_a_step_of_all_batches_is_another_pace_and_told_once(slower: float) -> None:
    durations, rng = calibrated(), np.random.default_rng(1)

    def edge(slower: float) -> float:
        took_s = usual_s(64) * slower * np.exp(0.02 * rng.standard_normal(2))
        excess(durations, [64] * 2, took_s)
        return durations.take_change()

    assert [edge(1.0) for _ in range(50)] == [0.0] * 50
    assert edge(slower) == pytest.approx(np.log(slower), abs=0.04)
    assert [edge(slower) for _ in range(50)] == [0.0] * 50


def test_where_durations_wander_anyway_no_step_is_seen_in_them() -> None:
    durations, rng = calibrated(), np.random.default_rng(1)
    changes = []
    for _ in range(200):
        excess(durations, [64], usual_s(64) * np.exp(0.3 * rng.standard_normal(1)))
        changes.append(durations.take_change())
    assert np.count_nonzero(changes[50:]) <= 2


def test_a_cold_batch_is_no_sign_of_another_pace() -> None:
    durations = calibrated()
    excess(durations, [64] * 40, np.full(40, usual_s(64)))
    assert excess(durations, [64], np.array([1.3 * usual_s(64)]), has_rested=True) == pytest.approx(
        [0.3], abs=0.02
    )
    assert durations.take_change() == 0.0
