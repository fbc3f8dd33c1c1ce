"""A tuned variant answers what it answered before, whatever it is batched with, or it is left as it was."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from tests.fixtures.models import save_classifier, save_vit
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants import tuning
from wattserve_server.engine.variants.catalogue import choose
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import ActivationScales, Materials
from wattserve_server.engine.variants.profile import profile_batch
from wattserve_server.engine.variants.tuning import OneDnnLinear, tune
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.engine.variants.verification import judge

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
LENGTHS = (3, 40, 17, 9, 22, 60, 5, 31)
PACKED = ("bert", "roberta", "electra", "xlm-roberta", "camembert", "albert", "esm", "mpnet")
NOT_PACKED = ("deberta-v2", "modernbert")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_classifier(tmp_path_factory.mktemp("classifier"))
    return load_model(str(folder), task_named("sequence-classification"))


def variant_of(model: LoadedModel, name: str = "fp32") -> Variant:
    return build_variant(model, choose(name, CPU)[0])


def items(model: LoadedModel) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(5, model.facts.vocabulary_size, size=length) for length in LENGTHS]


def natively(model: LoadedModel, name: str) -> Variant:
    if name not in [choice.name for choice in choose(None, CPU)]:
        pytest.skip(f"this CPU has no {name}")
    return variant_of(model, name)


@pytest.mark.parametrize(("name", "tolerance"), [("fp32", 1e-5), ("bf16", 0.15), ("int8", 0.05)])
def test_answers_are_those_of_each_sequence_alone(
    classifier: LoadedModel, name: str, tolerance: float
) -> None:
    variant = natively(classifier, name)
    plain = np.concatenate([variant.run(variant.prepare([item])) for item in items(classifier)])
    tune(variant)
    assert "tokens packed" in variant.tuning
    batch = variant.prepare(items(classifier))
    assert 0 < batch.packed_rows < len(LENGTHS)
    together = variant.run(batch)
    np.testing.assert_allclose(together, plain, atol=tolerance * float(np.abs(plain).max()))
    alone = np.concatenate([variant.run(variant.prepare([item])) for item in items(classifier)])
    np.testing.assert_allclose(alone, plain, atol=tolerance * float(np.abs(plain).max()))


def calibrated(model: LoadedModel) -> Variant:
    if "int8" not in [choice.name for choice in choose(None, CPU)]:
        pytest.skip("this CPU has no int8")
    plain = variant_of(model).built.module
    scales = ActivationScales(dict.fromkeys(linear_paths(plain), 0.03), "a test")
    return build_variant(
        model, choose("int8-static", CPU, is_calibrated=True)[0], Materials(model.weights, scales)
    )


def test_int8_static_goes_from_layer_to_layer_in_bytes(classifier: LoadedModel) -> None:
    variant = calibrated(classifier)
    before = np.concatenate([variant.run(variant.prepare([item])) for item in items(classifier)])
    tune(variant)
    assert "in bytes from layer to layer; tokens packed" in variant.tuning
    together = variant.run(variant.prepare(items(classifier)))
    np.testing.assert_allclose(together, before, atol=0.15 * float(np.abs(before).max()))
    verification = judge(variant, profile_batch(variant, variant.prepare(items(classifier))))
    assert verification.verified, verification.words


def test_int8_static_runs_as_before_where_the_operator_is_missing(
    classifier: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variant = calibrated(classifier)

    def missing(*args: object) -> int:
        raise AttributeError("'_OpNamespace' 'onednn' object has no attribute 'qlinear_prepack'")

    monkeypatch.setattr(tuning, "use_bytes", missing)
    with caplog.at_level("INFO"):
        tune(variant)
    assert "runs without int8 layers by oneDNN: AttributeError: '_OpNamespace'" in caplog.text
    assert variant.tuning == "tokens packed"
    verification = judge(variant, profile_batch(variant, variant.prepare(items(classifier))))
    assert verification.verified, verification.words


def test_a_tuned_variant_still_multiplies_as_it_says(classifier: LoadedModel) -> None:
    for choice in choose(None, CPU):
        variant = build_variant(classifier, choice)
        tune(variant)
        verification = judge(variant, profile_batch(variant, variant.prepare(items(classifier))))
        assert verification.verified, (choice.name, verification.words)


def test_a_tuned_variant_takes_as_many_bytes(classifier: LoadedModel) -> None:
    variant = variant_of(classifier)
    before = variant.parameter_bytes
    tune(variant)
    assert any(isinstance(part, OneDnnLinear) for part in variant.built.module.modules())
    assert variant.parameter_bytes == before


def test_the_gelu_between_two_layers_is_computed_once(classifier: LoadedModel) -> None:
    variant = variant_of(classifier)
    tune(variant)
    assert "GELU in the same pass" in variant.tuning
    fused = [part for part in variant.built.module.modules() if getattr(part, "has_gelu", False)]
    assert len(fused) == 2  # one in each of the two blocks
    assert sum(isinstance(part, nn.Identity) for part in variant.built.module.modules()) == 2


def architecture(name: str, folder: Path) -> LoadedModel:
    config = transformers.AutoConfig.for_model(name, **SHAPE, num_labels=3)
    if name == "albert":
        config.embedding_size = 16
    if name == "deberta-v2":
        config.relative_attention, config.pos_att_type = True, ["p2c", "c2p"]
    with torch.random.fork_rng():
        torch.manual_seed(11)
        module = transformers.AutoModelForSequenceClassification.from_config(config)
        with torch.no_grad():  # far from their start, where attention hardly matters
            for parameter in module.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.2)
    module.save_pretrained(folder)
    return load_model(str(folder), task_named("sequence-classification"))


@pytest.mark.parametrize("name", [*PACKED, *NOT_PACKED])
def test_whatever_the_architecture_batch_mates_change_nothing(name: str, tmp_path: Path) -> None:
    model = architecture(name, tmp_path)
    variant = variant_of(model)
    plain = np.concatenate([variant.run(variant.prepare([item])) for item in items(model)])
    tune(variant)
    assert ("tokens packed" in variant.tuning) == (name in PACKED), variant.tuning
    together = variant.run(variant.prepare(items(model)))
    np.testing.assert_allclose(together, plain, atol=2e-5 * max(1.0, float(np.abs(plain).max())))


@pytest.mark.parametrize("name", ["fp32", "bf16", "int8"])
def test_a_causal_model_is_not_packed_however_much_its_precision_rounds(name: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model("bert", **SHAPE, num_labels=3, is_decoder=True)
    with torch.random.fork_rng():
        torch.manual_seed(12)  # as transformers begins, where attention hardly matters
        transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    model = load_model(str(tmp_path), task_named("sequence-classification"))
    variant = natively(model, name)
    tune(variant)
    assert "packed" not in variant.tuning


def test_embeddings_are_packed_and_averaged_over_their_own_tokens(tmp_path: Path) -> None:
    model = load_model(str(save_classifier(tmp_path)), task_named("feature-extraction"))
    variant = variant_of(model)
    plain = np.concatenate([variant.run(variant.prepare([item])) for item in items(model)])
    tune(variant)
    batch = variant.prepare(items(model))
    assert batch.packed_rows
    np.testing.assert_allclose(variant.run(batch), plain, atol=1e-5)


def test_images_are_not_packed(tmp_path: Path) -> None:
    model = load_model(str(save_vit(tmp_path)), task_named("image-classification"))
    variant = variant_of(model)
    tune(variant)
    assert "packed" not in variant.tuning
    assert "oneDNN" in variant.tuning


class Wrong(OneDnnLinear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 1.1


class Failing(OneDnnLinear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("could not create a primitive")


@pytest.mark.parametrize("impostor", [Wrong, Failing])
def test_what_would_answer_otherwise_is_undone(
    impostor: Callable[[nn.Linear], nn.Module], classifier: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = variant_of(classifier)
    before = variant.run(variant.prepare(items(classifier)))
    monkeypatch.setattr(tuning, "OneDnnLinear", impostor)
    monkeypatch.setattr(tuning, "_is_packable", lambda model: False)
    tune(variant)
    assert variant.tuning == ""
    assert not any(isinstance(part, OneDnnLinear) for part in variant.built.module.modules())
    np.testing.assert_array_equal(variant.run(variant.prepare(items(classifier))), before)


def test_a_model_without_onednn_is_packed_all_the_same(
    classifier: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "takes", lambda layer: False)
    variant = variant_of(classifier)
    tune(variant)
    assert variant.tuning == "tokens packed"


def test_what_cannot_be_tried_is_not_packed(tmp_path: Path) -> None:
    model = load_model(str(save_classifier(tmp_path)), task_named("sequence-classification"), max_tokens=5)
    variant = variant_of(model)
    tune(variant)
    assert "packed" not in variant.tuning
    assert variant.packing is None
