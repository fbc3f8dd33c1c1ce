"""How the next token is chosen: greedily, drawn, cut and penalised; and what log-probabilities are told."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from wattserve_server.engine.generation.port import GREEDY, Sampling
from wattserve_server.engine.generation.sampling import LIKELY, choose, log_likelihoods, penalised, score

FLAT = np.zeros(8, np.float32)


def logits(size: int = 600, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def test_without_a_temperature_it_is_the_likeliest() -> None:
    assert choose(logits(), GREEDY, (), 5) == int(logits().argmax())


def test_what_is_drawn_depends_on_seed_and_position_alone() -> None:
    drawn = [choose(logits(), Sampling(1.0, seed=3), (), position) for position in range(50)]
    assert drawn == [choose(logits(), Sampling(1.0, seed=3), (), position) for position in range(50)]
    assert drawn != [choose(logits(), Sampling(1.0, seed=4), (), position) for position in range(50)]
    assert len(set(drawn)) > 5


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    seen = Counter(choose(row, Sampling(1.0, seed=seed), (), 0) for seed in range(4000))
    assert [seen[token] / 4000 for token in range(4)] == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)


@pytest.mark.parametrize(
    "how",
    [
        Sampling(0.7),
        Sampling(1.0, top_k=5),
        Sampling(1.3, top_p=0.6),
        Sampling(0.9, top_k=40, top_p=0.9),
        Sampling(5.0, top_p=0.98),  # more than LIKELY tokens are kept
        Sampling(1.0, top_k=10_000),
        Sampling(1.0, repetition_penalty=1.8, top_k=3),
    ],
)
def test_only_what_transformers_keeps_is_drawn(how: Sampling) -> None:
    row, seen = logits(), set(range(0, 600, 3))
    scores = torch.from_numpy(row.copy())[None]
    if how.repetition_penalty != 1.0:
        ids = torch.tensor(sorted(seen))[None]
        scores = RepetitionPenaltyLogitsProcessor(how.repetition_penalty)(ids, scores)
    scores = TemperatureLogitsWarper(how.temperature)(None, scores)
    if how.top_k:
        scores = TopKLogitsWarper(how.top_k)(None, scores)
    if how.top_p < 1:
        scores = TopPLogitsWarper(how.top_p)(None, scores)
    kept = set(torch.isfinite(scores[0]).nonzero().flatten().tolist())
    drawn = {
        choose(row, Sampling(*_but_seed(how), seed=seed), seen, position)
        for seed in range(40)
        for position in range(40)
    }
    assert drawn <= kept
    assert len(drawn) >= min(len(kept), 3)


def _but_seed(how: Sampling) -> tuple[float, int, float, float]:
    return how.temperature, how.top_k, how.top_p, how.repetition_penalty


def test_more_than_a_few_likely_tokens_are_told_apart_as_well() -> None:
    row = np.zeros(4 * LIKELY, np.float32)
    drawn = {choose(row, Sampling(1.0, top_p=0.9, seed=seed), (), 0) for seed in range(600)}
    assert len(drawn) > 1.2 * LIKELY


def test_a_penalty_is_transformers() -> None:
    row, seen = logits(), {1, 5, 7}
    expected = RepetitionPenaltyLogitsProcessor(1.3)(
        torch.tensor([[1, 5, 7]]), torch.from_numpy(row.copy())[None]
    )
    assert penalised(row, 1.3, seen) == pytest.approx(expected[0].numpy())
    assert (row == logits()).all()


def test_log_probabilities_are_the_models_own() -> None:
    row = logits()
    wanted = torch.from_numpy(row).double().log_softmax(dim=0)
    told = score(row, 17, 3)
    assert told.logprob == pytest.approx(float(wanted[17]))
    top = wanted.topk(3)
    assert [token for token, _ in told.best] == top.indices.tolist()
    assert [logprob for _, logprob in told.best] == pytest.approx(top.values.tolist())
    assert score(row, 17, 0).best == ()


def test_likelihoods_of_a_text_are_of_each_token_under_its_row() -> None:
    rows = np.stack([logits(seed=seed) for seed in range(4)])
    tokens = np.array([3, 1, 599, 20])
    wanted = torch.from_numpy(rows).log_softmax(dim=1)[torch.arange(4), torch.from_numpy(tokens)]
    assert log_likelihoods(rows, tokens) == pytest.approx(wanted.numpy(), abs=1e-5)
    assert len(log_likelihoods(rows[:0], tokens[:0])) == 0


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e30])
@pytest.mark.parametrize("penalty", [1e-45, 1e-6, 1e9])
@pytest.mark.filterwarnings("error")
def test_values_at_the_end_of_what_floats_hold_draw_a_token(temperature: float, penalty: float) -> None:
    how = Sampling(temperature, top_p=0.9, repetition_penalty=penalty, seed=2**63)
    assert 0 <= choose(logits(), how, {1, 2, 3}, 7) < 600
    if temperature < 1:  # what is drawn is then the likeliest
        assert choose(logits(), how, {1, 2, 3}, 7) == int(penalised(logits(), penalty, {1, 2, 3}).argmax())
