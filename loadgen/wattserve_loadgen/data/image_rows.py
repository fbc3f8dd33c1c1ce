"""The rows of a dataset of images: one array of preprocessed pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from wattserve_loadgen.errors import DatasetError

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def image_rows(path: Path, pixels: torch.Tensor) -> tuple[npt.NDArray[np.float32], ...]:
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
