"""Every variant that a GPU runs natively, against fp32 on the CPU, and every quantised layer against itself
on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from tests.fixtures.models import save_classifier
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.activations import MIN_SAMPLES, measure_scales
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.fp8 import Fp8Linear, quantise_rows
from wattserve_server.engine.variants.int8 import (
    Int8Linear,
    StaticInt8Linear,
    to_levels,
)
from wattserve_server.engine.variants.llm_int8 import LLMInt8Linear
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.engine.variants.weight_only import WeightOnlyInt8Linear

pytestmark = pytest.mark.gpu
CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
SEQUENCES = [np.array([2, *[4 + n % 5] * n, 3], dtype=np.int64) for n in (1, 5, 17, 40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    return load_model(str(folder), task_named("sequence-classification"))


@pytest.fixture(scope="module")
def materials(model: LoadedModel) -> Materials:
    """With activation scales from repetitions of SEQUENCES."""
    batch = model.task.collate(SEQUENCES, model.facts)
    batches = [batch] * (MIN_SAMPLES // len(SEQUENCES))
    return Materials(model.weights, measure_scales(model.weights.module, batches, "SEQUENCES"))


def build(model: LoadedModel, materials: Materials, name: str, device: torch.device) -> Variant:
    return build_variant(model, Choice(name, KINDS[name], device), materials)


def answers(variant: Variant, sequences: list[NDArray[np.int64]]) -> NDArray[np.float32]:
    return variant.run(variant.prepare(sequences))


@pytest.mark.parametrize("name", list(KINDS))
def test_a_native_variant_answers_near_fp32_whatever_it_is_batched_with(
    model: LoadedModel, materials: Materials, name: str
) -> None:
    if not KINDS[name].support(CUDA).native:
        assert KINDS[name].support(CUDA).why
        return
    exact = answers(build(model, materials, "fp32", CPU), SEQUENCES)
    variant = build(model, materials, name, CUDA)
    together = answers(variant, SEQUENCES)
    alone = np.concatenate([answers(variant, [ids]) for ids in SEQUENCES])
    scale = np.abs(exact).max()
    away, apart = {"fp32": (1e-4, 1e-5), "tf32": (0.02, 0.005), "fp8": (0.2, 0.05)}.get(name, (0.1, 0.02))
    assert np.abs(together - exact).max() < away * scale
    assert np.abs(together - alone).max() < apart * scale


def some_static(layer: nn.Linear) -> StaticInt8Linear:
    made = StaticInt8Linear.of(layer)
    made.input_scale.fill_(0.02)
    return made


@pytest.mark.parametrize("rows", [1, 16, 17, 33])
@pytest.mark.parametrize(
    "make", [Int8Linear.of, some_static, LLMInt8Linear.of], ids=["int8", "int8-static", "llm-int8"]
)
def test_an_integer_product_on_a_gpu_is_that_of_a_cpu(
    make: Callable[[nn.Linear], nn.Module], rows: int
) -> None:
    layer, x = nn.Linear(64, 40), torch.randn(rows, 64)
    torch.testing.assert_close(make(layer).to(CUDA)(x.to(CUDA)).cpu(), make(layer)(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 33])
def test_outliers_on_a_gpu_are_multiplied_by_the_original_weights(rows: int) -> None:
    layer, x = nn.Linear(64, 40), torch.randn(rows, 64)
    x[0, 5], x[-1, 9] = 30.0, -12.0
    on_cpu, on_gpu = LLMInt8Linear.of(layer)(x), LLMInt8Linear.of(layer).to(CUDA)(x.to(CUDA)).cpu()
    # fp16 keeps 11 bits of the outliers' product, which is at most 30 * 1/8 here
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-3, atol=5e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weight_only_on_a_gpu_is_that_of_a_cpu(dtype: torch.dtype) -> None:
    layer, x = nn.Linear(64, 40), torch.randn(9, 64).to(dtype)
    exact = WeightOnlyInt8Linear.of(layer)(x.float())
    found = WeightOnlyInt8Linear.of(layer).to(CUDA)(x.to(CUDA))
    assert found.dtype == dtype
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(found.float().cpu(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_int8_on_a_gpu_gives_the_dtype_that_it_got(dtype: torch.dtype) -> None:
    layer, x = nn.Linear(64, 40), torch.randn(9, 64).to(dtype)
    found = Int8Linear.of(layer).to(CUDA)(x.to(CUDA))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float().cpu(), Int8Linear.of(layer)(x.float()), rtol=2e-3, atol=2e-3)


def test_levels_on_a_gpu_round_as_on_a_cpu() -> None:
    halves = torch.arange(-254, 255) / 2
    assert torch.equal(to_levels(halves.to(CUDA)).cpu(), torch.round(halves).to(torch.int8))


@pytest.mark.parametrize("rows", [1, 17, 64])
def test_fp8_on_a_gpu_is_the_product_of_its_e4m3_operands(rows: int) -> None:
    if not KINDS["fp8"].support(CUDA).native:
        assert KINDS["fp8"].support(CUDA).why
        return
    layer, x = nn.Linear(64, 48), torch.randn(rows, 64).bfloat16()
    weight, weight_scale = quantise_rows(layer.weight.detach())
    operand, scale = quantise_rows(x)
    exact = (operand.double() * scale.double()) @ (weight.double() * weight_scale.double()).t()
    exact += layer.bias.detach().bfloat16().double()
    found = Fp8Linear.of(layer).to(CUDA)(x.to(CUDA)).cpu().double()
    assert (found - exact).abs().max() < 2**-6 * exact.abs().max()


def _error_of_a_product() -> float:
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    found = (a.to(CUDA) @ b.to(CUDA)).cpu().double()
    return float((found - a.double() @ b.double()).abs().max())


def test_tf32_is_used_within_a_tf32_batch_and_nowhere_else() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    with KINDS["tf32"].running(CUDA):
        assert _error_of_a_product() > 5e-3  # TF32 keeps 10 bits of the mantissa
    assert _error_of_a_product() < 1e-3


def test_fp32_does_not_use_tf32_even_where_the_process_allows_it() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with KINDS["fp32"].running(CUDA):
            assert _error_of_a_product() < 1e-3
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
