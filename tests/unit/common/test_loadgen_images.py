"""Dataset folders of images: what is read, and what each wrong file is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.loadgen_data import write_images, write_tensors
from wattserve_common import dataset
from wattserve_common.errors import DatasetError


def test_rows_are_views_of_one_float32_array(tmp_path: Path) -> None:
    found = dataset.load(write_images(tmp_path))
    assert found.pixel_shape == (2, 4, 5)
    assert [row.shape for row in found.rows] == [(2, 4, 5)] * 3
    assert all(row.dtype == np.float32 for row in found.rows)
    assert found.rows[0].base is found.rows[2].base is not None
    np.testing.assert_array_equal(np.stack(found.rows).reshape(-1), np.arange(120))
    assert found.labels.tolist() == [0, 1, 0]
    assert found.labelled


def test_an_image_counts_as_one_token(tmp_path: Path) -> None:
    assert dataset.load(write_images(tmp_path)).lengths.tolist() == [1, 1, 1]


def test_a_folder_of_tokens_has_no_pixel_shape(tmp_path: Path) -> None:
    assert dataset.load(write_tensors(tmp_path)).pixel_shape == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_are_read_as_the_float32_of_the_same_value(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    pixels = torch.arange(3 * 2 * 4 * 5).reshape(3, 2, 4, 5).to(dtype)
    rows = dataset.load(write_images(tmp_path, pixel_values=pixels)).rows
    np.testing.assert_array_equal(np.stack(rows).reshape(-1), np.arange(120, dtype=np.float32))


def test_an_array_that_is_not_contiguous_keeps_its_order(tmp_path: Path) -> None:
    channels_last = torch.arange(3 * 4 * 5 * 2, dtype=torch.float32).reshape(3, 4, 5, 2)
    found = dataset.load(write_images(tmp_path, pixel_values=channels_last.permute(0, 3, 1, 2)))
    assert found.rows[0][1, 0].tolist() == [1, 3, 5, 7, 9]


def test_a_tensor_that_was_a_parameter_is_read_like_any_other(tmp_path: Path) -> None:
    pixels = torch.nn.Parameter(torch.arange(120, dtype=torch.float32).reshape(3, 2, 4, 5))
    found = dataset.load(write_images(tmp_path, pixel_values=pixels))
    assert found.rows[2].reshape(-1)[-1] == 119


def test_a_file_of_the_old_format_is_read_too(tmp_path: Path) -> None:
    write_images(tmp_path)
    new = dataset.load(tmp_path)
    pixels = torch.arange(120, dtype=torch.float32).reshape(3, 2, 4, 5)
    torch.save(pixels, tmp_path / "pixel_values.pt", _use_new_zipfile_serialization=False)
    assert dataset.load(tmp_path).sha256 == new.sha256


def hashed(folder: Path, **changes: Any) -> str:
    return dataset.load(write_images(folder, **changes)).sha256


def test_the_hash_is_of_the_contents_and_changes_with_any_of_them(tmp_path: Path) -> None:
    pixels = torch.arange(120, dtype=torch.float32).reshape(3, 2, 4, 5)
    changed = pixels.clone()
    changed[2, 1, 3, 4] = -1
    hashes = [
        hashed(tmp_path / "a"),
        hashed(tmp_path / "b", pixel_values=pixels.to(torch.bfloat16)),
        hashed(tmp_path / "c", pixel_values=pixels.to(torch.float16)),
        hashed(tmp_path / "d", pixel_values=changed),
        hashed(tmp_path / "e", pixel_values=pixels.reshape(3, 2, 5, 4)),
        hashed(tmp_path / "f", labels=torch.tensor([0, 1, 1])),
    ]
    assert len(set(hashes)) == len(hashes)
    assert hashed(tmp_path / "g", pixel_values=pixels) == hashes[0]


def spoiled(value: float) -> torch.Tensor:
    pixels = torch.zeros(3, 2, 4, 5)
    pixels[1, 0, 2, 3] = value
    return pixels


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "{folder}: labels.pt missing; it holds a label for each image of pixel_values.pt"),
        (
            {"pixel_values": torch.zeros(3, 2, 4, 5, dtype=torch.uint8)},
            "{folder}/pixel_values.pt: torch.uint8 found; it must hold floats",
        ),
        (
            {"pixel_values": torch.zeros(3, 2, 4, 5, dtype=torch.float64)},
            "{folder}/pixel_values.pt: torch.float64 found; it must hold floats",
        ),
        (
            {"pixel_values": torch.zeros(2, 4, 5)},
            "{folder}/pixel_values.pt: shape [2, 4, 5]; it must be [rows, channels, height, width]",
        ),
        (
            {"pixel_values": torch.zeros(0, 2, 4, 5)},
            "{folder}/pixel_values.pt: shape [0, 2, 4, 5]: the dataset is empty",
        ),
        (
            {"pixel_values": spoiled(float("nan"))},
            "{folder}/pixel_values.pt: row 1 holds values that are not",
        ),
        (
            {"pixel_values": spoiled(float("inf"))},
            "{folder}/pixel_values.pt: row 1 holds values that are not",
        ),
        (
            {"labels": torch.tensor([0, 1])},
            "{folder}/labels.pt: shape [2]; it must be [3], one label per row",
        ),
        ({"labels": torch.zeros(3)}, "{folder}/labels.pt: torch.float32 found; it must hold integers"),
        ({"labels": torch.tensor([0, -2, 0])}, "{folder}/labels.pt: row 1 holds -2"),
        ({"pixel_values": b"hello"}, "{folder}/pixel_values.pt: is not a file that torch.save wrote"),
        (
            {"input_ids": torch.ones(3, 4, dtype=torch.int64)},
            "{folder}: holds both pixel_values.pt and input_ids.pt; remove one of them",
        ),
    ],
)
def test_each_wrong_folder_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError) as caught:
        dataset.load(write_images(tmp_path, **changes))
    assert str(caught.value).startswith(message.format(folder=tmp_path))
