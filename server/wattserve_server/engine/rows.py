"""The rows that variants are compared on: a tokenised dataset, or examples made up for want of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_common.dataset import Dataset
from wattserve_common.dataset import load as load_dataset
from wattserve_common.errors import DatasetError
from wattserve_common.tensor_files import NO_LABEL
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.activations import MIN_SAMPLES, measure_scales
from wattserve_server.engine.variants.port import ActivationScales
from wattserve_server.errors import ConfigError

BATCH_SIZE = 16
MADE_UP_LENGTHS = (8, 128)


@dataclass(frozen=True)
class Examples:
    """Items that a model takes."""

    items: tuple[Item, ...]
    labels: NDArray[np.int64]  # [items], -1 for none
    origin: str  # for people
    sha256: str = ""  # of the dataset; empty for made-up ones
    available: int = 0  # rows of the dataset

    def as_json(self) -> dict[str, Any]:
        return {
            "origin": self.origin,
            "made_up": not self.sha256,
            "sha256": self.sha256 or None,
            "rows": len(self.items),
            "rows_available": self.available or None,
        }


def read_dataset(folder: str, model: LoadedModel) -> Dataset:
    """The dataset in `folder`. Raises ConfigError when it cannot be read or the model does not take a row."""
    try:
        dataset = load_dataset(Path(folder))
    except DatasetError as error:
        raise ConfigError(str(error)) from None
    facts = model.facts
    for index, row in enumerate(dataset.rows):
        where = f"{folder}: row {index}"
        if facts.pixel_shape:
            if row.shape != facts.pixel_shape:
                raise ConfigError(f"{where} has the shape {row.shape}, the model takes {facts.pixel_shape}")
        elif row.ndim != 1:
            raise ConfigError(f"{where} has the shape {row.shape}: the model takes token ids")
        elif len(row) > facts.max_tokens:
            raise ConfigError(f"{where} has {len(row)} tokens, the model takes at most {facts.max_tokens}")
        elif int(row.max()) >= facts.vocabulary_size:
            raise ConfigError(
                f"{where} holds token {int(row.max())}, but the model's vocabulary has "
                f"{facts.vocabulary_size}; prepare the dataset with this model's tokenizer"
            )
    if wrong := dataset.unlike_labels(model.labels):
        raise ConfigError(wrong)
    return dataset


def examples_of(dataset: Dataset, rows: int | None) -> Examples:
    """The first `rows` rows of a dataset; all for None. Raises ConfigError where there are fewer."""
    if rows is not None and rows > len(dataset.rows):
        raise ConfigError(f"--rows {rows}: {dataset.folder} has {len(dataset.rows)} rows")
    available = len(dataset.rows)
    count = rows or available
    part = f"all {count}" if count == available else f"the first {count} of {available}"
    return Examples(
        tuple(_item(row) for row in dataset.rows[:count]),
        dataset.labels[:count],
        f"{part} rows of {dataset.folder.resolve().name}",
        dataset.sha256,
        available,
    )


def made_up(model: LoadedModel, rows: int, seed: int) -> Examples:
    """Seeded random items of mixed lengths: enough to see numerical error, not to see what texts do."""
    facts, generator = model.facts, np.random.default_rng(seed)
    shortest, longest = (min(length, facts.max_tokens) for length in MADE_UP_LENGTHS)
    if facts.pixel_shape:
        shortest = longest = facts.max_tokens
    lengths = generator.integers(shortest, longest + 1, size=rows)
    items = tuple(
        model.task.example(facts, model.tokenizer, int(length), seed + index)
        for index, length in enumerate(lengths)
    )
    return Examples(
        items, np.full(rows, NO_LABEL), f"{rows} made-up examples (seed {seed}): no dataset given"
    )


def read_calibration(folder: str, model: LoadedModel, evaluated: Dataset | None) -> Dataset:
    """A dataset to read activation scales from. Raises ConfigError when it is too small, or when rows of
    `evaluated` are in it: a variant must not be judged on what it was fitted to."""
    try:
        calibration = read_dataset(folder, model)
    except ConfigError as error:
        raise ConfigError(f"--calibration: {error}") from None
    if len(calibration.rows) < MIN_SAMPLES:
        raise ConfigError(
            f"--calibration {folder}: {len(calibration.rows)} rows, at least {MIN_SAMPLES} are needed"
        )
    if evaluated is not None:
        shared = overlap(calibration.rows, evaluated.rows)
        if shared:
            raise ConfigError(
                f"--calibration {folder}: {shared} of the {len(evaluated.rows)} rows of {evaluated.folder} "
                "are in it too; a variant must not be evaluated on what it was calibrated with"
            )
    return calibration


def overlap(calibration: Sequence[Item], evaluated: Sequence[Item]) -> int:
    """How many of the evaluated rows occur, by content, among the calibration's."""
    seen = {_content(row) for row in calibration}
    return sum(_content(row) in seen for row in evaluated)


def _content(row: Item) -> tuple[tuple[int, ...], str, bytes]:
    return row.shape, row.dtype.str, row.tobytes()


def _item(row: Item) -> Item:
    return row.astype(np.int64) if row.dtype.kind in "iu" else row


def batches(
    model: LoadedModel, items: Sequence[Item], size: int = BATCH_SIZE
) -> Iterator[tuple[list[int], list[Item]]]:
    """Batches of items of like length, with the items' positions in the input."""
    order = sorted(range(len(items)), key=lambda index: model.task.length(items[index]))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield chosen, [items[index] for index in chosen]


def calibrated_scales(model: LoadedModel, calibration: Dataset) -> ActivationScales:
    """Of the first 512 rows of what `read_calibration` gave. Raises ConfigError."""
    rows = calibration.rows[:MIN_SAMPLES]
    collated = (model.task.collate(items, model.facts) for _, items in batches(model, rows))
    origin = f"{len(rows)} rows of {calibration.folder.resolve().name} (sha256 {calibration.sha256[:12]})"
    return measure_scales(model.weights.module, collated, origin)
