"""Quantised layers do not hide a NaN or an infinity behind a finite answer, nor pass it on to batch mates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from wattserve_server.engine.exported import LAYERS
from wattserve_server.engine.variants.int8 import StaticInt8Linear, rounded
from wattserve_server.engine.variants.linears import QuantisedLinear
from wattserve_server.engine.variants.llm_int8 import LLMInt8Linear

FAULTS = {"NaN": float("nan"), "infinity": float("inf"), "minus infinity": -float("inf")}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BROKEN = 2


def made(layer_class: type[QuantisedLinear]) -> Callable[[nn.Linear], nn.Module]:
    def of(layer: nn.Linear) -> nn.Module:
        converted = layer_class.of(layer)
        if isinstance(converted, StaticInt8Linear):
            converted.input_scale.fill_(0.02)
        return converted

    return of


OF_A_LAYER = {name: made(layer_class) for name, layer_class in LAYERS.items()}
OF_A_LAYER["int8-simulated"] = lambda layer: rounded(layer, torch.float32)


def linear() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Linear(64, 48)


def tokens(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(dtype)


def with_fault(x: torch.Tensor, fault: str, feature: int = 7) -> torch.Tensor:
    broken = x.clone()
    broken[BROKEN, feature] = FAULTS[fault]
    return broken


def others(result: torch.Tensor) -> torch.Tensor:
    return torch.cat([result[:BROKEN], result[BROKEN + 1 :]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", OF_A_LAYER)
def test_a_token_that_is_not_finite_gives_an_answer_that_is_not_and_leaves_others_alone(
    name: str, fault: str, dtype: torch.dtype
) -> None:
    if name == "int8-simulated" and dtype != torch.float32:
        pytest.skip("a plain linear layer, of one dtype")
    layer, x = OF_A_LAYER[name](linear()), tokens(dtype)
    with torch.inference_mode():
        result, before = layer(with_fault(x, fault)), layer(x)
    assert not result[BROKEN].isfinite().any()
    assert before.isfinite().all()
    assert torch.equal(others(result), others(before))


@pytest.mark.parametrize("fault", FAULTS)
def test_int8_static_answers_nan_to_a_token_that_is_not_finite(fault: str) -> None:
    layer = OF_A_LAYER["int8-static"](linear())
    assert layer(with_fault(tokens(), fault))[BROKEN].isnan().all()


@pytest.mark.parametrize("fault", FAULTS)
def test_llm_int8_finds_the_outliers_of_others_in_the_feature_of_a_fault(fault: str) -> None:
    layer, x = LLMInt8Linear.of(linear()), tokens()
    x[0, 7] = 30.0
    result = layer(with_fault(x, fault, feature=7))
    assert not result[BROKEN].isfinite().any()
    torch.testing.assert_close(others(result), others(layer(x)), rtol=1e-6, atol=1e-6)
