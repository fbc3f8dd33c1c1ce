"""The search ends, whatever it is told, and never claims what it did not see."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wattserve_loadgen.figures.search import RateSearch

verdicts = st.sampled_from([("met", ""), ("broken", "broken"), ("undecided", "open")])
answers = st.lists(st.tuples(verdicts, st.sampled_from([1.0, 1.0, 1.0, 0.9])), min_size=1, max_size=80)


@given(
    answers, st.floats(0.01, 1e6), st.floats(1.01, 2), st.integers(1, 60), st.integers(0, 4), st.booleans()
)
def test_a_search_ends_whatever_the_trials_say(
    answered: list[tuple[tuple[str, str], float]],
    start: float,
    ratio: float,
    most_trials: int,
    most_repeats: int,
    capped: bool,
) -> None:
    search = RateSearch(
        start,
        ratio=ratio,
        most_trials=most_trials,
        most_repeats=most_repeats,
        highest_rate=4 * start if capped else None,
    )
    trials = 0
    while (rate := search.next_rate()) is not None:
        says, share = answered[trials % len(answered)]
        assert start / 1001 < rate
        assert not capped or rate <= 4 * start
        assert 10 <= search.next_seconds(10) <= 10 * 2**most_repeats
        search.record(rate, rate * share, *says)
        trials += 1
        assert trials <= most_trials
    found = search.result()
    assert found.trials == trials
    met = {trial.rate_per_second for trial in search.trials if trial.met}
    assert found.rate_per_second is None or found.rate_per_second in met
    if found.rate_per_second is not None and found.broken_at is not None:
        assert found.rate_per_second < found.broken_at
    assert found.reason != "the search is not over"


@given(st.floats(1e-3, 1e6), st.floats(0.01, 1e6))
def test_a_server_with_one_limit_is_found_within_the_ratio(limit: float, start: float) -> None:
    search = RateSearch(start, most_trials=200, lowest_rate=1e-12)
    while (rate := search.next_rate()) is not None:
        met = rate <= limit
        search.record(rate, rate, "met" if met else "broken", "")
    found = search.result()
    assert found.rate_per_second is not None
    assert found.broken_at is not None
    assert found.rate_per_second <= limit < found.broken_at <= 1.05 * found.rate_per_second
