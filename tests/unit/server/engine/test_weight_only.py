"""Weights of 8 and of 4 bits: what is read as it is stored in decoding, and what is widened for prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.fixtures.impostors import made
from tests.fixtures.language_models import save_language_model
from tests.fixtures.models import save_classifier
from wattserve_server.engine.model import load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants import weight_only
from wattserve_server.engine.variants.catalogue import KINDS, choose
from wattserve_server.engine.variants.linears import QuantisedLinear
from wattserve_server.engine.variants.phase import decoding, decoding_rows
from wattserve_server.engine.variants.tuning import tune
from wattserve_server.engine.variants.verification import verify
from wattserve_server.engine.variants.weight_only import (
    GROUP,
    WeightOnlyInt4Linear,
    WeightOnlyInt8Linear,
    grouped_levels,
    packed,
    widened,
)
from wattserve_server.errors import ConfigError

CPU = torch.device("cpu")
HAS_INT4 = KINDS["int4-weight-only"].support(CPU).native
needs_int4 = pytest.mark.skipif(not HAS_INT4, reason="not native on this CPU")
INT8_PRODUCT, INT4_PRODUCT = "aten::_weight_int8pack_mm", "aten::_weight_int4pack_mm_for_cpu"


def linear(inputs: int = 64, outputs: int = 40) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Linear(inputs, outputs)


def tokens(count: int = 9, inputs: int = 64) -> torch.Tensor:
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(1)).bfloat16()


# The phase


def test_rows_decode_inside_the_block_alone() -> None:
    assert decoding_rows() == 0
    with decoding(3):
        with decoding(1):
            assert decoding_rows() == 1
        assert decoding_rows() == 3
    assert decoding_rows() == 0


# int8


@pytest.mark.parametrize("bias", [True, False])
def test_rows_that_decode_are_multiplied_by_weights_as_they_are_stored(bias: bool) -> None:
    layer = WeightOnlyInt8Linear.of(nn.Linear(64, 40, bias=bias))
    x = tokens()
    widened = layer(x)
    with decoding(len(x)), torch.autograd.profiler.profile() as recorded:
        read = layer(x)
    assert INT8_PRODUCT in {event.name for event in recorded.function_events}
    torch.testing.assert_close(read, widened, rtol=2**-6, atol=2**-8)


def test_rows_of_prompts_beside_rows_that_decode_are_computed_as_if_those_were_not_there() -> None:
    layer, x = WeightOnlyInt8Linear.of(linear()), tokens()
    with decoding(4):
        together, alone = layer(x[None])[0], layer(x[:4])
    assert torch.equal(together[:4], alone)
    assert torch.equal(together[4:], layer(x[4:]))


@pytest.mark.parametrize("make", [WeightOnlyInt8Linear.of, WeightOnlyInt4Linear.of])
def test_a_sequence_that_decodes_is_answered_alike_in_any_company(make: type[nn.Module]) -> None:
    layer, x = make(linear()), tokens(37)
    with decoding(37):
        every = layer(x)
    for count in (1, 2, 5, 16):
        with decoding(count):
            assert torch.equal(layer(x[:count]), every[:count])


def test_inputs_that_the_product_of_packed_int8_would_crash_on_are_widened() -> None:
    layer, x = WeightOnlyInt8Linear.of(linear(inputs=40)), tokens(inputs=40)
    with decoding(len(x)):
        assert torch.equal(layer(x), WeightOnlyInt8Linear.of(linear(inputs=40))(x))


@pytest.mark.parametrize("kind", [WeightOnlyInt8Linear, WeightOnlyInt4Linear])
def test_inputs_may_lie_apart_in_memory(kind: type[QuantisedLinear]) -> None:
    layer, x = kind.of(linear()), tokens()
    apart = torch.cat([x, x], dim=1)[:, : x.shape[1]]
    with decoding(len(x)):
        assert torch.equal(layer(apart), layer(x))


def test_weights_and_inputs_may_begin_anywhere_in_memory() -> None:
    """The product of packed int8 would crash: weights of a safetensors file begin at any multiple of 8."""
    layer, x = WeightOnlyInt8Linear.of(linear()), tokens()
    with decoding(len(x)):
        expected = layer(x)
        layer.weight = torch.cat([torch.zeros(8, dtype=torch.int8), layer.weight.flatten()])[8:].view(40, 64)
        behind = torch.cat([torch.zeros(3, dtype=x.dtype), x.flatten()])[3:].view(9, 64)
        assert layer.weight.data_ptr() % 16 == 8
        assert torch.equal(layer(behind), expected)
        assert layer.weight.data_ptr() % 16 == 0


# int4


@needs_int4
def test_levels_are_laid_out_as_torchs_own_packing_lays_them() -> None:
    levels = torch.randint(0, 16, (128, 96), generator=torch.Generator().manual_seed(2))
    own = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.int(), 1)
    assert torch.equal(packed(levels.to(torch.uint8)), own)


@pytest.mark.parametrize("bias", [True, False])
def test_int4_multiplies_inputs_by_the_nearest_of_16_levels_of_each_group(bias: bool) -> None:
    plain = nn.Linear(96, 72, bias=bias)
    x = tokens(inputs=96)
    weight = plain.weight.detach()
    levels, scales = grouped_levels(weight)
    worth, zero = (scales[..., index].double().t()[..., None] for index in (0, 1))
    rounded = ((levels.unflatten(1, (-1, GROUP)).double() - 8) * worth + zero).flatten(1)
    steps = worth.expand(-1, -1, GROUP).flatten(1)
    assert ((rounded - weight.double()).abs() <= 0.55 * steps).all()  # the zero itself is rounded
    exact = x.double() @ rounded.t() + (plain.bias.detach().double() if bias else 0)
    found = WeightOnlyInt4Linear.of(plain)(x)
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).abs().max() < 2**-7 * exact.abs().max()


@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT", torch.backends.cpu.get_cpu_capability()])
def test_int4_is_the_same_product_whatever_way_this_cpu_lays_its_own_weights_out(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's product takes weights that are laid out for AVX-512 for others on a CPU that has none."""
    plain, x = nn.Linear(96, 72), tokens(inputs=96)
    levels, scales = grouped_levels(nn.functional.pad(plain.weight.detach(), (0, 0, 0, 56)))
    worth, zero = (scales[..., index].float().t()[..., None] for index in (0, 1))
    weight = ((levels.unflatten(1, (-1, GROUP)).float() - 8) * worth + zero).bfloat16().flatten(1)
    assert torch.equal(widened(packed(levels), scales), weight)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    exact = x.double() @ weight[:72].double().t() + plain.bias.detach().double()
    found = WeightOnlyInt4Linear.of(plain)(x)
    assert (found.double() - exact).abs().max() < 2**-6 * exact.abs().max()


def test_a_group_of_one_value_is_that_value() -> None:
    levels, scales = grouped_levels(torch.full((1, GROUP), 0.25))
    assert (levels == 8).all()
    assert scales.tolist() == [[[0.0, 0.25]]]


def test_int4_is_refused_where_torch_lays_its_weights_out_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_only, "bf16_support", lambda device: KINDS["fp32"].support(device))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    with pytest.raises(ConfigError, match="cannot run on cpu: torch was told not to use AVX-512"):
        choose("int4-weight-only", CPU)


@needs_int4
def test_int4_is_offered_unasked_only_where_tokens_come_one_by_one() -> None:
    assert "int4-weight-only" in [choice.name for choice in choose(None, CPU, generates=True)]
    assert "int4-weight-only" not in [choice.name for choice in choose(None, CPU)]
    assert [choice.name for choice in choose("int4-weight-only", CPU)] == ["int4-weight-only"]


# The proof


@pytest.mark.parametrize(
    ("name", "for_prompts", "in_decoding"),
    [
        ("fp32", "aten::addmm", "aten::addmm"),
        ("int8-weight-only", "aten::mm", INT8_PRODUCT),
        ("int4-weight-only", INT4_PRODUCT, INT4_PRODUCT),
    ],
)
def test_a_language_model_is_proved_in_both_phases(
    tmp_path: Path, name: str, for_prompts: str, in_decoding: str
) -> None:
    support = KINDS[name].support(CPU)
    if not support.native or (name != "fp32" and support.dtype != "bf16"):
        pytest.skip("not native on this CPU")
    model = load_model(str(save_language_model(tmp_path / "m", "gpt2")), task_named("text-generation"))
    prompts, decoded = verify(made(model, KINDS[name])).words.split("; decoding: ")
    assert prompts.startswith("prompts: profiled: 100 %")
    assert for_prompts in prompts
    assert in_decoding in decoded
    assert ("torch's own code" in decoded) == (in_decoding in (INT8_PRODUCT, INT4_PRODUCT))


def test_what_multiplies_otherwise_in_decoding_than_it_declares_is_refused(tmp_path: Path) -> None:
    class Lazy(WeightOnlyInt8Linear):
        def _packed(self, rows: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(rows.float(), self.weight.float()).to(rows.dtype)

    model = load_model(str(save_language_model(tmp_path / "m", "gpt2")), task_named("text-generation"))
    variant = made(model, KINDS["int8-weight-only"])
    if variant.dtype != "bf16":
        pytest.skip("this CPU widens to fp32 in both phases")
    for part in variant.built.module.modules():
        if isinstance(part, WeightOnlyInt8Linear):
            part.__class__ = Lazy
    with pytest.raises(ConfigError, match=r"declares bf16 products, but decoding: .* ran in fp32"):
        verify(variant)


@pytest.mark.parametrize("tuned", [False, True])
def test_a_head_that_a_kind_leaves_as_it_is_does_not_count_against_it(tmp_path: Path, tuned: bool) -> None:
    """Its 300 outputs are no multiple of 8: in decoding it is a third of the work, in fp32."""
    if not KINDS["int8"].support(CPU).native:
        pytest.skip("not native on this CPU")
    model = load_model(str(save_language_model(tmp_path / "m", "gpt2")), task_named("text-generation"))
    variant = made(model, KINDS["int8"])
    assert variant.built.kept == ("lm_head",)
    if tuned:
        tune(variant)
        assert "1 linear layers by oneDNN" in variant.tuning
    words = verify(variant).words
    assert "of all multiplication by weights, its kept layers, in fp32" in words


def test_what_does_not_generate_is_proved_once(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "tiny")
    words = verify(made(load_model(str(folder), task_named("sequence-classification")), KINDS["fp32"])).words
    assert words.startswith("profiled: ")
    assert "decoding" not in words
