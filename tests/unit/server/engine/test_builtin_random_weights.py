"""The models with random weights: the right size, the same every time, and no trace left behind."""

from __future__ import annotations

import pytest
import torch

from wattserve_server.engine.builtin.random_weights import RANDOM_MODELS, build_random_model
from wattserve_server.errors import ConfigError


@pytest.fixture(scope="module")
def distilbert() -> torch.nn.Module:
    return build_random_model("distilbert-base")


def test_distilbert_base_has_66955010_parameters(distilbert: torch.nn.Module) -> None:
    assert sum(parameter.numel() for parameter in distilbert.parameters()) == 66_955_010


def test_the_model_is_in_evaluation_mode(distilbert: torch.nn.Module) -> None:
    assert not any(module.training for module in distilbert.modules())


def test_the_model_answers_with_two_logits(distilbert: torch.nn.Module) -> None:
    with torch.inference_mode():
        logits = distilbert(input_ids=torch.tensor([[101, 2023, 102]])).logits
    assert logits.shape == (1, 2)
    assert torch.isfinite(logits).all()


def test_the_same_seed_gives_the_same_weights_and_leaves_the_callers_randomness(
    distilbert: torch.nn.Module,
) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    again = build_random_model("distilbert-base", seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)
    ours, theirs = distilbert.state_dict(), again.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_another_seed_gives_other_weights(distilbert: torch.nn.Module) -> None:
    other = build_random_model("distilbert-base", seed=1).state_dict()["classifier.weight"]
    assert not torch.equal(other, distilbert.state_dict()["classifier.weight"])


def test_resnet18_has_the_11689512_parameters_of_torchvisions() -> None:
    model = build_random_model("resnet18")
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_689_512


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    assert list(RANDOM_MODELS)[:3] == ["distilbert-base", "distilbert-tiny", "resnet18"]
    with pytest.raises(
        ConfigError,
        match=r"random:bert-huge; known: random:distilbert-base, random:distilbert-tiny, random:resnet18",
    ):
        build_random_model("bert-huge")
