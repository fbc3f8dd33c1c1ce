"""Every quantised layer against a slow reference in float64, written from its definition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from wattserve_server.engine.variants import int8, llm_int8
from wattserve_server.engine.variants.fp8 import Fp8Linear, quantise_rows
from wattserve_server.engine.variants.int8 import (
    Int8Linear,
    StaticInt8Linear,
    integer_product,
    ordered,
    ordered_product,
    rounded,
    to_levels,
)
from wattserve_server.engine.variants.llm_int8 import THRESHOLD, LLMInt8Linear
from wattserve_server.engine.variants.weight_only import (
    WeightOnlyInt4Linear,
    WeightOnlyInt8Linear,
)
from wattserve_server.engine.weights import tensor_bytes

Array = NDArray[np.float64]


def linear(inputs: int = 64, outputs: int = 40, bias: bool = True) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Linear(inputs, outputs, bias=bias)


def tokens(count: int = 9, inputs: int = 64, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed))


def static(layer: nn.Linear, scale: float) -> StaticInt8Linear:
    made = StaticInt8Linear.of(layer)
    made.input_scale.fill_(scale)
    return made


def some_static(layer: nn.Linear) -> StaticInt8Linear:
    return static(layer, 0.02)


OF_A_LAYER: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "int8": Int8Linear.of,
    "int8-static": some_static,
    "int8-weight-only": WeightOnlyInt8Linear.of,
    "int4-weight-only": WeightOnlyInt4Linear.of,
    "llm-int8": LLMInt8Linear.of,
    "fp8": Fp8Linear.of,
}


def weight_levels(layer: nn.Linear) -> tuple[Array, Array]:
    """Integers [out, in] and what one level is worth [out]."""
    weight = layer.weight.detach().numpy()
    scale = np.abs(weight).max(axis=1) / np.float32(127)
    return np.rint(weight / scale[:, None]).astype(np.float64), scale.astype(np.float64)


def bias_of(layer: nn.Linear) -> Array | float:
    return 0.0 if layer.bias is None else layer.bias.detach().numpy().astype(np.float64)


def int8_by_definition(x: torch.Tensor, layer: nn.Linear, most: int) -> Array:
    """Per-channel weights, per-token activations of so many levels, exact integer products."""
    levels, weight_scale = weight_levels(layer)
    rows = x.numpy()
    scale = np.abs(rows).max(axis=1, keepdims=True) * np.float32(1 / most)
    quantised = np.rint(rows / np.maximum(scale, np.float32(1e-30))).astype(np.float64)
    product: Array = (quantised @ levels.T) * scale.astype(np.float64) * weight_scale
    return product + bias_of(layer)


def static_by_definition(x: torch.Tensor, layer: nn.Linear, scale: float, most: int) -> Array:
    levels, weight_scale = weight_levels(layer)
    step = np.float32(scale) * np.float32(127 / most)
    quantised = np.clip(np.rint(x.numpy() / step), -most, most).astype(np.float64)
    return (quantised @ levels.T) * float(step) * weight_scale + bias_of(layer)


@pytest.fixture(autouse=True)
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The levels of activations, whatever CPU this is: 127, or 63 as where sums saturate."""
    levels: int = getattr(request, "param", 127)
    for module in (int8, llm_int8):
        monkeypatch.setattr(module, "activation_levels", lambda device: levels)
    return levels


both_levels = pytest.mark.parametrize("most", [127, 63], indirect=True)


def llm_int8_by_definition(x: torch.Tensor, layer: nn.Linear, most: int) -> Array:
    """Token by token: outliers by the original weights in fp16, the rest by int8 on its own scale."""
    result = []
    for row in x:
        outlying = row.abs() > THRESHOLD
        rest = torch.where(outlying, 0.0, row)
        outliers = row[outlying].half().numpy().astype(np.float64)
        original = layer.weight.detach()[:, outlying].half().numpy().astype(np.float64)
        result.append(int8_by_definition(rest[None], layer, most)[0] + original @ outliers)
    return np.stack(result)


@both_levels
@pytest.mark.parametrize("bias", [True, False])
def test_int8_is_an_integer_product_of_quantised_operands(bias: bool, most: int) -> None:
    layer, x = linear(bias=bias), tokens()
    made = Int8Linear.of(layer)
    result = made(x).numpy()
    np.testing.assert_allclose(result, int8_by_definition(x, layer, most), rtol=2e-6, atol=2e-6)
    if most == 63:
        made.weight = ordered(made.weight)
        np.testing.assert_allclose(made(x).numpy(), result, rtol=2e-6, atol=2e-6)
    assert not np.allclose(result, layer(x).detach().numpy(), rtol=1e-6, atol=1e-6)


@both_levels
@pytest.mark.parametrize("bias", [True, False])
def test_int8_static_is_an_integer_product_with_one_scale_for_all_tokens(bias: bool, most: int) -> None:
    layer, x = linear(bias=bias), tokens()
    result = static(layer, 0.02)(x).numpy()
    np.testing.assert_allclose(result, static_by_definition(x, layer, 0.02, most), rtol=2e-6, atol=2e-6)
    assert np.abs(x.numpy()).max() > 127 * 0.02  # some inputs do saturate


@pytest.mark.parametrize("features", [8, 64, 2000])
def test_onednns_product_is_exact_where_sums_of_two_are_largest(features: int) -> None:
    """By AVX2 it adds two products in 16 bits: (63 + 64) x 127 x 2 = 32,258 has room there."""
    rows = torch.tensor([-63, 63, 0], dtype=torch.int8)[:, None].repeat(1, features)
    weight = torch.tensor([-127, 127, 1], dtype=torch.int8)[:, None].repeat(1, features)
    weight[2, ::2] = -127
    exact = rows.long() @ weight.long().T
    scales = torch.full((3,), 0.5)
    assert torch.equal(ordered_product(rows, ordered(weight), scales) * 2, exact.float())
    assert torch.equal(integer_product(rows, weight).long(), exact)


def test_int8_static_takes_an_input_beyond_its_range_for_the_largest_level() -> None:
    layer = static(linear(), 0.01)
    edge, beyond = torch.full((1, 64), 1.27), torch.full((1, 64), 1e30)
    assert torch.equal(layer(beyond), layer(edge))
    assert torch.equal(layer(-beyond), layer(-edge))
    assert not torch.equal(layer(edge), layer(edge * 0.9))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-7), (torch.float16, 2**-10)]
)
def test_int8_weight_only_multiplies_unquantised_inputs_by_quantised_weights(
    bias: bool, dtype: torch.dtype, error: float
) -> None:
    layer, x = linear(bias=bias), tokens().to(dtype)
    levels, scale = weight_levels(layer)
    exact = x.double().numpy() @ (levels * scale[:, None]).T + bias_of(layer)
    result = WeightOnlyInt8Linear.of(layer)(x)
    assert result.dtype == dtype
    assert np.abs(result.detach().double().numpy() - exact).max() < error * np.abs(exact).max()


def test_int8_weight_only_stays_within_fp16_where_sums_of_levels_would_not() -> None:
    layer = linear(2048, 8)
    x = torch.full((1, 2048), 20.0) * layer.weight.detach()[0].sign()
    result = WeightOnlyInt8Linear.of(layer)(x.half())
    torch.testing.assert_close(result.float(), layer(x).detach(), rtol=2e-2, atol=2e-2)
    levels, _ = weight_levels(layer)
    assert np.abs(x.numpy() @ levels.T).max() > torch.finfo(torch.float16).max


@both_levels
@pytest.mark.parametrize("bias", [True, False])
def test_llm_int8_multiplies_outliers_by_the_original_weights_and_the_rest_in_int8(
    bias: bool, most: int
) -> None:
    layer, x = linear(bias=bias), tokens()
    x[2, 5], x[2, 40], x[7, 5], x[8, 63] = 30.0, -8.0, -70.0, 6.5
    result = LLMInt8Linear.of(layer)(x).numpy()
    np.testing.assert_allclose(result, llm_int8_by_definition(x, layer, most), rtol=5e-6, atol=5e-6)


def test_llm_int8_does_not_round_the_weights_of_an_outlier_to_int8_levels() -> None:
    layer = linear()
    x = torch.zeros(1, 64)
    x[0, 5] = 1000.0
    product = (LLMInt8Linear.of(layer)(x) - layer.bias)[0].detach()
    column = layer.weight.detach()[:, 5]
    torch.testing.assert_close(product, 1000 * column, rtol=1e-3, atol=1e-3)
    levels, scale = weight_levels(layer)
    dequantised = torch.from_numpy(1000 * levels[:, 5] * scale).float()
    assert (product - dequantised).abs().max() > 10 * (product - 1000 * column).abs().max()


def test_llm_int8_is_int8_for_all_tokens_but_those_with_outliers() -> None:
    layer, x = linear(), tokens()
    x[3, 7] = 6.1
    plain, with_outliers = Int8Linear.of(layer)(x), LLMInt8Linear.of(layer)(x)
    differs = (plain != with_outliers).any(dim=1)
    assert differs.nonzero().flatten().tolist() == [3]


def test_an_input_at_the_threshold_is_no_outlier() -> None:
    layer = linear()
    x = torch.full((1, 64), THRESHOLD)
    assert torch.equal(LLMInt8Linear.of(layer)(x), Int8Linear.of(layer)(x))


@pytest.mark.parametrize("bias", [True, False])
def test_fp8_multiplies_e4m3_operands_scaled_by_row(bias: bool) -> None:
    layer, x = linear(64, 48, bias), tokens().bfloat16()
    weight, weight_scale = quantise_rows(layer.weight.detach())
    rows, scale = quantise_rows(x)
    exact = (rows.double() * scale.double()) @ (weight.double() * weight_scale.double()).t()
    if bias:
        exact += layer.bias.detach().bfloat16().double()
    result = Fp8Linear.of(layer)(x)
    assert result.dtype == torch.bfloat16
    assert (result.double() - exact).abs().max() < 2**-8 * exact.abs().max()


def test_fp8_gives_each_row_the_whole_range_and_three_bits_of_mantissa() -> None:
    x = tokens() * torch.logspace(-6, 6, 9)[:, None]
    levels, scale = quantise_rows(x)
    assert (levels.float().abs().amax(dim=1) == 448).all()
    found, large = levels.double() * scale.double(), x.abs() > 1e-3 * x.abs().amax(dim=1, keepdim=True)
    assert ((found - x).abs()[large] <= 2**-4 * x.abs()[large] * (1 + 1e-5)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_int8_simulated_is_a_float_layer_whose_weights_are_int8_levels(dtype: torch.dtype) -> None:
    layer = linear()
    made = rounded(layer, dtype)
    levels, scale = weight_levels(layer)
    exact = torch.from_numpy(levels * scale[:, None])
    assert type(made) is nn.Linear
    assert (made.weight.dtype, made.bias.dtype) == (dtype, dtype)
    assert (made.weight.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
    assert len(torch.unique(made.weight[0])) <= 255


def test_levels_round_to_the_nearest_integer_and_halves_to_even() -> None:
    halves = torch.arange(-254, 255) / 2
    for length in (1, 7, 509):  # with and without what is left over from whole vectors
        part = halves[-length:]
        assert torch.equal(to_levels(part.clone()), torch.round(part).to(torch.int8))


@pytest.mark.parametrize("name", ["int8", "int8-static", "llm-int8", "fp8"])
def test_a_token_is_kept_apart_from_loud_batch_mates_to_the_last_bit(name: str) -> None:
    """Also for llm-int8 where the token has no outliers: those of others add products with zeros to it."""
    layer = OF_A_LAYER[name](linear(64, 48))
    x = tokens(5)[None]
    loud = 1000 * torch.ones(1, 5, 64)
    assert torch.equal(layer(torch.cat([x, loud]))[0], layer(x)[0])


def test_outliers_of_others_move_a_token_with_outliers_by_rounding_alone() -> None:
    """The fp32 product of outliers may be summed in another order when more columns are in it."""
    layer, x = LLMInt8Linear.of(linear()), tokens(1)
    x[0, ::9] = 20.0
    others = tokens(7, seed=2) * 10
    torch.testing.assert_close(layer(torch.cat([x, others]))[:1], layer(x), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", list(OF_A_LAYER))
def test_a_token_of_zeros_gives_the_bias(name: str) -> None:
    layer = linear(64, 48)
    result = OF_A_LAYER[name](layer)(torch.zeros(2, 64))
    torch.testing.assert_close(result, layer.bias.detach().expand(2, -1), rtol=2**-8, atol=0)


@pytest.mark.parametrize("name", list(OF_A_LAYER))
@pytest.mark.parametrize("bias", [True, False])
def test_an_empty_layer_filled_from_a_state_dict_is_the_same_to_the_last_bit(name: str, bias: bool) -> None:
    layer = OF_A_LAYER[name](linear(64, 48, bias))
    shell = type(layer)(64, 48, bias)
    state = layer.state_dict()
    shell.load_state_dict(state)
    assert set(state) >= {"weight", "weight_scale"}
    for key, tensor in shell.state_dict().items():
        assert tensor.dtype == state[key].dtype
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), state[key].reshape(-1).view(torch.uint8))
    x = tokens() * 10
    assert torch.equal(shell(x), layer(x))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("int8", 64 * 48 + 4 * 48 + 4 * 48),
        ("int8-static", 64 * 48 + 4 * 48 + 4 * 48 + 4),
        ("int8-weight-only", 64 * 48 + 4 * 48 + 4 * 48),
        ("int4-weight-only", 64 * 64 // 2 + 2 * 2 * 64 * 64 // 32 + 2 * 48),  # in whole blocks of 64
        ("llm-int8", 3 * 64 * 48 + 4 * 48 + 4 * 48),
        ("fp8", 64 * 48 + 4 * 48 + 2 * 48),
    ],
)
def test_a_layer_takes_the_bytes_that_its_kind_says(name: str, size: int) -> None:
    assert tensor_bytes(linear(64, 48)) == 4 * (64 * 48 + 48)
    assert tensor_bytes(OF_A_LAYER[name](linear(64, 48))) == size


@pytest.mark.parametrize("name", list(OF_A_LAYER))
def test_a_layer_takes_and_keeps_any_leading_dimensions(name: str) -> None:
    layer = OF_A_LAYER[name](linear(64, 48))
    x = tokens(12)
    result = layer(x.reshape(2, 3, 2, 64))
    assert result.shape == (2, 3, 2, 48)
    assert torch.equal(result.reshape(12, 48), layer(x))


@pytest.mark.parametrize("name", list(OF_A_LAYER))
def test_a_layer_of_no_token_gives_nothing(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        result = OF_A_LAYER[name](linear(64, 48))(torch.empty(1, 0, 64, dtype=dtype))
        assert (result.shape, result.dtype) == ((1, 0, 48), dtype)
