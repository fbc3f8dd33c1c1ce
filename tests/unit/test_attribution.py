"""Sharing an amount among sequences."""

from itertools import permutations

import pytest

from wattserve_server.energy.attribution import shapley_weights, split_exact


def test_shares_sum_to_the_amount_when_it_does_not_divide() -> None:
    assert split_exact(10, [1.0, 1.0, 1.0]) == [4, 3, 3]


def test_the_largest_remainder_gets_the_odd_microjoule() -> None:
    assert split_exact(10, [0.26, 0.74]) == [3, 7]
    assert split_exact(1, [1.0, 2.0]) == [0, 1]


def test_a_weight_of_zero_gets_nothing() -> None:
    assert split_exact(7, [0.0, 3.0, 0.0]) == [0, 7, 0]


def test_weights_that_are_all_zero_share_equally() -> None:
    assert split_exact(9, [0.0, 0.0, 0.0]) == [3, 3, 3]


def test_extreme_weights_do_not_overflow() -> None:
    assert split_exact(100, [1e308, 1e308]) == [50, 50]
    assert split_exact(100, [1e-320, 1e-320]) == [50, 50]


@pytest.mark.parametrize(
    ("amount", "weights"), [(-1, [1.0]), (1, []), (1, [float("nan")]), (1, [float("inf")]), (1, [-1.0])]
)
def test_what_cannot_be_shared_is_refused(amount: int, weights: list[float]) -> None:
    with pytest.raises(ValueError, match=r"cannot share|must be finite"):
        split_exact(amount, weights)


def _shapley_by_definition(lengths: list[int], fixed: float, per_token: float) -> list[float]:
    """The mean marginal cost over every order of arrival."""

    def cost(members: list[int]) -> float:
        if not members:
            return 0.0
        return fixed + per_token * len(members) * max(lengths[i] for i in members)

    totals = [0.0] * len(lengths)
    orders = list(permutations(range(len(lengths))))
    for order in orders:
        for position, index in enumerate(order):
            totals[index] += cost(list(order[: position + 1])) - cost(list(order[:position]))
    return [total / len(orders) for total in totals]


@pytest.mark.parametrize(
    "lengths", [[5], [3, 3], [1, 10], [2, 7, 7, 30], [9, 1, 4, 4, 100], [6, 5, 4, 3, 2, 1]]
)
def test_the_closed_form_is_the_shapley_value(lengths: list[int]) -> None:
    expected = _shapley_by_definition(lengths, fixed=11.0, per_token=0.5)
    assert shapley_weights(lengths, 11.0, 0.5) == pytest.approx(expected)


def test_equal_sequences_pay_the_same_and_padding_is_shared_by_both_sides() -> None:
    short, long = shapley_weights([10, 30], fixed=0.0, per_token=1.0)
    assert short + long == pytest.approx(60.0)
    assert short == pytest.approx(20.0)  # more than its own 10 tokens, less than the 30 it was padded to
    assert long == pytest.approx(40.0)
