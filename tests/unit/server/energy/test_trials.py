"""Which batches a calibration runs, and for how long."""

import numpy as np
import pytest

from wattserve_server.energy.costlaw import SMOOTH, of_step
from wattserve_server.energy.trials import (
    LEAST_PAUSE_S,
    LEAST_TRIAL_S,
    TrialPlan,
    plan_step_trials,
    plan_trials,
    step_shapes,
)


def total_s(plan: TrialPlan) -> float:
    return len(plan.shapes) * (plan.trial_s + plan.pause_s)


def test_shapes_span_from_one_short_sequence_to_a_full_batch_and_the_longest_sequence() -> None:
    assert plan_trials(512, 32, 4096, 0.1, 60.0).shapes == (
        (1, 8), (1, 128), (6, 32), (32, 32), (32, 128), (1, 512),
    )  # fmt: skip


@pytest.mark.parametrize("max_tokens", [1, 5, 8, 40, 512, 8192])
@pytest.mark.parametrize(("max_sequences", "max_batch_tokens"), [(1, 16), (4, 40), (32, 256), (64, 65536)])
def test_every_shape_is_within_the_limits_and_runs_once(
    max_tokens: int, max_sequences: int, max_batch_tokens: int
) -> None:
    shapes = plan_trials(max_tokens, max_sequences, max_batch_tokens, 0.1, 4.0).shapes
    assert len(set(shapes)) == len(shapes)
    for count, length in shapes:
        assert 1 <= count <= max_sequences
        assert 1 <= length <= max_tokens
        assert count == 1 or count * length <= max_batch_tokens  # one sequence may always run
    assert (1, max_tokens) in shapes or max(length for _, length in shapes) == max_tokens


def test_with_room_for_it_there_are_three_sizes_or_more() -> None:
    sizes = {count * length for count, length in plan_trials(128, 16, 2048, None, 4.0).shapes}
    assert len(sizes) >= 3


@pytest.mark.parametrize("period_s", [None, 0.02, 0.1, 0.5])
@pytest.mark.parametrize("budget_s", [0.5, 2.0, 4.0, 60.0])
def test_the_budget_is_kept(period_s: float | None, budget_s: float) -> None:
    plan = plan_trials(512, 32, 4096, period_s, budget_s)
    assert total_s(plan) <= budget_s * (1 + 1e-9)
    assert plan.trial_s > 0
    assert plan.pause_s > 0


def test_a_continuous_sensor_needs_no_more_than_the_least() -> None:
    plan = plan_trials(512, 32, 4096, None, 60.0)
    assert (plan.trial_s, plan.pause_s) == (LEAST_TRIAL_S, LEAST_PAUSE_S)


def test_a_slower_sensor_is_given_more_time() -> None:
    plans = [plan_trials(512, 32, 4096, period_s, 60.0) for period_s in (0.02, 0.1, 0.3)]
    assert [plan.trial_s for plan in plans] == pytest.approx([0.15, 0.3, 0.9])
    assert [plan.pause_s for plan in plans] == pytest.approx([0.2, 0.5, 1.5])


def test_each_trial_and_each_rest_outlasts_the_mean_that_the_sensor_tells_whatever_the_budget() -> None:
    for budget_s in (0.5, 4.0, 60.0):
        plan = plan_trials(512, 32, 4096, 0.1, budget_s, averages_s=1.0)
        assert plan.trial_s > 1.0
        assert plan.pause_s > 1.0


@pytest.mark.parametrize(
    ("most_tokens", "members", "step_tokens", "cache_tokens"),
    [(1024, 32, 128, 14_000), (256, 16, 2048, 4096), (8, 1, 1, 8), (131_072, 256, 2048, 100_000)],
)
def test_steps_tell_the_features_of_a_law_apart_and_fit_the_cache(
    most_tokens: int, members: int, step_tokens: int, cache_tokens: int
) -> None:
    shapes = step_shapes(most_tokens, members, step_tokens, cache_tokens)
    for shape in shapes:
        assert 1 <= shape.sequences <= members
        assert shape.sequences * shape.tokens <= max(step_tokens, members)
        assert shape.cached + shape.tokens <= most_tokens
        assert shape.sequences * (shape.cached + shape.tokens) <= cache_tokens
    if min(most_tokens, step_tokens) > 8:
        features = np.array([of_step((shape.work,) * shape.sequences) for shape in shapes])
        assert np.linalg.matrix_rank(features / features.max(axis=0)) == SMOOTH


def test_a_plan_of_steps_keeps_to_its_budget() -> None:
    plan = plan_step_trials(1024, 32, 128, 14_000, 0.1, 4.0)
    assert plan.seconds == pytest.approx(4.0)
    assert not plan.shapes
    assert str(plan.steps[0]) == "1 prompts of 8 tokens behind 0"
