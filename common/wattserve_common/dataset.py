"""A dataset of tokens or of images: a folder of plain tensors, and nothing that could run code.

    input_ids.pt       [rows, length] integers, padded at the end
    attention_mask.pt  [rows, length] 0 or 1: ones, then zeros
    pixel_values.pt    in place of both: [rows, channels, height, width] floats, preprocessed
    labels.pt          [rows] integers; -1 means that the row has no label
    max_new_tokens.pt  optional: [rows] integers; the rows are prompts, and so many tokens are to follow each
    dataset.json       optional: how it was made (see `prepare`)

Rows are counted from 0, here, in every error and in the records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wattserve_common.errors import DatasetError
from wattserve_common.strict_json import json_of
from wattserve_common.tensor_files import INTEGERS, check_labels, digest, read_tensor
from wattserve_common.tensor_files import NO_LABEL as NO_LABEL

TENSOR_FILES = ("input_ids.pt", "attention_mask.pt", "labels.pt")
PIXELS_FILE = "pixel_values.pt"
LABELS_FILE = "labels.pt"
NEW_TOKENS_FILE = "max_new_tokens.pt"
DESCRIPTION_FILE = "dataset.json"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)  # of pixels
_LABELS_SHOWN = 10
_INT32_MAX = 2**31 - 1  # the protocol's token ids are int32


@dataclass(frozen=True)
class Dataset:
    """`rows`: token ids of true length, int32 [tokens], no padding left; or, where `pixel_shape` is not
    empty, images of that shape, float32 [channels, height, width].
    """

    folder: Path
    rows: tuple[npt.NDArray[Any], ...]
    labels: npt.NDArray[np.int64]
    sha256: str  # of the tensors' contents, whatever wrote the files
    description: dict[str, Any]  # dataset.json, or {}
    pixel_shape: tuple[int, ...] = ()  # channels, height, width; empty for tokens
    max_new_tokens: tuple[int, ...] = ()  # to be generated behind each row; empty: the rows are no prompts

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each row. An image counts as one."""
        return np.array([1 if self.pixel_shape else len(row) for row in self.rows], dtype=np.int64)

    @property
    def labelled(self) -> bool:
        """Whether every row has a label."""
        return bool((self.labels != NO_LABEL).all())

    @property
    def label_names(self) -> list[str]:
        """Without regard to case; none where it has only numbers."""
        names = self.description.get("label_names")
        return [str(name).casefold() for name in names] if isinstance(names, list) else []

    def unlike_labels(self, names: Sequence[str]) -> str:
        """What speaks against holding its labels against a model's of these names; empty where nothing does,
        or the model has none."""
        if names and int(self.labels.max()) >= len(names):
            index = int(np.argmax(self.labels >= len(names)))
            shown = ", ".join(names[:_LABELS_SHOWN]) + (", ..." if len(names) > _LABELS_SHOWN else "")
            return (
                f"{self.folder}: row {index} has the label {int(self.labels[index])}, but the model has "
                f"{len(names)} labels: {shown}"
            )
        own, theirs = self.label_names, [name.casefold() for name in names]
        if own != theirs and sorted(own) == sorted(theirs):
            return (
                f"{self.folder}: its labels are in the order {', '.join(own)}, the model's are "
                f"{', '.join(theirs)}; prepare it with --tokenizer of this model"
            )
        return ""


def load(folder: Path) -> Dataset:
    """The dataset in `folder`; DatasetError when it cannot be replayed exactly as it stands."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such dataset folder; make one with `loadgen prepare`")
    names = (PIXELS_FILE, *TENSOR_FILES, NEW_TOKENS_FILE, DESCRIPTION_FILE)
    if odd := [name for name in names if _is_odd(folder / name)]:
        raise DatasetError(f"{folder}: {', '.join(odd)}: is no regular file")
    return _load_images(folder) if (folder / PIXELS_FILE).is_file() else _load_tokens(folder)


def _load_images(folder: Path) -> Dataset:
    if (folder / "input_ids.pt").exists():
        raise DatasetError(f"{folder}: holds both {PIXELS_FILE} and input_ids.pt; remove one of them")
    if not (folder / LABELS_FILE).is_file():
        raise DatasetError(
            f"{folder}: {LABELS_FILE} missing; it holds a label for each image of {PIXELS_FILE}, or -1"
        )
    pixels, labels = read_tensor(folder / PIXELS_FILE, mapped=True), read_tensor(folder / LABELS_FILE)
    rows = _image_rows(folder / PIXELS_FILE, pixels)
    return Dataset(
        folder=folder,
        rows=rows,
        labels=check_labels(folder / LABELS_FILE, labels, len(rows)),
        sha256=digest({PIXELS_FILE: pixels, LABELS_FILE: labels}),
        description=_read_description(folder / DESCRIPTION_FILE),
        pixel_shape=rows[0].shape,
    )


def _load_tokens(folder: Path) -> Dataset:
    missing = [name for name in TENSOR_FILES if not (folder / name).is_file()]
    if missing:
        hint = "; rows without a label have -1 there" if missing == [LABELS_FILE] else ""
        raise DatasetError(
            f"{folder}: {', '.join(missing)} missing{hint}; make the folder with `loadgen prepare`"
        )
    ids, mask, labels = (read_tensor(folder / name) for name in TENSOR_FILES)
    _check_shapes(folder, ids, mask)
    checked_labels = check_labels(folder / LABELS_FILE, labels, ids.shape[0])
    lengths = _prefix_lengths(folder / "attention_mask.pt", mask)
    _check_ids(folder / "input_ids.pt", ids, mask)
    tensors = dict(zip(TENSOR_FILES, (ids, mask, labels), strict=True))
    new_tokens: tuple[int, ...] = ()
    if (folder / NEW_TOKENS_FILE).is_file():
        tensors[NEW_TOKENS_FILE] = counts = read_tensor(folder / NEW_TOKENS_FILE)
        new_tokens = _check_new_tokens(folder / NEW_TOKENS_FILE, counts, ids.shape[0])
    table = ids.to(torch.int64).numpy()
    return Dataset(
        folder=folder,
        rows=tuple(row[:length].astype(np.int32) for row, length in zip(table, lengths, strict=True)),
        labels=checked_labels,
        sha256=digest(tensors),
        description=_read_description(folder / DESCRIPTION_FILE),
        max_new_tokens=new_tokens,
    )


def save(
    folder: Path,
    rows: Sequence[Sequence[int]],
    labels: Sequence[int],
    description: dict[str, Any],
    pad_id: int = 0,
    max_new_tokens: Sequence[int] = (),
) -> None:
    """Write a folder of tokens that `load` accepts; DatasetError when it holds anything already."""
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), length), dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[index, : len(row)] = 1
    tensors = {"input_ids.pt": ids, "attention_mask.pt": mask}
    if max_new_tokens:
        tensors[NEW_TOKENS_FILE] = torch.tensor(max_new_tokens, dtype=torch.int64)
    _write(folder, tensors, labels, description)


def save_images(
    folder: Path, pixels: npt.NDArray[np.float32], labels: Sequence[int], description: dict[str, Any]
) -> None:
    """Write a folder of images, [rows, channels, height, width], that `load` accepts; as `save`."""
    _write(folder, {PIXELS_FILE: torch.from_numpy(pixels)}, labels, description)


def _write(
    folder: Path, tensors: dict[str, torch.Tensor], labels: Sequence[int], description: dict[str, Any]
) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DatasetError(f"{folder}: already there and not empty; choose another --out or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"{folder}: cannot be made: {error.strerror}; choose another --out") from None
    files = tensors | {LABELS_FILE: torch.tensor(labels, dtype=torch.int64)}
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    try:
        for name, tensor in files.items():
            torch.save(tensor, folder / name)
        (folder / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
    except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError, on a full disk too
        for name in (*files, DESCRIPTION_FILE):
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DatasetError(f"{folder}: cannot be written ({reason}); is the disk full?") from None


def _image_rows(path: Path, pixels: torch.Tensor) -> tuple[npt.NDArray[np.float32], ...]:
    """Each image as a float32 view, [channels, height, width], of one array. DatasetError names the row."""
    if pixels.dtype not in _FLOATS:
        raise DatasetError(
            f"{path}: {pixels.dtype} found; it must hold floats (float32, float16, bfloat16), scaled and"
            " normalised as the model's preprocessor does it"
        )
    if pixels.dim() != 4:
        raise DatasetError(f"{path}: shape {list(pixels.shape)}; it must be [rows, channels, height, width]")
    if 0 in pixels.shape:
        raise DatasetError(f"{path}: shape {list(pixels.shape)}: the dataset is empty")
    array: npt.NDArray[np.float32] = pixels.to(torch.float32).contiguous().numpy()
    for row, image in enumerate(array):  # one by one: a mask of all of them would be as large as a quarter
        if not np.isfinite(image).all():
            raise DatasetError(f"{path}: row {row} holds values that are not finite")
    return tuple(array)


def _check_shapes(folder: Path, ids: torch.Tensor, mask: torch.Tensor) -> None:
    if ids.dtype not in INTEGERS:
        raise DatasetError(f"{folder / 'input_ids.pt'}: {ids.dtype} found; it must hold integers")
    if mask.dtype not in (*INTEGERS, torch.bool):
        raise DatasetError(f"{folder / 'attention_mask.pt'}: {mask.dtype} found; it must hold integers")
    if ids.dim() != 2:
        raise DatasetError(f"{folder / 'input_ids.pt'}: shape {list(ids.shape)}; it must be [rows, length]")
    if ids.shape[0] == 0 or ids.shape[1] == 0:
        raise DatasetError(f"{folder / 'input_ids.pt'}: shape {list(ids.shape)}: the dataset is empty")
    if mask.shape != ids.shape:
        raise DatasetError(
            f"{folder / 'attention_mask.pt'}: shape {list(mask.shape)}, but input_ids.pt has"
            f" {list(ids.shape)}"
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


def _check_new_tokens(path: Path, counts: torch.Tensor, rows: int) -> tuple[int, ...]:
    if counts.dtype not in INTEGERS or list(counts.shape) != [rows]:
        raise DatasetError(
            f"{path}: {counts.dtype} of shape {list(counts.shape)}; it must hold [{rows}] integers, one for"
            " each prompt"
        )
    values: list[int] = counts.tolist()
    for row, value in enumerate(values):
        if not 1 <= value <= _INT32_MAX:
            raise DatasetError(f"{path}: row {row} holds {value}; at least one token follows a prompt")
    return tuple(values)


def _check_ids(path: Path, ids: torch.Tensor, mask: torch.Tensor) -> None:
    real = torch.where(mask.to(torch.bool), ids.to(torch.int64), 0)
    bad = ((real < 0) | (real > _INT32_MAX)).any(dim=1)
    if bad.any():
        row = int(bad.to(torch.int8).argmax())
        value = next(int(token) for token in real[row].tolist() if not 0 <= token <= _INT32_MAX)
        raise DatasetError(f"{path}: row {row} holds {value}; token ids are 0 or more and fit int32")


def _is_odd(path: Path) -> bool:
    """Such as a pipe, of which reading would wait for who writes it."""
    return path.exists() and not path.is_file()


def _read_description(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: not readable as JSON ({error}); repair or remove it") from None
    if not isinstance(value, dict):
        raise DatasetError(f"{path}: must hold a JSON object")
    return value
