"""What each precision really computes."""

import numpy as np
import pytest
import torch
from torch import nn

from wattserve_server.engine.variants.int8 import Int8Linear, quantise_linears
from wattserve_server.engine.variants.kinds import KINDS, choose_kinds
from wattserve_server.engine.variants.variant import parameter_bytes
from wattserve_server.errors import ConfigError

CPU = torch.device("cpu")


def linear(inputs: int = 64, outputs: int = 40, bias: bool = True) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Linear(inputs, outputs, bias=bias)


def int8_by_definition(x: torch.Tensor, layer: nn.Linear) -> np.ndarray:
    """Per-channel weights, per-token activations, exact integer products: in float64, element by element."""
    weight = layer.weight.detach().numpy()
    weight_scale = np.abs(weight).max(axis=1) / np.float32(127)
    quantised_weight = np.rint(weight / weight_scale[:, None]).astype(np.int64)
    rows = x.numpy()
    scale = np.abs(rows).max(axis=1, keepdims=True) * np.float32(1 / 127)
    quantised = np.rint(rows / scale).astype(np.int64)
    product = (quantised @ quantised_weight.T).astype(np.float64)
    bias = 0.0 if layer.bias is None else layer.bias.detach().numpy().astype(np.float64)
    return product * scale.astype(np.float64) * weight_scale.astype(np.float64) + bias


@pytest.mark.parametrize("bias", [True, False])
def test_int8_is_an_integer_product_of_quantised_operands(bias: bool) -> None:
    layer = linear(bias=bias)
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(1))
    result = Int8Linear(layer)(x).numpy()
    np.testing.assert_allclose(result, int8_by_definition(x, layer), rtol=2e-6, atol=2e-6)
    assert not np.allclose(result, layer(x).detach().numpy(), rtol=1e-6, atol=1e-6)


def test_int8_keeps_a_token_apart_from_its_batch_mates() -> None:
    layer = Int8Linear(linear())
    x = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(1))
    loud = 1000 * torch.ones(1, 5, 64)
    assert torch.equal(layer(torch.cat([x, loud]))[0], layer(x)[0])


def test_int8_survives_a_token_of_zeros() -> None:
    layer = linear()
    assert torch.allclose(Int8Linear(layer)(torch.zeros(2, 64)), layer.bias.detach().expand(2, -1))


def test_int8_weights_take_a_byte_each_and_a_scale_per_channel() -> None:
    layer = linear()
    assert parameter_bytes(layer) == 4 * (64 * 40 + 40)
    assert parameter_bytes(Int8Linear(layer)) == 64 * 40 + 4 * 40 + 4 * 40


def test_a_layer_whose_shape_the_integer_product_does_not_take_is_kept_and_named() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 3))
    done = quantise_linears(module)
    assert (done.replaced, done.kept) == (1, ("1",))
    assert type(module[0]) is Int8Linear
    assert type(module[1]) is nn.Linear


def test_every_refusal_says_why() -> None:
    for kind in KINDS.values():
        support = kind.support(CPU)
        assert support.why
        assert bool(support.kernels) == support.native


def test_the_default_is_every_native_variant_and_fp32_is_always_one() -> None:
    names = [kind.name for kind in choose_kinds(None, CPU)]
    assert names == [name for name, kind in KINDS.items() if kind.support(CPU).native]
    assert names[0] == "fp32"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("fp32,int3", "unknown variant 'int3'; known: fp32, bf16, fp16, int8"),
        ("fp32,fp32", "variant 'fp32' is listed twice"),
        ("", "unknown variant ''"),
    ],
)
def test_a_wrong_list_of_variants_is_refused(names: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_kinds(names, CPU)
    assert message in str(caught.value)


def test_a_listed_variant_that_is_not_native_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    with pytest.raises(ConfigError, match="variant 'fp16' cannot run on cpu: this CPU has neither"):
        choose_kinds("fp32,fp16", CPU)


def test_int8_refuses_a_model_that_it_would_leave_as_it_is() -> None:
    module = nn.Sequential(nn.Embedding(100, 16), nn.Conv1d(16, 16, 3), nn.Linear(16, 8))
    with pytest.raises(
        ConfigError, match="int8 would leave most of this model as it is: only 1 of its layers"
    ):
        KINDS["int8"].build(module, CPU)


def test_a_subclass_of_a_linear_layer_is_kept_and_named() -> None:
    class Gated(nn.Linear):
        pass

    done = quantise_linears(nn.Sequential(Gated(64, 64), nn.Linear(64, 64)))
    assert (done.replaced, done.kept) == (1, ("0",))
