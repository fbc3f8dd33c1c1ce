"""A checkpoint and its config.json that do not fit together: refused, or told, in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.fixtures.models import save_classifier, save_encoder
from wattserve_server.engine.model import load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.errors import ConfigError


def changed(folder: Path, **values: Any) -> str:
    config = json.loads((folder / "config.json").read_text())
    assert set(values) <= set(config)
    (folder / "config.json").write_text(json.dumps(config | values))
    return str(folder)


@pytest.mark.parametrize("task", ["sequence-classification", "feature-extraction"])
def test_weights_of_more_layers_than_the_config_has_are_refused(tmp_path: Path, task: str) -> None:
    folder = changed(save_classifier(tmp_path / "m"), n_layers=1)
    why = r"has weights of distilbert\.transformer\.layer\.1, and by its config\.json 1 of these layers"
    with pytest.raises(ConfigError, match=why):
        load_model(folder, task_named(task))


@pytest.mark.parametrize("layers", [0, -1])
def test_a_model_of_no_layers_is_refused(tmp_path: Path, layers: int) -> None:
    folder = changed(save_classifier(tmp_path / "m"), n_layers=layers)
    with pytest.raises(ConfigError, match=f"its config.json has n_layers {layers}"):
        load_model(folder, task_named("sequence-classification"))


def test_weights_that_the_task_does_not_use_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        load_model(str(save_classifier(tmp_path / "m")), task_named("feature-extraction"))
    (line,) = [record.message for record in caplog.records if "does not use" in record.message]
    assert line.endswith(
        "does not use 4 weights: classifier.bias, classifier.weight, pre_classifier.bias, ..."
    )
    caplog.clear()
    with caplog.at_level("INFO"):
        load_model(str(save_encoder(tmp_path / "e")), task_named("feature-extraction"))
    assert "does not use" not in caplog.text


@pytest.mark.parametrize(
    ("labels", "lost"),
    [
        ({"0": "a", "2": "b", "5": "c"}, 1),
        ({"1": "a", "2": "b", "3": "c"}, 0),  # counted from 1
        ({"0": "a", "1": None, "2": "c"}, 1),
    ],
)
def test_labels_that_are_not_all_named_are_refused(tmp_path: Path, labels: dict[str, Any], lost: int) -> None:
    folder = changed(save_classifier(tmp_path / "m"), id2label=labels)
    why = f"names no label {lost}: of 3 labels each needs a name, from 0 to 2"
    with pytest.raises(ConfigError, match=why):
        load_model(folder, task_named("sequence-classification"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"activation": "nonsense"}, "files is none that transformers can use .KeyError: .function nonsense"),
        ({"id2label": ["a", "b"]}, "its files is none that transformers can use .AttributeError: 'list'"),
        ({"dim": "32"}, "'dim': TypeError: Field 'dim' expected int, got str"),
    ],
)
def test_what_transformers_cannot_use_is_told_with_what_it_is_about(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    folder = changed(save_classifier(tmp_path / "m"), **change)
    with pytest.raises(ConfigError, match=why):
        load_model(folder, task_named("sequence-classification"))


def test_weights_are_told_apart_by_their_digest(tmp_path: Path) -> None:
    task = task_named("sequence-classification")
    folder = save_classifier(tmp_path / "m")
    again = load_model(str(save_classifier(tmp_path / "same")), task).weights_digest
    first = load_model(str(folder), task).weights_digest
    assert len(first) == 64
    assert again == first
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"classifier.weight": -tensors["classifier.weight"]}, folder / "model.safetensors")
    assert load_model(str(folder), task).weights_digest not in ("", first)
    assert load_model("random:distilbert-tiny", task).weights_digest == ""
