"""Whether a variant that is not what it says is found out, and one that is passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.fixtures.impostors import declaring, fake_quantised, in_fp32, made
from tests.fixtures.models import save_bert_classifier, save_classifier, save_encoder, save_vit
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import Built, Kind, Materials
from wattserve_server.engine.variants.profile import Fp32Flags, Profile
from wattserve_server.engine.variants.trace import MatrixCall
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.variants.verification import Verification, judge, verify
from wattserve_server.errors import ConfigError

CPU = torch.device("cpu")
CLASSIFICATION = "sequence-classification"
MODELS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "tiny": (save_classifier, CLASSIFICATION),
    "bert": (save_bert_classifier, CLASSIFICATION),
    "encoder": (save_encoder, "feature-extraction"),
    "vit": (save_vit, "image-classification"),
}
NATIVE = [name for name, kind in KINDS.items() if kind.support(CPU).native]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: load_model(str(save(folder / name)), task_named(task)) for name, (save, task) in MODELS.items()
    }


# Impostors


def test_fake_quantised_weights_are_not_served_as_int8(models: dict[str, LoadedModel]) -> None:
    impostor = made(models["tiny"], declaring("int8", fake_quantised))
    with pytest.raises(ConfigError) as caught:
        verify(impostor)
    assert str(caught.value) == (
        "variant 'int8' declares int8 products, but 100 % of its linear layers' work ran in fp32 "
        "(aten::addmm): refused; --no-verify serves it anyway, and every receipt then says unverified"
    )


def test_fake_quantised_weights_pass_as_a_proxy_that_declares_its_fp32_products(
    models: dict[str, LoadedModel],
) -> None:
    honest = declaring("fp32", fake_quantised, "int8-simulated", "fp32, rounded", proxy="int8 simulated")
    assert verify(made(models["tiny"], honest)).verified


@pytest.mark.parametrize("operands", ["fp16", "bf16", "tf32", "fp8"])
def test_a_kind_that_declares_less_than_the_fp32_it_runs_is_refused(
    models: dict[str, LoadedModel], operands: str
) -> None:
    with pytest.raises(ConfigError, match=rf"declares {operands} products, but 100 % of .* ran in fp32"):
        verify(made(models["bert"], declaring(operands, in_fp32)))


def test_a_kind_that_declares_fp32_and_runs_int8_is_refused(models: dict[str, LoadedModel]) -> None:
    def quantised(materials: Materials, device: torch.device) -> Built:
        return KINDS["int8"].build(materials, device)

    with pytest.raises(ConfigError, match=r"declares fp32 products, but 100 % of .* ran in int8"):
        verify(made(models["tiny"], declaring("fp32", quantised)))


def test_layers_that_multiply_in_a_way_nobody_knows_are_refused(models: dict[str, LoadedModel]) -> None:
    class Opaque(nn.Module):
        weight: torch.Tensor

        def __init__(self, linear: nn.Linear) -> None:
            super().__init__()
            self.register_buffer("weight", linear.weight.detach().clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.unsqueeze(-2) * self.weight).sum(-1)

    def opaque(materials: Materials, device: torch.device) -> Built:
        def replaced(path: str, part: nn.Module) -> nn.Module | None:
            return Opaque(part) if type(part) is nn.Linear and "ffn" in path else None

        paths = linear_paths(materials.weights.module)
        return Built(materials.weights.copy(device, torch.float32, replaced), "all layers", paths)

    with pytest.raises(
        ConfigError, match=r"4 of the 14 linear layers that ran, such as .*ffn.*, multiplied in"
    ):
        verify(made(models["tiny"], declaring("fp32", opaque)))


def test_a_variant_whose_batch_fails_is_refused_with_the_reason(models: dict[str, LoadedModel]) -> None:
    def broken(materials: Materials, device: torch.device) -> Built:
        module = materials.weights.copy(device, torch.float32)
        module.classifier = nn.Linear(3, 3)
        return Built(module, "all layers", linear_paths(module))

    with pytest.raises(
        ConfigError, match="failed the batch by which it was to be verified: RuntimeError: mat1"
    ):
        verify(made(models["tiny"], declaring("fp32", broken)))
    assert not torch._C._autograd._profiler_enabled()


# The genuine ones


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", NATIVE)
def test_every_native_kind_is_what_it_says(models: dict[str, LoadedModel], kind: str, model: str) -> None:
    verification = verify(made(models[model], KINDS[kind]))
    assert verification.verified
    operands = KINDS[kind].support(CPU).operands
    assert re.match(rf"profiled: \d+(\.\d+)? % of .* as {operands} x {operands} \(", verification.words)


def test_a_variant_answers_alike_before_and_after_it_is_verified(models: dict[str, LoadedModel]) -> None:
    variant = made(models["tiny"], KINDS["fp32"])
    facts = variant.model.facts
    inputs = variant.prepare([variant.model.task.example(facts, variant.model.tokenizer, 9, 3)])
    before = variant.run(inputs)
    verify(variant)
    assert (variant.run(inputs) == before).all()


# Judging what was seen


def call(
    operands: str, macs: int, layer: str = "x", op: str = "aten::mm", kernels: tuple[str, ...] = ()
) -> MatrixCall:
    return MatrixCall(op, (operands, operands), macs, 1.0, layer, True, kernels)


def holding(weights: str) -> nn.Module:
    """A layer that stores its weights as such a kind does."""
    dtypes = {"int8": torch.int8, "fp16": torch.float16, "bf16": torch.bfloat16}
    layer = nn.Module()
    for name in weights.split(" and "):
        layer.register_buffer(name, torch.zeros(2, 2, dtype=dtypes.get(name, torch.float32)))
    return layer


def judged(
    kind: Kind,
    calls: list[MatrixCall],
    kept: tuple[str, ...] = (),
    device: str = "cpu",
    flags: Fp32Flags | None = None,
) -> Verification:
    module = nn.ModuleDict({"x": holding(kind.weights)})
    built = Built(module, "", ("x",), kept)
    model: Any = None  # not looked at
    variant = Variant(kind.name, kind, CPU, "fp32", "", built, model, 0)
    layers = frozenset(each.layer for each in calls if each.layer)
    return judge(variant, Profile(device, tuple(calls), layers, flags=flags or Fp32Flags()))


INT8 = declaring("int8", in_fp32)


def test_nine_tenths_of_the_work_are_enough_and_less_is_not() -> None:
    assert judged(INT8, [call("int8", 90), call("fp32", 10)]).verified
    short = judged(INT8, [call("int8", 89), call("fp32", 11)])
    assert not short.verified
    assert judged(INT8, [call("int8", 9999), call("fp32", 1)]).words.startswith("profiled: 99.9 % of")
    assert short.words == "11 % of its linear layers' work ran in fp32 (aten::mm)"


def test_outliers_are_granted_only_to_a_kind_that_stores_weights_for_them() -> None:
    calls = [call("int8", 60), call("fp16", 40)]
    assert judged(declaring("int8", in_fp32, "llm-int8", "int8 and fp16"), calls).verified
    assert not judged(INT8, calls).verified


def test_not_even_a_mixed_kind_may_do_the_bulk_in_something_else() -> None:
    calls = [call("int8", 40), call("fp16", 60)]
    assert not judged(declaring("int8", in_fp32, "llm-int8", "int8 and fp16"), calls).verified


def test_a_layer_that_is_openly_kept_does_not_count_against_the_converted_ones() -> None:
    calls = [call("int8", 70), call("fp32", 30, "head")]
    kept = judged(INT8, calls, kept=("head",))
    assert kept.verified
    assert kept.words.endswith("30 % of all multiplication by weights, its kept layers, in fp32")
    assert not judged(INT8, calls).verified


def test_a_kind_whose_kept_layers_and_convolutions_do_most_of_the_work_is_refused() -> None:
    convolution = call("fp32", 60, "", "aten::convolution")
    assert judged(INT8, [call("int8", 40)]).verified
    refused = judged(INT8, [call("int8", 40), convolution])
    assert refused.words.startswith(
        "60 % of its work by weights, kept layers and convolutions included, ran in fp32"
    )


def test_convolutions_must_be_in_a_floating_point_kinds_precision() -> None:
    calls = [call("bf16", 60), call("fp32", 40, "", "aten::convolution")]
    assert not judged(declaring("bf16", in_fp32), calls).verified


def test_products_outside_of_any_layer_count_too() -> None:
    assert not judged(INT8, [call("int8", 80), call("fp32", 20, layer="")]).verified


def test_attention_does_not_count() -> None:
    attention = MatrixCall("aten::bmm", ("fp32", "fp32"), 10**9, 1.0, "", False)
    assert judged(INT8, [call("int8", 1), attention]).verified


def test_a_profile_without_any_product_proves_nothing() -> None:
    assert not judged(INT8, []).verified


SIMT, TF32 = "ampere_sgemm_128x64_tn", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4"


@pytest.mark.parametrize(
    ("operands", "kernel", "flag", "verified"),
    [
        ("fp32", SIMT, "ieee", True),
        ("fp32", TF32, "ieee", False),
        ("tf32", TF32, "tf32", True),
        ("tf32", SIMT, "tf32", False),
        ("fp32", "a_name_that_tells_nothing", "tf32", False),
        ("tf32", "a_name_that_tells_nothing", "tf32", True),
    ],
)
def test_on_a_gpu_tf32_does_not_pass_for_fp32_nor_fp32_for_tf32(
    operands: str, kernel: str, flag: str, verified: bool
) -> None:
    calls = [call("fp32", 1000, kernels=(kernel,))]
    found = judged(declaring(operands, in_fp32), calls, device="cuda", flags=Fp32Flags(flag, flag))
    assert found.verified == verified


def test_the_words_name_operands_operator_kernel_and_tensor_cores() -> None:
    kernel = "cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16"
    calls = [call("int8", 12_300_000, op="aten::_int_mm", kernels=(kernel,))]
    assert judged(INT8, calls, device="cuda").words == (
        "profiled: 100 % of 12.3 M multiply-accumulates of linear layers as int8 x int8 "
        f"(aten::_int_mm; {kernel}; Tensor Cores by kernel name in 1 of 1 products)"
    )


@pytest.mark.parametrize(
    ("operands", "flag", "words"),
    [
        ("fp32", "ieee", "(aten::mm; TF32 off by torch's flag)"),
        ("tf32", "tf32", "(aten::mm; TF32 on by torch's flag)"),
    ],
)
def test_without_kernels_the_words_say_what_the_flag_was(operands: str, flag: str, words: str) -> None:
    found = judged(
        declaring(operands, in_fp32), [call("fp32", 9)], device="cuda", flags=Fp32Flags(flag, flag)
    )
    assert found.words.endswith(words)
