"""Sharing an amount among sequences."""

from itertools import permutations

import pytest

from wattserve_server.energy.attribution import shapley_weights, split_exact
from wattserve_server.energy.costlaw import SPLIT_RULES, Coefficients


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


def _shapley_by_definition(own: list[float], fixed: float) -> list[float]:
    """The mean marginal cost over every order of arrival."""

    def cost(members: list[int]) -> float:
        return fixed + len(members) * max(own[i] for i in members) if members else 0.0

    totals = [0.0] * len(own)
    orders = list(permutations(range(len(own))))
    for order in orders:
        for position, index in enumerate(order):
            totals[index] += cost(list(order[: position + 1])) - cost(list(order[:position]))
    return [total / len(orders) for total in totals]


@pytest.mark.parametrize(
    "own",
    [[5.0], [3.0, 3.0], [1.0, 10.0], [2.0, 7.0, 7.0, 30.0], [9.0, 1.0, 4.0, 4.0, 100.0],
     [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [0.0, 0.0, 2.0], [0.25, 1e6, 3.0]],
)  # fmt: skip
@pytest.mark.parametrize("fixed", [0.0, 11.0])
def test_the_closed_form_is_the_shapley_value(own: list[float], fixed: float) -> None:
    expected = _shapley_by_definition(own, fixed)
    assert shapley_weights(own, fixed) == pytest.approx(expected)


def test_shapley_values_sum_to_what_the_padded_batch_costs() -> None:
    assert sum(shapley_weights([1.0, 2.0, 4.0], 7.0)) == pytest.approx(7.0 + 3 * 4.0)


def test_equal_sequences_pay_the_same_and_padding_is_shared_by_both_sides() -> None:
    assert shapley_weights([5.0, 5.0], fixed=4.0) == pytest.approx([7.0, 7.0])
    # The short one pays more than the 10 of its own length and less than the 30 that it was padded to.
    assert shapley_weights([10.0, 30.0], fixed=0.0) == pytest.approx([20.0, 40.0])


LAW = Coefficients(fixed_j=6.0, per_token_j=1.0, per_square_j=0.1)


def test_the_three_rules_of_splitting_a_batch_differ_in_who_pays_for_padding() -> None:
    # Own costs 10 + 10 = 20 and 20 + 40 = 60 J; fixed 6 J.
    assert list(SPLIT_RULES) == ["shapley", "stand-alone", "tokens"]
    assert SPLIT_RULES["shapley"](LAW, (10, 20)) == pytest.approx([3 + 40, 3 + 80])
    assert SPLIT_RULES["stand-alone"](LAW, (10, 20)) == pytest.approx([26.0, 66.0])
    assert SPLIT_RULES["tokens"](LAW, (10, 20)) == [10.0, 20.0]


@pytest.mark.parametrize("rule", SPLIT_RULES)
def test_under_every_rule_the_order_of_the_sequences_does_not_matter(rule: str) -> None:
    lengths = (3, 50, 7, 7, 21)
    forwards = SPLIT_RULES[rule](LAW, lengths)
    assert SPLIT_RULES[rule](LAW, lengths[::-1]) == pytest.approx(forwards[::-1])
    assert forwards[2] == pytest.approx(forwards[3])
