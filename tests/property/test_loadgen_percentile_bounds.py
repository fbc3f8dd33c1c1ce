"""Percentiles of any sample."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wattserve_common.stats import SAMPLE_FLOORS, effective_samples, nearest_rank
from wattserve_loadgen.figures.percentiles import lower_rank, percentiles_of, quantile_of, upper_rank

percents = st.sampled_from(list(SAMPLE_FLOORS))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 10**15), max_size=1_500), percents)
def test_bounds_are_values_that_were_seen_on_their_sides(values: list[int], percent: float) -> None:
    sample = np.array(values, dtype=np.int64)
    found = quantile_of(sample, effective_samples(sample), percent)
    seen = [one for one in (found.low_ns, found.value_ns, found.high_ns) if one is not None]
    assert seen == sorted(seen)
    assert set(seen) <= set(values)


@given(st.integers(1, 200_000), st.floats(0, 1), percents)
def test_ranks_lie_in_the_sample_and_less_independence_moves_them_apart(
    count: int, share: float, percent: float
) -> None:
    upper, lower = upper_rank(count, count, percent), lower_rank(count, count, percent)
    wide, deep = upper_rank(count, share * count, percent), lower_rank(count, share * count, percent)
    rank = nearest_rank(count, percent)
    assert upper is None or rank <= upper <= count
    assert lower is None or 1 <= lower <= rank
    assert wide is None or (upper is not None and upper <= wide <= count)
    assert deep is None or (lower is not None and 1 <= deep <= lower)


@given(st.lists(st.integers(0, 10**12), min_size=11, max_size=300), st.integers(2, 1_000))
def test_a_change_of_unit_changes_every_figure_alike(values: list[int], factor: int) -> None:
    sample = np.array(values, dtype=np.int64)
    one, other = (
        percentiles_of(sample, float(len(values))),
        percentiles_of(sample * factor, float(len(values))),
    )
    assert other.p50_ns == factor * (one.p50_ns or 0)
    assert other.p50_bound_ns == factor * (one.p50_bound_ns or 0)
