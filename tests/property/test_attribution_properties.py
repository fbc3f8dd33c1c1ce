"""What must hold for any amount and any batch."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wattserve_server.energy.attribution import shapley_weights, split_exact

weights = st.lists(st.floats(0, 1e300, allow_nan=False), min_size=1, max_size=64)


@given(st.integers(0, 10**18), weights)
def test_shares_sum_exactly_and_are_never_negative(amount: int, parts: list[float]) -> None:
    shares = split_exact(amount, parts)
    assert sum(shares) == amount
    assert min(shares) >= 0


@given(st.integers(0, 10**12), weights)
def test_a_share_is_within_one_unit_of_its_exact_value(amount: int, parts: list[float]) -> None:
    whole = math.fsum(part / max(parts) for part in parts) if max(parts) else 0.0
    for part, share in zip(parts, split_exact(amount, parts), strict=True):
        exact = amount * (part / max(parts)) / whole if whole else amount / len(parts)
        assert abs(share - exact) <= 1 + amount * 1e-12


own_costs = st.lists(st.floats(0, 1e6), min_size=1, max_size=64)


@given(own_costs, st.floats(0, 1e6))
def test_shapley_values_sum_to_the_cost_of_the_batch(own: list[float], fixed: float) -> None:
    values = shapley_weights(own, fixed)
    assert math.isclose(math.fsum(values), fixed + len(own) * max(own), rel_tol=1e-9, abs_tol=1e-9)
    assert min(values) >= 0


@given(own_costs, st.floats(0, 1e6))
def test_a_sequence_that_costs_more_alone_never_pays_less(own: list[float], fixed: float) -> None:
    paid = sorted(zip(own, shapley_weights(own, fixed), strict=True))
    for (_, less), (_, more) in pairwise(paid):
        assert more >= less * (1 - 1e-9) - 1e-9
