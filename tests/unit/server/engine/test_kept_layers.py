"""What a quantised variant leaves as it is, and says so: other layer types, and linear layers whose weights
torch reads past their forward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.fixtures.impostors import made
from tests.fixtures.models import save_vit
from wattserve_server.engine.model import load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_server.engine.variants.int8 import Int8Linear
from wattserve_server.engine.variants.linears import convert_linears
from wattserve_server.engine.variants.port import Built, Materials
from wattserve_server.engine.variants.profile import profile_batch
from wattserve_server.engine.variants.verification import verify
from wattserve_server.engine.weights import Weights
from wattserve_server.errors import ConfigError

CPU = torch.device("cpu")
IMAGE = np.zeros((3, 32, 48), dtype=np.float32)
NOT_LINEAR = ("vit.embeddings", "vit.embeddings.patch_embeddings.projection")


def to_int8(*parts: nn.Module) -> Built:
    module = nn.Sequential(*parts, nn.Linear(256, 256)).eval()
    materials = Materials(Weights(lambda: module))
    return convert_linears(
        materials, CPU, torch.float32, "int8", "how", lambda _, layer: Int8Linear.of(layer)
    )


@pytest.mark.parametrize(
    "part",
    [nn.Conv2d(3, 8, 4), nn.Conv1d(3, 8, 4), Conv1D(16, 8), nn.Bilinear(8, 8, 8), nn.LSTM(8, 8)],
    ids=lambda part: type(part).__name__,
)
def test_a_layer_of_another_type_with_weights_is_kept_and_named(part: nn.Module) -> None:
    built = to_int8(part)
    assert (built.converted, built.kept) == (("1",), ("0",))
    assert built.detail == "1 of 1 linear layers; how; kept in float32: 0"


def test_the_projections_that_multi_head_attention_holds_itself_are_kept_and_named() -> None:
    built = to_int8(nn.MultiheadAttention(16, 2))
    assert built.kept == ("0", "0.out_proj")
    assert built.detail == "1 of 2 linear layers; how; kept in float32: 0, 0.out_proj"


def test_what_is_looked_up_or_scales_is_no_layer_that_could_have_been_quantised() -> None:
    built = to_int8(
        nn.Embedding(9, 8), nn.LayerNorm((4, 8)), nn.RMSNorm((4, 8)), nn.BatchNorm1d(8), nn.PReLU()
    )
    assert built.kept == ()
    assert built.detail == "1 of 1 linear layers; how"


def test_weights_of_the_model_itself_go_by_its_name() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(4, 8))
            self.layer = nn.Linear(64, 64)

    module = Model()
    built = KINDS["int8"].build(Materials(Weights(lambda: module)), CPU)
    assert (built.converted, built.kept) == (("layer",), ("Model",))


@pytest.mark.parametrize("name", ["int8", "int8-weight-only", "llm-int8", "int8-simulated", "fp8"])
def test_a_vision_transformers_patch_convolution_is_named_as_kept(tmp_path: Path, name: str) -> None:
    model = load_model(str(save_vit(tmp_path / "vit")), task_named("image-classification"))
    built = KINDS[name].build(Materials(model.weights), CPU)
    assert built.kept == (*NOT_LINEAR, "classifier")
    assert built.detail.startswith("12 of 13 linear layers; ")
    assert built.detail.endswith(f": {', '.join(built.kept)}")


def test_llm_int8_refuses_a_weight_that_fp16_does_not_hold() -> None:
    """Times the 0 of a batch mate without an outlier it would be NaN."""
    first = nn.Linear(64, 64)
    with torch.no_grad():
        first.weight[3, 5] = 1e5
    module = nn.Sequential(first, nn.Linear(64, 64))
    with pytest.raises(ConfigError, match="beyond 65504"):
        KINDS["llm-int8"].build(Materials(Weights(lambda: module)), CPU)
    built = KINDS["int8"].build(Materials(Weights(lambda: module)), CPU)
    assert built.converted == ("0", "1")


def test_a_convolution_that_is_named_as_kept_is_judged_as_before(tmp_path: Path) -> None:
    """Only linear layers that are openly kept are exempt: of a kind that multiplies in floating point a
    convolution must run in that, listed or not."""
    model = load_model(str(save_vit(tmp_path / "vit")), task_named("image-classification"))
    variant = made(model, KINDS["int8-weight-only"])
    assert set(NOT_LINEAR) < set(variant.built.kept)
    profile = profile_batch(variant, variant.prepare([IMAGE]))
    assert not profile.layers & set(NOT_LINEAR)
    assert {call.layer for call in profile.calls if call.op == "aten::convolution"} == {""}
    assert "linear layers and convolutions" in verify(variant).words
    if variant.dtype == "bf16":
        patches = variant.built.module.get_submodule("vit.embeddings.patch_embeddings.projection")
        patches.__class__ = OftenInFp32
        with pytest.raises(
            ConfigError, match=r"of its linear layers' work ran in fp32 \(aten::convolution\)"
        ):
            verify(variant)


class OftenInFp32(nn.Conv2d):
    """Often enough to be a tenth of the work of a small model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.bias is not None
        for _ in range(20):
            result: torch.Tensor = self._conv_forward(x.float(), self.weight.float(), self.bias.float())
        return result.to(x.dtype)


# torch's fast path


def encoder() -> nn.Module:
    block = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True)
    return nn.TransformerEncoder(block, 2)


def test_linear_layers_inside_a_transformer_encoder_layer_are_kept_and_named() -> None:
    built = to_int8(encoder(), nn.Linear(16, 256))
    inside = {f"0.layers.{i}.{name}" for i in range(2) for name in ("linear1", "linear2")}
    assert inside < set(built.kept)
    assert built.converted == ("1", "2")
    assert built.detail.startswith("2 of 8 linear layers; how; kept in float32: 0.layers.0.self_attn, ")


@pytest.mark.parametrize("name", ["int8", "int8-weight-only", "llm-int8", "int8-simulated"])
def test_a_model_with_torchs_encoder_layers_answers(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = nn.Sequential(encoder(), nn.Linear(16, 256), nn.Linear(256, 256)).eval()
        x = torch.randn(2, 5, 16)
    built = KINDS[name].build(Materials(Weights(lambda: module)), CPU)
    with torch.inference_mode():
        result = built.module(x.to(built.module.get_parameter("0.layers.0.linear1.weight").dtype))
        torch.testing.assert_close(result.float(), module(x), rtol=0.1, atol=0.1)


def test_a_model_that_is_all_encoder_layers_is_refused_in_int8() -> None:
    block = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True).eval()
    with pytest.raises(ConfigError, match="int8 would leave most of this model as it is: only 0 of its"):
        KINDS["int8"].build(Materials(Weights(lambda: block)), CPU)
