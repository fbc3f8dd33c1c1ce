"""Dataset folders: what is read, and what each wrong file is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.loadgen_data import write_tensors
from wattserve_common import dataset
from wattserve_common.errors import DatasetError


def refusal(folder: Path) -> str:
    with pytest.raises(DatasetError) as caught:
        dataset.load(folder)
    return str(caught.value)


def test_rows_come_back_without_their_padding(tmp_path: Path) -> None:
    found = dataset.load(write_tensors(tmp_path))
    assert [row.tolist() for row in found.rows] == [[5, 6, 7], [8, 9], [1, 2, 3, 4]]
    assert found.labels.tolist() == [0, 1, 0]
    assert found.lengths.tolist() == [3, 2, 4]
    assert found.labelled
    assert found.description == {}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_every_integer_type_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    ids = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0], [1, 2, 3, 4]], dtype=dtype)
    assert dataset.load(write_tensors(tmp_path, input_ids=ids)).rows[1].tolist() == [8, 9]


def test_a_boolean_mask_is_read(tmp_path: Path) -> None:
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    assert len(dataset.load(write_tensors(tmp_path, attention_mask=mask)).rows[0]) == 3


def test_minus_one_is_no_label(tmp_path: Path) -> None:
    assert not dataset.load(write_tensors(tmp_path, labels=torch.tensor([0, -1, 1]))).labelled


def test_what_stands_behind_the_mask_is_not_checked(tmp_path: Path) -> None:
    ids = torch.tensor([[5, 6, 7, -100], [8, 9, -100, -100], [1, 2, 3, 4]])
    assert dataset.load(write_tensors(tmp_path, input_ids=ids)).rows[0].tolist() == [5, 6, 7]


def test_the_hash_is_of_the_contents_and_not_of_the_files(tmp_path: Path) -> None:
    first, second = write_tensors(tmp_path / "a"), write_tensors(tmp_path / "b")
    old_format = torch.tensor([0, 1, 0])
    torch.save(old_format, second / "labels.pt", _use_new_zipfile_serialization=False)
    assert (first / "labels.pt").read_bytes() != (second / "labels.pt").read_bytes()
    assert dataset.load(first).sha256 == dataset.load(second).sha256


def test_the_hash_is_the_same_on_every_machine(tmp_path: Path) -> None:
    assert (
        dataset.load(write_tensors(tmp_path)).sha256
        == "d4027d0ff7f1a36b89d1b72dc46dfa256a4cdf6b9b3c29a36f22cca34f8e5a91"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": torch.tensor([0, 1, 1])},
        {"labels": torch.tensor([0, 1, 0], dtype=torch.int32)},
        {"input_ids": torch.tensor([[5, 6, 7, 1], [8, 9, 0, 0], [1, 2, 3, 4]])},
    ],
)
def test_the_hash_changes_with_any_content(tmp_path: Path, changes: dict[str, Any]) -> None:
    one, other = write_tensors(tmp_path / "a"), write_tensors(tmp_path / "b", **changes)
    assert dataset.load(one).sha256 != dataset.load(other).sha256


def test_a_description_beside_the_tensors_is_carried(tmp_path: Path) -> None:
    write_tensors(tmp_path)
    (tmp_path / "dataset.json").write_text('{"source": "reviews.csv"}')
    assert dataset.load(tmp_path).description == {"source": "reviews.csv"}


def test_a_description_that_goes_too_deep_or_says_a_thing_twice_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path)
    for content, words in (
        ("[" * 100_000, "too deep"),
        ('{"rows": 1, "rows": 2}', "'rows' stands there twice"),
    ):
        (tmp_path / "dataset.json").write_text(content)
        with pytest.raises(DatasetError, match=words):
            dataset.load(tmp_path)


def test_a_folder_in_the_place_of_a_file_is_not_called_missing(tmp_path: Path) -> None:
    write_tensors(tmp_path)
    (tmp_path / "labels.pt").unlink()
    (tmp_path / "labels.pt").mkdir()
    with pytest.raises(DatasetError, match=r"labels\.pt: is no regular file"):
        dataset.load(tmp_path)


IDS = "input_ids.pt"
MASK = "attention_mask.pt"
LABELS = "labels.pt"
WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"labels": None},
        "{folder}: labels.pt missing; rows without a label have -1 there; make the folder with "
        "`loadgen prepare`",
    ),
    (
        {"input_ids": torch.ones(3, 4)},
        "{folder}/input_ids.pt: torch.float32 found; it must hold integers",
    ),
    (
        {"input_ids": torch.ones(3, dtype=torch.int64)},
        "{folder}/input_ids.pt: shape [3]; it must be [rows, length]",
    ),
    (
        {"input_ids": torch.ones(0, 4, dtype=torch.int64)},
        "{folder}/input_ids.pt: shape [0, 4]: the dataset is empty",
    ),
    (
        {"attention_mask": torch.ones(3, 3, dtype=torch.int64)},
        "{folder}/attention_mask.pt: shape [3, 3], but input_ids.pt has [3, 4]",
    ),
    ({"labels": torch.tensor([0, 1])}, "{folder}/labels.pt: shape [2]; it must be [3], one label per row"),
    (
        {"attention_mask": torch.tensor([[1, 1, 1, 0], [1, 2, 0, 0], [1, 1, 1, 1]])},
        "{folder}/attention_mask.pt: row 1 holds 2; a mask holds only 0 and 1",
    ),
    (
        {"attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])},
        "{folder}/attention_mask.pt: row 2 is all zeros; every row needs at least one token",
    ),
    (
        {"attention_mask": torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1]])},
        "{folder}/attention_mask.pt: row 1 is not a prefix mask (ones, then zeros); pad at the end",
    ),
    (
        {"input_ids": torch.tensor([[5, 6, 7, 0], [8, -9, 0, 0], [1, 2, 3, 4]])},
        "{folder}/input_ids.pt: row 1 holds -9; token ids are 0 or more and fit int32",
    ),
    (
        {"input_ids": torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0], [1, 2, 2**31, 4]])},
        "{folder}/input_ids.pt: row 2 holds 2147483648; token ids are 0 or more and fit int32",
    ),
    (
        {"labels": torch.tensor([0, 1, -2])},
        "{folder}/labels.pt: row 2 holds -2; a label is 0 or more, or -1 for none",
    ),
    ({"labels": {"a": 1}}, "{folder}/labels.pt: holds a dict, not a tensor; save the plain tensor"),
    (
        {"labels": torch.tensor([0, 1, 0]).to_sparse()},
        "{folder}/labels.pt: must be a dense tensor, found torch.sparse_coo, torch.int64",
    ),
    (
        {"labels": torch.zeros(3, dtype=torch.int64, device="meta")},
        "{folder}/labels.pt: holds a shape without contents (a meta tensor); save real values",
    ),
    (
        {"input_ids": torch.zeros(1, 1, dtype=torch.int64).expand(200_000, 200_000)},
        "{folder}/input_ids.pt: [200000, 200000] by repeating what it holds (an expanded tensor); save "
        "what `contiguous` makes of it, or fewer rows",
    ),
    ({"labels": b"hello"}, "{folder}/labels.pt: is not a file that torch.save wrote, or it is damaged"),
    ({"labels": b""}, "{folder}/labels.pt: is not a file that torch.save wrote, or it is damaged"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_each_wrong_folder_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    assert refusal(write_tensors(tmp_path, **changes)) == message.format(folder=tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nowhere")
    assert message == f"{tmp_path}/nowhere: no such dataset folder; make one with `loadgen prepare`"


class _Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_tensor_that_repeats_itself_or_is_a_view_of_negatives_is_read_as_it_is(tmp_path: Path) -> None:
    plain = dataset.load(write_tensors(tmp_path / "plain", labels=torch.tensor([1, 1, 1])))
    repeated = dataset.load(write_tensors(tmp_path / "repeated", labels=torch.tensor([1]).expand(3)))
    negative = dataset.load(
        write_tensors(tmp_path / "negative", labels=torch.tensor([-1, -1, -1])._neg_view())
    )
    assert [each.labels.tolist() for each in (plain, repeated, negative)] == [[1, 1, 1]] * 3


@pytest.mark.parametrize("name", ["dataset.json", "max_new_tokens.pt", "labels.pt"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = write_tensors(tmp_path)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert refusal(folder) == f"{folder}: {name}: is no regular file"


def test_a_pipe_beside_images_is_refused_too(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    dataset.save_images(folder, np.zeros((2, 3, 4, 4), np.float32), [0, 1], {})
    (folder / "dataset.json").unlink()
    os.mkfifo(folder / "dataset.json")
    assert refusal(folder) == f"{folder}: dataset.json: is no regular file"


def test_pickled_objects_are_refused_and_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    message = refusal(write_tensors(tmp_path / "data", labels=_Trap(trap)))
    assert "labels.pt: holds Python objects, which are never unpickled" in message
    assert not trap.exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "not readable as JSON"), ("[1]", "must hold a JSON object")],
    ids=["torn", "list"],
)
def test_a_broken_description_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    write_tensors(tmp_path)
    (tmp_path / "dataset.json").write_text(text)
    assert reason in refusal(tmp_path)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9), min_size=1, max_size=6))
def test_what_is_saved_is_what_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("saved")
    dataset.save(folder, rows, list(range(len(rows))), {"rows": len(rows)}, pad_id=1)
    found = dataset.load(folder)
    assert [row.tolist() for row in found.rows] == rows
    assert found.labels.tolist() == list(range(len(rows)))
    assert all(row.dtype == np.int32 for row in found.rows)


def test_a_full_disk_is_told_and_leaves_no_half_of_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.save

    def fill(tensor: torch.Tensor, path: Path) -> None:
        if path.name == "labels.pt":
            path.write_bytes(b"half")
            raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed\nat ...")
        real(tensor, path)

    monkeypatch.setattr(torch, "save", fill)
    with pytest.raises(DatasetError) as caught:
        dataset.save(tmp_path / "out", [[1]], [0], {})
    assert str(caught.value) == (
        f"{tmp_path}/out: cannot be written (PytorchStreamWriter failed writing file data/0: file write"
        " failed); is the disk full?"
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_saving_never_writes_into_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DatasetError, match="already there and not empty"):
        dataset.save(tmp_path, [[1]], [0], {})
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]
