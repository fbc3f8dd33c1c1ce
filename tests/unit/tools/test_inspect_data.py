"""The rows that an inspection looks at: what is refused, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fixtures.inspection_data import LABELS, loaded, make_dataset
from tests.fixtures.loadgen_data import write_tensors
from tests.fixtures.models import MAX_TOKENS, save_classifier
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.rows import (
    batches,
    examples_of,
    made_up,
    overlap,
    read_calibration,
    read_dataset,
)
from wattserve_server.engine.tasks import Item
from wattserve_server.errors import ConfigError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(save_classifier(tmp_path_factory.mktemp("model")))


def refusal(model: LoadedModel, folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_dataset(str(folder), model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_without_labels_is_refused_with_the_files_name(model: LoadedModel, tmp_path: Path) -> None:
    assert "labels.pt missing" in refusal(model, write_tensors(tmp_path / "d", labels=None))


def test_a_token_beyond_the_vocabulary_is_refused_with_its_row(model: LoadedModel, tmp_path: Path) -> None:
    ids = torch.tensor([[5, 6, 7, 0], [8, 64, 0, 0], [1, 2, 3, 4]])
    words = refusal(model, write_tensors(tmp_path / "d", input_ids=ids))
    assert "row 1 holds token 64" in words


def test_a_row_that_is_too_long_is_refused(model: LoadedModel, tmp_path: Path) -> None:
    ids = torch.ones(3, MAX_TOKENS + 1, dtype=torch.int64)
    words = refusal(model, write_tensors(tmp_path / "d", input_ids=ids, attention_mask=torch.ones_like(ids)))
    assert f"row 0 has {MAX_TOKENS + 1} tokens, the model takes at most {MAX_TOKENS}" in words


def test_a_label_that_the_model_does_not_have_is_refused(model: LoadedModel, tmp_path: Path) -> None:
    words = refusal(model, write_tensors(tmp_path / "d", labels=torch.tensor([0, 3, 1])))
    assert "row 1 has the label 3, but the model has 3 labels" in words


def test_labels_in_another_order_than_the_models_are_refused(model: LoadedModel, tmp_path: Path) -> None:
    folder = make_dataset(tmp_path / "d", 4, label_names=[LABELS[2], LABELS[0], LABELS[1]])
    assert "its labels are in the order positive, negative, neutral" in refusal(model, folder)


def test_images_are_refused_by_a_model_of_tokens(model: LoadedModel, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    torch.save(torch.zeros(2, 3, 4, 4), folder / "pixel_values.pt")
    torch.save(torch.tensor([0, 1]), folder / "labels.pt")
    assert "the model takes token ids" in refusal(model, folder)


def test_rows_are_compared_by_content() -> None:
    known = [np.array([1, 2, 3]), np.array([4])]
    asked = [np.array([4]), np.array([1, 2]), np.array([1, 2, 3]), np.array([4])]
    assert overlap(known, asked) == 3


def test_calibration_rows_that_are_evaluated_too_are_refused_with_their_number(
    model: LoadedModel, tmp_path: Path
) -> None:
    calibration = make_dataset(tmp_path / "c", 520)
    evaluated = read_dataset(str(make_dataset(tmp_path / "e", 30)), model)  # the same seed: the same rows
    with pytest.raises(ConfigError, match="30 of the 30 rows"):
        read_calibration(str(calibration), model, evaluated)


def test_too_few_calibration_rows_are_refused(model: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="511 rows, at least 512 are needed"):
        read_calibration(str(make_dataset(tmp_path / "c", 511)), model, None)


def test_calibration_data_without_labels_are_refused_by_name(model: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--calibration: .*labels\.pt missing"):
        read_calibration(str(write_tensors(tmp_path / "c", labels=None)), model, None)


def test_more_rows_than_there_are_is_refused(model: LoadedModel, tmp_path: Path) -> None:
    dataset = read_dataset(str(make_dataset(tmp_path / "d", 5)), model)
    with pytest.raises(ConfigError, match="--rows 6"):
        examples_of(dataset, 6)
    assert len(examples_of(dataset, 3).items) == 3


def test_made_up_examples_are_the_same_for_the_same_seed_and_say_what_they_are(model: LoadedModel) -> None:
    one, again, other = (made_up(model, 9, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one.items, again.items, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one.items, other.items, strict=True))
    assert one.as_json()["made_up"] is True
    assert "made-up" in one.origin


def test_batches_hold_every_item_once_with_its_position(model: LoadedModel) -> None:
    items = made_up(model, 21, 0).items
    seen: dict[int, Item] = {}
    for positions, batch in batches(model, items, 4):
        assert len(batch) <= 4
        seen.update(zip(positions, batch, strict=True))
    assert sorted(seen) == list(range(21))
    assert all(np.array_equal(seen[index], item) for index, item in enumerate(items))
