"""Image classification: which models can do it, what they take, and what they answer in each precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ResNetConfig

from tests.fixtures.models import IMAGE_SHAPE, save_classifier, save_vit
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import choose
from wattserve_server.engine.variants.variant import build_variant
from wattserve_server.errors import ConfigError

TASK = task_named("image-classification")


def images(model: LoadedModel, count: int) -> list[np.ndarray]:
    return [TASK.example(model.facts, None, 1, seed) for seed in range(count)]


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(str(save_vit(tmp_path_factory.mktemp("models") / "vit")), TASK)


@pytest.fixture(scope="module")
def resnet() -> LoadedModel:
    return load_model("random:resnet18", TASK)


def test_a_models_config_says_what_it_takes(vit: LoadedModel, resnet: LoadedModel) -> None:
    assert (vit.facts.pixel_shape, vit.facts.max_tokens, vit.facts.vocabulary_size) == (IMAGE_SHAPE, 1, 0)
    assert resnet.facts.pixel_shape == (3, 224, 224)
    assert vit.labels == ["cat", "dog", "bird"]
    assert vit.tokenizer is None


@pytest.mark.parametrize(
    ("preprocessor", "size"),
    [
        ({"size": {"height": 48, "width": 64}}, (48, 64)),
        ({"size": 96}, (96, 96)),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 240, "width": 200}}, (240, 200)),
        ({"size": {"shortest_edge": 256}, "crop_size": 240, "do_center_crop": False}, (256, 256)),
        ({"size": {"longest_edge": 9}}, (224, 224)),
        ([], (224, 224)),
        ("{", (224, 224)),
        (None, (224, 224)),
    ],
)
def test_where_the_config_has_no_size_the_checkpoints_preprocessor_says_it(
    tmp_path: Path, preprocessor: Any, size: tuple[int, int]
) -> None:
    if preprocessor is not None:
        text = preprocessor if isinstance(preprocessor, str) else json.dumps(preprocessor)
        (tmp_path / "preprocessor_config.json").write_text(text)
    assert TASK.facts(str(tmp_path), ResNetConfig(num_channels=1), None).pixel_shape == (1, *size)


def test_an_image_counts_as_one_sequence_of_one_token(vit: LoadedModel) -> None:
    first, second = images(vit, 2)
    assert (first.shape, first.dtype.name, TASK.length(first)) == (IMAGE_SHAPE, "float32", 1)
    assert not np.array_equal(first, second)
    batch = TASK.collate([first, second], vit.facts)
    assert list(batch) == ["pixel_values"]
    np.testing.assert_array_equal(batch["pixel_values"].numpy(), np.stack([first, second]))


@pytest.mark.parametrize("names", ["fp32", "bf16", "int8"])
def test_a_vision_transformer_answers_as_it_does_alone_in_every_precision(
    vit: LoadedModel, names: str
) -> None:
    try:
        (choice,) = choose(names, torch.device("cpu"))
    except ConfigError as error:
        pytest.skip(str(error))
    variant = build_variant(vit, choice)
    sent = images(vit, 3)
    with torch.inference_mode():
        wanted = vit.weights.module(pixel_values=torch.from_numpy(np.stack(sent))).logits.numpy()
    found = variant.run(variant.prepare(sent))
    assert np.ptp(wanted, axis=0).max() > 0.3, "the images must be told apart"
    np.testing.assert_allclose(found, wanted, atol={"fp32": 1e-5}.get(names, 0.1))


@pytest.mark.long
def test_the_random_resnet_tells_images_apart_in_fp32_and_bf16(resnet: LoadedModel) -> None:
    sent = images(resnet, 2)
    for name in ("fp32", "bf16"):
        try:
            (choice,) = choose(name, torch.device("cpu"))
        except ConfigError:
            continue  # this CPU has no bf16
        variant = build_variant(resnet, choice)
        found = variant.run(variant.prepare(sent))
        assert found.shape == (2, 1000)
        assert np.isfinite(found).all()
        assert not np.array_equal(found[0], found[1])


def test_int8_is_refused_for_a_model_of_convolutions(resnet: LoadedModel) -> None:
    try:
        (choice,) = choose("int8", torch.device("cpu"))
    except ConfigError as error:
        pytest.skip(str(error))
    with pytest.raises(
        ConfigError, match="int8 would leave most of this model as it is: only 1 of its layers"
    ):
        build_variant(resnet, choice)


@pytest.mark.parametrize(
    ("source", "task", "message"),
    [
        ("random:resnet18", "sequence-classification", "serve it with --task image-classification"),
        ("random:resnet18", "feature-extraction", "serve it with --task image-classification"),
        ("random:distilbert-base", "image-classification", "serve it with --task sequence-classification"),
        (
            "text",
            "image-classification",
            "no AutoModelForImageClassification; try --task sequence-classification or ",
        ),
        (
            "vit",
            "sequence-classification",
            "no AutoModelForSequenceClassification; try --task feature-extraction or image",
        ),
        ("vit", "feature-extraction", "does not take token ids .*--task image-classification"),
    ],
)
def test_a_model_asked_for_another_task_than_its_own_is_refused_with_a_way_out(
    tmp_path: Path, source: str, task: str, message: str
) -> None:
    if source == "text":
        source = str(save_classifier(tmp_path / "model"))
    elif source == "vit":
        source = str(save_vit(tmp_path / "model"))
    with pytest.raises(ConfigError, match=message):
        load_model(source, task_named(task))


def test_no_tokenizer_is_looked_for_beside_an_image_model(tmp_path: Path) -> None:
    folder = save_vit(tmp_path / "vit")
    (folder / "tokenizer.json").write_text("not a tokenizer")
    assert load_model(str(folder), TASK).tokenizer is None
