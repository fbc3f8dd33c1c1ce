"""What a cost law says of a batch, and what is told from it before the meter has covered it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.windows import window
from wattserve_server.energy.costlaw import (
    FIRST_NODE,
    LEAST,
    NODES,
    SIZE,
    SMOOTH,
    SPLIT_RULES,
    Coefficients,
    LawView,
    correction_covariance,
    factors_of,
    foreseen_uj,
    of_rows,
    provisional_uj,
    split_weights,
)
from wattserve_server.energy.receipt import Window

BASE = (1.0, 0.25, 0.01, 0.0, 0.0)


def with_corrections(**at_node: float) -> Coefficients:
    """BASE, corrected at some powers of two: n16=0.5 is half as much again at 16 tokens."""
    corrections = [0.0] * NODES
    for name, value in at_node.items():
        corrections[int(name[1:]).bit_length() - 1 - FIRST_NODE] = value
    return Coefficients.of(BASE, BASE, corrections)


def test_the_smooth_part_is_fixed_per_token_and_per_square() -> None:
    assert Coefficients(1.0, 0.25, 0.01).cost_j(of_rows(40, 20)) == pytest.approx(1.0 + 10.0 + 8.0)


def test_a_correction_holds_at_its_power_of_two_and_fades_towards_the_next() -> None:
    law = with_corrections(n16=0.5)
    smooth = Coefficients(*BASE[:3])
    assert law.cost_j(of_rows(16, 4)) == pytest.approx(1.5 * smooth.cost_j(of_rows(16, 4)))
    assert law.cost_j(of_rows(8, 4)) == pytest.approx(smooth.cost_j(of_rows(8, 4)))
    assert law.cost_j(of_rows(32, 4)) == pytest.approx(smooth.cost_j(of_rows(32, 4)))
    share = np.log2(24) - 4  # of the way from 16 to 32, in doublings
    assert law.cost_j(of_rows(24, 4)) == pytest.approx(
        (1 + 0.5 * (1 - share)) * smooth.cost_j(of_rows(24, 4))
    )


@pytest.mark.parametrize(("tokens", "node"), [(1, 8), (8, 8), (16384, 16384), (10**6, 16384)])
def test_beyond_the_first_and_the_last_node_the_correction_stays(tokens: int, node: int) -> None:
    law = with_corrections(**{f"n{node}": 0.5})
    assert law.cost_j(of_rows(tokens, 1)) == pytest.approx(
        1.5 * Coefficients(*BASE[:3]).cost_j(of_rows(tokens, 1))
    )


def test_a_batch_never_costs_less_than_nothing() -> None:
    law = with_corrections(n16=-7.0)
    assert law.cost_j(of_rows(16, 4)) == pytest.approx(LEAST * (1.0 + 4.0 + 0.64))
    assert Coefficients(0.0, 0.0).cost_j(of_rows(16, 4)) == 0.0


def test_a_batch_without_tokens_has_its_fixed_cost() -> None:
    assert Coefficients(1.0, 0.25).cost_j(of_rows(0, 0)) == 1.0


def test_the_law_and_its_features_say_the_same() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        theta, base = rng.random(SIZE), rng.random(SMOOTH)
        theta[SMOOTH:] -= 0.5
        tokens, length = int(rng.integers(1, 60_000)), int(rng.integers(1, 4096))
        logits, read = int(rng.integers(0, 64)), int(rng.integers(0, 4096))
        features = of_rows(tokens, length)._replace(logits=logits, read=read)
        (row,) = factors_of(base, np.array([features]))
        said = float(row @ theta)
        law = Coefficients.of(theta[:SMOOTH].tolist(), base.tolist(), theta[SMOOTH:].tolist())
        least = LEAST * float(row[:SMOOTH] @ theta[:SMOOTH])
        assert law.cost_j(features) == pytest.approx(max(said, least))


def test_corrections_are_believed_alike_at_near_sizes_and_less_so_far_apart() -> None:
    covariance = correction_covariance(0.1)
    assert np.diagonal(covariance) == pytest.approx([0.01] * NODES)
    assert covariance[0, 1] > covariance[0, 5] > covariance[0, NODES - 1] > 0
    assert np.linalg.eigvalsh(covariance).min() > 0


VIEW = LawView({"fp32": Coefficients(0.002, 3e-5)}, after_rest=(0.0, 0.1, 0.2, 0.3, 0.5))


def test_provisional_shares_sum_to_what_the_law_says_of_the_batch() -> None:
    shares = provisional_uj(VIEW, window(0, 10, lengths=(10, 20, 30)))
    assert sum(share or 0 for share in shares) == 2000 + 30 * 90


@pytest.mark.parametrize(
    ("rested_ms", "more"), [(0, 0.0), (250, 0.0), (251, 0.1), (1001, 0.2), (4001, 0.3), (16_001, 0.5)]
)
def test_a_batch_after_a_rest_is_told_what_such_batches_cost_more(rested_ms: int, more: float) -> None:
    (share,) = provisional_uj(VIEW, window(0, 10, lengths=(100,), rested_ms=rested_ms))
    assert share == round((2000 + 30 * 100) * (1 + more))


@pytest.mark.parametrize(("for_time", "part"), [(-0.4, 0.7), (-1.1, LEAST), (-1.7, LEAST)])
def test_a_batch_costs_something_however_quick_its_variant_is_lately(for_time: float, part: float) -> None:
    """A pace learned as 1.5, of batches that take a tenth of what they should, says less than nothing."""
    view, batch = replace(VIEW, for_time={"fp32": for_time}), window(0, 10, lengths=(100,), rested_ms=251)
    assert provisional_uj(view, batch) == [round((2000 + 30 * 100) * part)]
    assert foreseen_uj(view, batch) == round((2000 + 30 * 100) * part)


def test_where_cpu_time_is_counted_a_batch_costs_what_it_took_of_that() -> None:
    view = replace(VIEW, cpu_second_j=8.0)
    assert provisional_uj(view, window(0, 10, lengths=(100,), rested_ms=4001, cpu_ms=2.5)) == [20_000]
    first = window(0, 10, lengths=(10, 30), variant="int8", first_run=True, cpu_ms=1.0)
    shares = provisional_uj(view, first)  # of a variant that was never heard
    assert sum(share or 0 for share in shares) == 8000


def test_where_cpu_time_is_counted_each_sequence_has_what_the_loop_took_for_it() -> None:
    view = replace(VIEW, cpu_second_j=8.0)
    batch = replace(window(0, 10, lengths=(100, 100), cpu_ms=60.0), own_ns=(50_000_000, 1_000_000))
    assert provisional_uj(view, batch) == [8 * (50_000 + 4_500), 8 * (1_000 + 4_500)]
    elsewhere = replace(view, cpu_second_j=None)  # a counter of something else is split by the law alone
    assert len(set(split_weights(elsewhere, batch))) == 1


def test_of_an_unknown_variant_there_is_no_provisional_figure() -> None:
    assert VIEW.laws.get("int8") is None
    assert provisional_uj(VIEW, window(0, 10, lengths=(10, 30), variant="int8")) == [None, None]


@pytest.mark.parametrize("rule", SPLIT_RULES)
def test_a_batch_of_which_no_law_is_known_can_be_split_all_the_same(rule: str) -> None:
    weights = split_weights(LawView({}, split_rule=rule), window(0, 10, lengths=(10, 30)))
    assert min(weights) > 0
    assert weights[0] < weights[1]


@pytest.mark.parametrize("rule", SPLIT_RULES)
def test_a_law_that_says_nothing_splits_as_one_that_is_not_known(rule: str) -> None:
    batch = window(0, 10, lengths=(10, 30))
    nothing = LawView({"fp32": Coefficients(0.0, 0.0)}, split_rule=rule)
    assert split_weights(nothing, batch) == split_weights(LawView({}, split_rule=rule), batch)


def test_the_view_splits_by_its_rule() -> None:
    batch = window(0, 10, lengths=(10, 30))
    assert provisional_uj(replace(VIEW, split_rule="tokens"), batch) == [950, 2850]
    assert provisional_uj(replace(VIEW, split_rule="stand-alone"), batch) == [1681, 2119]  # as 2300 to 2900
    # 1000 each of the fixed part, and of 2 x 30 tokens x 30 uJ a third: 600 and 1200.
    assert provisional_uj(VIEW, batch) == [1000 + 600, 1000 + 1200]


def packed(lengths: tuple[int, ...], rows: int, length: int) -> Window:
    return replace(window(0, 10, lengths=lengths), padded_length=length, packed_rows=rows)


def test_packed_sequences_pay_for_their_own_tokens_and_an_equal_part_of_what_is_fixed() -> None:
    # 2 rows of 32 tokens for 60 real ones: 2000 fixed and 64 x 30 uJ, of which 10, 20 and 30 parts of 60.
    shares = provisional_uj(VIEW, packed((10, 20, 30), rows=2, length=32))
    assert sum(share or 0 for share in shares) == 2000 + 64 * 30
    weights = split_weights(VIEW, packed((10, 20, 30), rows=2, length=32))
    assert weights == pytest.approx([2e-3 / 3 + 10 * 3e-5, 2e-3 / 3 + 20 * 3e-5, 2e-3 / 3 + 30 * 3e-5])


def test_a_packed_token_costs_the_same_whatever_sequence_it_belongs_to() -> None:
    square = LawView({"fp32": Coefficients(0.0, 3e-5, 1e-6)})
    short, long = split_weights(square, packed((8, 24), rows=1, length=32))
    assert long == pytest.approx(3 * short)  # each attends to the whole row


def test_computed_tokens_of_a_packed_batch_are_those_of_its_rows() -> None:
    assert packed((10, 20, 30), rows=2, length=32).computed_tokens == 64
    assert window(0, 10, lengths=(10, 20, 30)).computed_tokens == 90
