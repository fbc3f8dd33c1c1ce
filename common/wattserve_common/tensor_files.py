"""Single tensors of a dataset folder: read without ever running code, checked, and hashed."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wattserve_common.errors import DatasetError

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NO_LABEL = -1
MOST_REPEATED_BYTES = 2**30  # of a tensor that is larger than what its file holds


def read_tensor(path: Path, *, mapped: bool = False) -> torch.Tensor:
    """The dense tensor in a file; DatasetError when it holds anything else.

    With `mapped` its pages stay in the file, where its format allows it, and take no memory of their own.
    """
    try:
        mapped = mapped and zipfile.is_zipfile(path)
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
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
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        kind = "a nested tensor" if value.is_nested else value.layout
        raise DatasetError(f"{path}: must be a dense tensor, found {kind}, {value.dtype}")
    if value.is_meta:
        raise DatasetError(f"{path}: holds a shape without contents (a meta tensor); save real values")
    if value.nbytes > max(MOST_REPEATED_BYTES, value.untyped_storage().nbytes()):
        raise DatasetError(
            f"{path}: {list(value.shape)} by repeating what it holds (an expanded tensor); save "
            "what `contiguous` makes of it, or fewer rows"
        )
    return value.detach().resolve_neg()


def check_labels(path: Path, labels: torch.Tensor, rows: int) -> npt.NDArray[np.int64]:
    """[rows] labels as int64; DatasetError when they are not one label index, or -1, for each row."""
    if labels.dtype not in INTEGERS:
        raise DatasetError(f"{path}: {labels.dtype} found; it must hold integers")
    if labels.dim() != 1 or labels.shape[0] != rows:
        raise DatasetError(f"{path}: shape {list(labels.shape)}; it must be [{rows}], one label per row")
    low = labels.to(torch.int64) < NO_LABEL
    if low.any():
        row = int(low.to(torch.int8).argmax())
        raise DatasetError(
            f"{path}: row {row} holds {int(labels[row])}; a label is 0 or more, or -1 for none"
        )
    return labels.to(torch.int64).numpy()


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over name, dtype, shape and little-endian contents: stable across torch versions."""
    hasher = hashlib.sha256()
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        hasher.update(f"{name} {dtype} {list(tensor.shape)}\n".encode())
        hasher.update(_little_endian(tensor))
    return hasher.hexdigest()


def _little_endian(tensor: torch.Tensor) -> Any:
    """The contents as a flat buffer, not copied where they lie right already."""
    plain = tensor.contiguous()
    array = (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
    if sys.byteorder == "big":
        array = array.byteswap()
    return array.reshape(-1).view(np.uint8).data
