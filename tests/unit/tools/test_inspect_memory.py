"""`inspect memory`: bytes by arithmetic against bytes that are there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fixtures.inspection_data import loaded, variant_of
from tests.fixtures.models import save_classifier
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.variants.variant import build_variant
from wattserve_tools.inspect.memory import ideal_bytes, inspect_memory, stored_bits, theoretical_bytes
from wattserve_tools.inspect.subject import Chosen, Subject


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(save_classifier(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    ("weights", "bits"),
    [("fp32", 32), ("bf16", 16), ("int8", 8), ("fp8", 8), ("int8 and fp16", 24), ("rounded to int8", 32)],
)
def test_a_weights_bits_are_read_off_its_precisions_and_are_the_rests_otherwise(
    weights: str, bits: int
) -> None:
    assert stored_bits(weights, rest_bytes=4) == bits


@pytest.mark.parametrize("name", ["fp32", "int8", "llm-int8", "int8-simulated"])
def test_theory_and_tensors_agree_to_the_byte(model: LoadedModel, name: str) -> None:
    variant = variant_of(model, name)
    theory = theoretical_bytes(model.weights.module, variant.kind, variant.built)
    assert theory == variant.parameter_bytes


def test_int8_takes_a_byte_per_converted_weight_and_four_per_channel_and_other_parameter(
    model: LoadedModel,
) -> None:
    variant = variant_of(model, "int8")
    linears = [model.weights.module.get_parameter(f"{path}.weight") for path in variant.built.converted]
    weights = sum(weight.numel() for weight in linears)
    channels = sum(weight.shape[0] for weight in linears)
    assert variant.parameter_bytes == weights + 4 * channels + 4 * (model.parameters - weights)


def test_the_rule_of_thumb_is_every_parameter_at_the_weights_bits(model: LoadedModel) -> None:
    variant = variant_of(model, "int8")
    assert ideal_bytes(variant.kind, variant.built, 1000) == 1000


def test_what_variants_share_is_counted_once(model: LoadedModel) -> None:
    cpu = torch.device("cpu")
    chosen = [Chosen(Choice(name, KINDS[name], cpu)) for name in ("fp32", "int8")]
    subject = Subject(model, cpu, chosen, True, Materials(model.weights))
    body = inspect_memory(subject).as_json()
    fp32, int8 = body["variants"]
    assert fp32["reduction_against_fp32"] == 1.0
    assert fp32["additional_bytes"] == fp32["tensor_bytes"]
    assert int8["additional_bytes"] < int8["tensor_bytes"]
    together = fp32["additional_bytes"] + int8["additional_bytes"]
    assert body["all_variants_together_bytes"] == together
    assert body["shared_bytes"] == fp32["tensor_bytes"] + int8["tensor_bytes"] - together
    assert fp32["cuda_growth_bytes"] is None


def test_an_emulated_variant_is_measured_as_what_it_is(tmp_path: Path) -> None:
    model = loaded(save_classifier(tmp_path))
    fp16 = build_variant(model, Choice("fp16", KINDS["fp16"], torch.device("cpu")))
    assert theoretical_bytes(model.weights.module, fp16.kind, fp16.built) == fp16.parameter_bytes
    assert fp16.parameter_bytes == 2 * model.parameters
