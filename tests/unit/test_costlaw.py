"""Learning the cost of a batch from metered intervals."""

import random

import pytest

from tests.fixtures.windows import window
from wattserve_server.energy.costlaw import CostLaw, Deposit, LawView, provisional_uj, split_weights


def taught(noise: float, intervals: int = 400, seed: int = 1) -> CostLaw:
    """Two variants, one or two batches of each in every interval; costs 2000 + 30/token, 500 + 10/token."""
    law, rng = CostLaw(), random.Random(seed)
    for _ in range(intervals):
        deposits, energy = [], 0.0
        for variant, fixed, per_token in (("fp32", 2000.0, 30.0), ("bf16", 500.0, 10.0)):
            for _ in range(rng.randint(1, 2)):
                tokens = rng.choice([16, 64, 256, 1024])
                deposits.append(Deposit(variant, tokens, 1.0))
                energy += (fixed + per_token * tokens) * (1 + rng.gauss(0, noise))
        law.learn(deposits, energy, 0.1)
    return law


def test_the_law_of_each_variant_is_found_in_mixed_intervals() -> None:
    view = taught(noise=0.0).view
    for variant, fixed, per_token in (("fp32", 2000.0, 30.0), ("bf16", 500.0, 10.0)):
        coefficients = view.get(variant)
        assert coefficients is not None
        assert coefficients.cost_uj(256) == pytest.approx(fixed + per_token * 256, rel=0.02)
        assert coefficients.cost_uj(1024) == pytest.approx(fixed + per_token * 1024, rel=0.02)


def test_noise_of_four_percent_leaves_the_law_within_five() -> None:
    view = taught(noise=0.04).view
    fp32, bf16 = view.get("fp32"), view.get("bf16")
    assert fp32 is not None
    assert bf16 is not None
    assert fp32.cost_uj(256) == pytest.approx(9680, rel=0.05)
    assert bf16.cost_uj(256) == pytest.approx(3060, rel=0.05)
    assert 0.01 <= view.noise <= 0.1


def test_the_law_follows_a_step_in_the_cost() -> None:
    law = taught(noise=0.0)
    for _ in range(600):
        law.learn([Deposit("fp32", 256, 1.0)], 2 * 9680.0, 0.1)
    coefficients = law.view.get("fp32")
    assert coefficients is not None
    assert coefficients.cost_uj(256) == pytest.approx(2 * 9680.0, rel=0.05)


def test_coefficients_are_never_negative() -> None:
    law, rng = CostLaw(), random.Random(3)
    for _ in range(200):
        law.learn([Deposit("fp32", rng.choice([10, 1000]), rng.random())], rng.choice([0.0, 1e6]), 0.1)
        coefficients = law.view.get("fp32")
        assert coefficients is not None
        assert coefficients.fixed_uj >= 0
        assert coefficients.per_token_uj >= 0


def test_an_unknown_variant_has_no_provisional_figure() -> None:
    batch = window(0, 10, lengths=(10, 30))
    assert provisional_uj(LawView({}, 0.3), batch) == [None, None]
    assert split_weights(LawView({}, 0.3), batch) == pytest.approx([20.0, 40.0])


def test_provisional_shares_sum_to_what_the_law_says_of_the_batch() -> None:
    view = taught(noise=0.0).view
    batch = window(0, 10, lengths=(10, 20, 30))
    coefficients = view.get("fp32")
    assert coefficients is not None
    shares = provisional_uj(view, batch)
    assert sum(share or 0 for share in shares) == round(coefficients.cost_uj(90))
