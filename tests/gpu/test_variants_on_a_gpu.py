"""Every variant that a GPU runs natively, against fp32 on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.fixtures.models import save_classifier
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.int8 import Int8Linear
from wattserve_server.engine.variants.kinds import KINDS
from wattserve_server.engine.variants.variant import build_variant

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
SEQUENCES = [np.array([2, *[4 + n % 5] * n, 3], dtype=np.int64) for n in (1, 5, 17, 40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    return load_model(str(folder), task_named("sequence-classification"))


@pytest.mark.parametrize("name", list(KINDS))
def test_a_native_variant_answers_near_fp32_whatever_it_is_batched_with(
    model: LoadedModel, name: str
) -> None:
    kind = KINDS[name]
    if not kind.support(CUDA).native:
        assert kind.support(CUDA).why
        return
    exact = build_variant(model, KINDS["fp32"], torch.device("cpu")).run(SEQUENCES)
    variant = build_variant(model, kind, CUDA)
    together = variant.run(SEQUENCES)
    alone = np.concatenate([variant.run([ids]) for ids in SEQUENCES])
    scale = np.abs(exact).max()
    assert np.abs(together - exact).max() < (1e-4 if name == "fp32" else 0.1) * scale
    assert np.abs(together - alone).max() < (1e-5 if name == "fp32" else 0.02) * scale


@pytest.mark.parametrize("rows", [1, 16, 17, 33])
def test_int8_on_a_gpu_is_the_int8_of_a_cpu(rows: int) -> None:
    layer = nn.Linear(64, 40)
    x = torch.randn(rows, 64)
    on_cpu, on_gpu = Int8Linear(layer)(x), Int8Linear(layer).to(CUDA)(x.to(CUDA))
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-4)


def test_fp32_does_not_use_tf32() -> None:
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    exact = a.double() @ b.double()
    found = (a.to(CUDA) @ b.to(CUDA)).cpu().double()
    assert (found - exact).abs().max() < 1e-3  # TF32 keeps 10 bits of the mantissa and misses by 1e-1
