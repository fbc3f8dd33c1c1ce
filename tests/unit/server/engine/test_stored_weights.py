"""Whether a variant stores its weights as its kind declares, which no product shows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.fixtures.impostors import CPU, made
from tests.fixtures.models import save_classifier
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_server.engine.variants.int8 import Int8Linear
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import Built, Kind, Materials
from wattserve_server.engine.variants.verification import stored_in, stored_otherwise, verify
from wattserve_server.errors import ConfigError

WEIGHT_ONLY = KINDS["int8-weight-only"]
MULTIPLIED = {"bf16": torch.bfloat16, "fp32": torch.float32}[WEIGHT_ONLY.support(CPU).dtype]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    return load_model(str(folder), task_named("sequence-classification"))


def never_quantised(materials: Materials, device: torch.device) -> Built:
    """What multiplies as int8-weight-only does, and holds no int8."""
    module = materials.weights.copy(device, MULTIPLIED)
    return Built(module, "all layers; weights per channel", linear_paths(module))


def holding(**tensors: torch.Tensor) -> nn.Module:
    layer = nn.Module()
    for name, tensor in tensors.items():
        layer.register_buffer(name, tensor)
    return layer


def whole(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(16, 8, dtype=dtype)


def kind(weights: str) -> Kind:
    return Kind("x", weights, WEIGHT_ONLY.support, never_quantised)


def built(layer: nn.Module) -> Built:
    return Built(nn.ModuleDict({"x": layer}), "", ("x",))


def test_unquantised_weights_are_not_served_as_int8_weight_only(model: LoadedModel) -> None:
    impostor = made(model, Kind("int8-weight-only", "int8", WEIGHT_ONLY.support, never_quantised))
    operands = WEIGHT_ONLY.support(CPU).operands
    with pytest.raises(ConfigError) as caught:
        verify(impostor)
    assert str(caught.value) == (
        f"variant 'int8-weight-only' declares {operands} products, but 14 of its 14 converted layers, such "
        "as distilbert.transformer.layer.0.attention.q_lin, hold their weights in "
        f"{str(MULTIPLIED).removeprefix('torch.')}, not in int8 as declared: refused; --no-verify serves it "
        "anyway, and every receipt then says unverified"
    )


def test_one_layer_that_was_left_out_is_enough_to_be_refused(model: LoadedModel) -> None:
    def all_but_one(materials: Materials, device: torch.device) -> Built:
        built = WEIGHT_ONLY.build(materials, device)
        path = built.converted[3]
        plain = nn.Linear(32, 32, dtype=MULTIPLIED)
        built.module.set_submodule(path, plain)
        return built

    with pytest.raises(ConfigError, match=r"1 of its 13 converted layers, such as .*out_lin, hold"):
        verify(made(model, Kind("int8-weight-only", "int8", WEIGHT_ONLY.support, all_but_one)))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_stores_what_it_declares(model: LoadedModel, name: str) -> None:
    variant = made(model, KINDS["fp32"]) if name == "tf32" else None
    if not KINDS[name].support(CPU).native and variant is None:
        pytest.skip("not native on this CPU")
    variant = variant or made(model, KINDS[name])
    assert stored_otherwise(KINDS[name], variant.built) == ""


@pytest.mark.parametrize(
    ("weights", "dtypes"),
    [
        ("fp32", [torch.float32]),
        ("bf16", [torch.bfloat16]),
        ("fp16", [torch.float16]),
        ("int8", [torch.int8]),
        ("fp8", [torch.float8_e4m3fn]),
        ("int8 and fp16", [torch.int8, torch.float16]),
    ],
)
def test_the_largest_tensors_of_a_layer_must_be_in_the_declared_dtypes_and_no_others(
    weights: str, dtypes: list[torch.dtype]
) -> None:
    own = {f"weight{index}": whole(dtype) for index, dtype in enumerate(dtypes)}
    small = {"scale": torch.zeros(16), "bias": torch.zeros(16, dtype=torch.float64)}
    assert stored_otherwise(kind(weights), built(holding(**own, **small))) == ""
    beside = holding(**own, **small, copy=whole(torch.float64))
    assert "float64" in stored_otherwise(kind(weights), built(beside))
    for missing in own:
        rest = {name: tensor for name, tensor in own.items() if name != missing}
        assert stored_otherwise(kind(weights), built(holding(**rest, **small)))


def test_a_little_int8_beside_the_real_weights_is_not_enough() -> None:
    layer = holding(weight=whole(torch.bfloat16), alibi=torch.zeros(4, 4, dtype=torch.int8))
    assert stored_otherwise(kind("int8"), built(layer)) == (
        "1 of its 1 converted layers, such as x, hold their weights in bfloat16, not in int8 as declared"
    )


def test_a_layer_that_is_not_there_stores_nothing() -> None:
    claimed = Built(nn.Identity(), "", ("x",))
    assert "such as x, hold their weights in nothing" in stored_otherwise(kind("int8"), claimed)


@pytest.mark.parametrize("weights", ["floating point, rounded to int8 levels", "int4", "nf4"])
def test_a_kind_that_names_no_dtype_is_not_asked_for_one(weights: str) -> None:
    assert stored_otherwise(kind(weights), built(holding(weight=whole(torch.float64)))) == ""


def test_weights_of_8_bits_may_be_packed_in_a_wider_dtype_as_gptq_does() -> None:
    layer = holding(qweight=torch.zeros(2, 16, dtype=torch.int32), scales=torch.zeros(1, 16))
    vars(layer).update(in_features=8, out_features=16)
    assert stored_in(layer) == {torch.int8}
    vars(layer).update(in_features=16)  # 4 bits a weight
    assert stored_in(layer) == {torch.int32}


def test_a_quantised_layer_that_was_loaded_from_a_file_counts_as_well() -> None:
    assert stored_in(Int8Linear(64, 48, has_bias=True)) == {torch.int8}
