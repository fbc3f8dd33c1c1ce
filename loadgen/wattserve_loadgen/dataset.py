"""A tokenised dataset: a folder of plain tensors, and nothing that could run code.

    input_ids.pt       [rows, length] integers, padded at the end
    attention_mask.pt  [rows, length] 0 or 1: ones, then zeros
    labels.pt          [rows] integers; -1 means that the row has no label
    dataset.json       optional: how it was made (see `prepare`)

Rows are counted from 0, here, in every error and in the records.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wattserve_loadgen.errors import DatasetError

TENSOR_FILES = ("input_ids.pt", "attention_mask.pt", "labels.pt")
DESCRIPTION_FILE = "dataset.json"
NO_LABEL = -1
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_INT32_MAX = 2**31 - 1  # the protocol's token ids are int32


@dataclass(frozen=True)
class Dataset:
    """Rows of true length: no padding is left in `rows`."""

    folder: Path
    rows: tuple[npt.NDArray[np.int32], ...]
    labels: npt.NDArray[np.int64]
    sha256: str  # of the tensors' contents, whatever wrote the files
    description: dict[str, Any]  # dataset.json, or {}

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each row."""
        return np.array([len(row) for row in self.rows], dtype=np.int64)

    @property
    def labelled(self) -> bool:
        """Whether every row has a label."""
        return bool((self.labels != NO_LABEL).all())


def load(folder: Path) -> Dataset:
    """The dataset in `folder`; DatasetError when it cannot be replayed exactly as it stands."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such dataset folder; make one with `loadgen prepare`")
    missing = [name for name in TENSOR_FILES if not (folder / name).is_file()]
    if missing:
        raise DatasetError(f"{folder}: {', '.join(missing)} missing; make the folder with `loadgen prepare`")
    ids, mask, labels = (_read_tensor(folder / name) for name in TENSOR_FILES)
    _check_shapes(folder, ids, mask, labels)
    lengths = _prefix_lengths(folder / "attention_mask.pt", mask)
    _check_values(folder, ids, mask, labels)
    table = ids.to(torch.int64).numpy()
    return Dataset(
        folder=folder,
        rows=tuple(row[:length].astype(np.int32) for row, length in zip(table, lengths, strict=True)),
        labels=labels.to(torch.int64).numpy(),
        sha256=_digest((ids, mask, labels)),
        description=_read_description(folder / DESCRIPTION_FILE),
    )


def save(
    folder: Path,
    rows: Sequence[Sequence[int]],
    labels: Sequence[int],
    description: dict[str, Any],
    pad_id: int = 0,
) -> None:
    """Write a dataset folder that `load` accepts; DatasetError when `folder` holds anything already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DatasetError(f"{folder}: already there and not empty; choose another --out or remove it")
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), length), dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[index, : len(row)] = 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"{folder}: cannot be made: {error.strerror}; choose another --out") from None
    for name, tensor in zip(TENSOR_FILES, (ids, mask, torch.tensor(labels, dtype=torch.int64)), strict=True):
        torch.save(tensor, folder / name)
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    (folder / DESCRIPTION_FILE).write_text(text, encoding="utf-8")


def _read_tensor(path: Path) -> torch.Tensor:
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different class for every kind of damage
        if isinstance(error, PermissionError):
            raise DatasetError(f"{path}: no permission to read it") from None
        if zipfile.is_zipfile(path):
            reason = "holds Python objects, which are never unpickled; save a plain tensor by torch.save"
        else:
            reason = "is not a file that torch.save wrote, or it is damaged"
        raise DatasetError(f"{path}: {reason}") from None
    if not isinstance(value, torch.Tensor):
        raise DatasetError(f"{path}: holds a {type(value).__name__}, not a tensor; save the plain tensor")
    if value.layout != torch.strided or value.is_quantized:
        raise DatasetError(f"{path}: must be a dense tensor, found {value.layout}, {value.dtype}")
    return value


def _check_shapes(folder: Path, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> None:
    for name, tensor in zip(TENSOR_FILES, (ids, mask, labels), strict=True):
        allowed = (*_INTEGERS, torch.bool) if name == "attention_mask.pt" else _INTEGERS
        if tensor.dtype not in allowed:
            raise DatasetError(f"{folder / name}: {tensor.dtype} found; it must hold integers")
    if ids.dim() != 2:
        raise DatasetError(f"{folder / 'input_ids.pt'}: shape {list(ids.shape)}; it must be [rows, length]")
    if ids.shape[0] == 0 or ids.shape[1] == 0:
        raise DatasetError(f"{folder / 'input_ids.pt'}: shape {list(ids.shape)}: the dataset is empty")
    if mask.shape != ids.shape:
        raise DatasetError(
            f"{folder / 'attention_mask.pt'}: shape {list(mask.shape)}, but input_ids.pt has"
            f" {list(ids.shape)}"
        )
    if labels.dim() != 1 or labels.shape[0] != ids.shape[0]:
        raise DatasetError(
            f"{folder / 'labels.pt'}: shape {list(labels.shape)};"
            f" it must be [{ids.shape[0]}], one label per row"
        )


def _prefix_lengths(path: Path, mask: torch.Tensor) -> list[int]:
    """Ones in each row of a prefix mask."""
    table = mask.to(torch.int64).numpy()
    bad = ~np.isin(table, (0, 1)).all(axis=1)
    if bad.any():
        row = int(bad.argmax())
        value = int(table[row][~np.isin(table[row], (0, 1))][0])
        raise DatasetError(f"{path}: row {row} holds {value}; a mask holds only 0 and 1")
    empty = table.sum(axis=1) == 0
    if empty.any():
        raise DatasetError(
            f"{path}: row {int(empty.argmax())} is all zeros; every row needs at least one token"
        )
    rising = (np.diff(table, axis=1) > 0).any(axis=1)
    if rising.any():
        raise DatasetError(
            f"{path}: row {int(rising.argmax())} is not a prefix mask (ones, then zeros); pad at the end"
        )
    return [int(length) for length in table.sum(axis=1)]


def _check_values(folder: Path, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> None:
    real = torch.where(mask.to(torch.bool), ids.to(torch.int64), 0)
    bad = ((real < 0) | (real > _INT32_MAX)).any(dim=1)
    if bad.any():
        row = int(bad.to(torch.int8).argmax())
        value = next(int(token) for token in real[row].tolist() if not 0 <= token <= _INT32_MAX)
        raise DatasetError(
            f"{folder / 'input_ids.pt'}: row {row} holds {value}; token ids are 0 or more and fit int32"
        )
    low = labels.to(torch.int64) < NO_LABEL
    if low.any():
        row = int(low.to(torch.int8).argmax())
        raise DatasetError(
            f"{folder / 'labels.pt'}: row {row} holds {int(labels[row])};"
            " a label is 0 or more, or -1 for none"
        )


def _digest(tensors: Sequence[torch.Tensor]) -> str:
    """SHA-256 over name, dtype, shape and little-endian contents: stable across torch versions."""
    digest = hashlib.sha256()
    for name, tensor in zip(TENSOR_FILES, tensors, strict=True):
        array = tensor.contiguous().numpy()
        if sys.byteorder == "big":
            array = array.byteswap()
        digest.update(f"{name} {array.dtype.name} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _read_description(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: not readable as JSON ({error}); repair or remove it") from None
    if not isinstance(value, dict):
        raise DatasetError(f"{path}: must hold a JSON object")
    return value
