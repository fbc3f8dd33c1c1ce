"""Makes dataset folders: from a file of texts with a model's tokenizer, or of random tokens or images.

What was done is written to dataset.json beside the tensors, so that results can say what they were measured
on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattserve_common import dataset
from wattserve_common.errors import DatasetError
from wattserve_common.tensor_files import NO_LABEL
from wattserve_loadgen.data.tables import TextRow, TextTable, read_rows
from wattserve_loadgen.data.tokenizing import check_seed, load_config, load_tokenizer, row_limit

_BATCH = 1024
_INTEGER = re.compile(r"[+-]?\d{1,4000}")  # Python reads no integer of more than 4,300 digits
_LARGEST_LABEL = 2**31 - 1
_SHOWN = 10  # label names in an error
MOST_TOKENS = 2**31  # the protocol's token ids are int32


@dataclass(frozen=True)
class Prepared:
    """What `prepare` wrote, for the last line on the screen."""

    folder: Path
    rows: int
    truncated: int
    max_length: int  # in tokens, to which those were cut; 0: images
    labels: str
    unlabelled: int  # rows without a label


def prepare_file(
    source: Path,
    out: Path,
    *,
    tokenizer: str,
    text_column: str,
    label_column: str | None,
    max_length: int | None = None,
    limit: int | None = None,
) -> Prepared:
    """Tokenise `source` into the dataset folder `out`.

    With `label_column` None, a column called `label` is used where the file has one; otherwise rows get the
    label -1, and accuracy does not apply. Rows longer than `max_length` tokens are truncated and counted.
    """
    table = read_rows(source, text_column, label_column, limit)
    rows = table.rows
    encoder = load_tokenizer(tokenizer)
    config = load_config(tokenizer)
    labels, names, origin = _map_labels(source, table, _model_labels(config))
    longest = row_limit(encoder, config, max_length)
    token_rows, truncated = _tokenise(source, encoder, rows, longest)
    description = {
        "kind": "text",
        "source": str(source),
        "tokenizer": tokenizer,
        "rows": len(rows),
        "text_column": text_column,
        "label_column": table.label_column,
        "label_names": names,
        "label_mapping": origin,
        "max_length": longest,
        "truncated_rows": truncated,
    }
    pad_id = encoder.pad_token_id
    dataset.save(out, token_rows, labels, description, pad_id=0 if pad_id is None else pad_id)
    return Prepared(out, len(rows), truncated, longest, origin, labels.count(NO_LABEL))


def check_random(flag: str, rows: int, what: str, seed: int, vocabulary_size: int = MOST_TOKENS) -> None:
    """Of made-up rows. Raises DatasetError."""
    if rows < 1:
        raise DatasetError(f"{flag} {rows}: at least one {what} is needed")
    if not 2 <= vocabulary_size <= MOST_TOKENS:
        raise DatasetError(f"--vocabulary-size {vocabulary_size}: it must be from 2 to {MOST_TOKENS}")
    check_seed(seed)


def prepare_random(
    out: Path, *, rows: int, vocabulary_size: int, seed: int = 0, max_length: int = 128
) -> Prepared:
    """Random token rows with lengths like those of SST-2: skewed to the right, mean about 28, 3 to
    `max_length`.

    For speed and energy only: the rows mean nothing and have no labels.
    """
    check_random("--random-rows", rows, "row", seed, vocabulary_size)
    if max_length < 3:
        raise DatasetError(f"--max-length {max_length}: random rows have at least 3 tokens")
    generator = np.random.default_rng(seed)
    lengths = np.clip(3 + generator.gamma(shape=2.2, scale=11.5, size=rows).astype(int), 3, max_length)
    token_rows = [generator.integers(1, vocabulary_size, size=length).tolist() for length in lengths]
    description = {
        "kind": "random tokens",
        "note": "random token ids: for speed and energy only, accuracy does not apply",
        "rows": rows,
        "vocabulary_size": vocabulary_size,
        "seed": seed,
        "max_length": max_length,
        "label_names": [],
    }
    dataset.save(out, token_rows, [NO_LABEL] * rows, description)
    return Prepared(out, rows, 0, max_length, "none (random tokens: for speed and energy only)", rows)


def prepare_random_images(
    out: Path, *, rows: int, pixel_shape: tuple[int, int, int] = (3, 224, 224), seed: int = 0
) -> Prepared:
    """Noise as normalised images have it: mean 0, deviation 1. For speed and energy only: no labels."""
    check_random("--random-images", rows, "image", seed)
    if min(pixel_shape) < 1:
        raise DatasetError(f"--pixel-shape {pixel_shape}: channels, height and width are 1 or more")
    pixels = np.random.default_rng(seed).standard_normal((rows, *pixel_shape), dtype=np.float32)
    description = {
        "kind": "random images",
        "note": "noise: for speed and energy only, accuracy does not apply",
        "rows": rows,
        "seed": seed,
        "label_names": [],
    }
    dataset.save_images(out, pixels, [NO_LABEL] * rows, description)
    return Prepared(out, rows, 0, 0, "none (random images: for speed and energy only)", rows)


def _tokenise(
    source: Path, encoder: Any, rows: list[TextRow], max_length: int
) -> tuple[list[list[int]], int]:
    """Token rows of at most `max_length`, and how many of them were cut."""
    token_rows: list[list[int]] = []
    truncated = 0
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        encoded = encoder([row.text for row in batch], verbose=False)["input_ids"]
        for row, ids in zip(batch, encoded, strict=True):
            if not ids:
                raise DatasetError(
                    f"{source}: {row.place}: the tokenizer makes no tokens of this text; remove the row"
                )
            if len(ids) > max_length:
                truncated += 1
                ids = encoder(row.text, truncation=True, max_length=max_length)["input_ids"]
            token_rows.append(list(ids))
    return token_rows, truncated


@dataclass(frozen=True)
class _ModelLabels:
    """What a model's configuration says of its labels."""

    ids: dict[str, int]  # empty: it has no names of its own
    count: int | None  # None: it does not say


def _model_labels(config: Any | None) -> _ModelLabels:
    """Nothing where there is no configuration: labels are then sorted."""
    if config is None:
        return _ModelLabels({}, None)
    ids = {str(name): int(index) for name, index in (config.label2id or {}).items()}
    generic = all(name == f"LABEL_{index}" for name, index in ids.items())
    # every configuration says two generic labels when it was told nothing
    told = not generic or len(ids) != 2 or _is_classifier(config.architectures)
    return _ModelLabels({} if generic else ids, config.num_labels if told else None)


def _map_labels(source: Path, table: TextTable, model: _ModelLabels) -> tuple[list[int], list[str], str]:
    """Label indices in the order of the rows, -1 for none; the names in the order of their indices; how the
    labels became indices. DatasetError names the line of a label that the model does not have."""
    rows = table.rows
    if table.label_column is None:
        return [NO_LABEL] * len(rows), [], _no_labels(table.columns)
    names = sorted(model.ids, key=model.ids.__getitem__)
    if all(_integer(row.label) is not None for row in rows):
        return [_checked(source, row, model, names) for row in rows], names, "integers of the file"
    ids, origin = model.ids, "the model's label2id"
    if not ids:
        names = sorted({str(row.label) for row in rows if _integer(row.label) != NO_LABEL})
        ids, origin = {name: index for index, name in enumerate(names)}, "sorted label names"
        if model.count is not None and len(names) > model.count:
            raise DatasetError(
                f"{source}: {len(names)} label names ({_shown(names)}), but the model has {model.count}"
            )
    folded = {name.casefold(): index for name, index in ids.items()}
    labels = []
    for row in rows:
        name = str(row.label)
        index = NO_LABEL if _integer(row.label) == NO_LABEL else ids.get(name, folded.get(name.casefold()))
        if index is None:
            raise DatasetError(
                f"{source}: {row.place}: unknown label {name!r}; the model knows {', '.join(names)}"
            )
        labels.append(index)
    return labels, names, origin


def _no_labels(columns: Sequence[str]) -> str:
    """Why a dataset is without accuracy."""
    if len(columns) == 1:
        return f"none, so no accuracy: there is only the column {columns[0]!r}"
    there = f"there are {_shown(columns)}"
    return f"none, so no accuracy: no column 'label' ({there}); --label-column names it"


def _is_classifier(architectures: Iterable[str] | None) -> bool:
    return any("Classification" in name for name in architectures or ())


def _integer(label: str | int | None) -> int | None:
    if isinstance(label, str):
        return int(label) if _INTEGER.fullmatch(label) else None
    return label


def _checked(source: Path, row: TextRow, model: _ModelLabels, names: Sequence[str]) -> int:
    label = _integer(row.label)
    assert label is not None
    if label < NO_LABEL or label > _LARGEST_LABEL:
        raise DatasetError(
            f"{source}: {row.place}: the label {label}; a label is 0 or more, or -1 for a row without"
        )
    if model.count is not None and label >= model.count:
        listed = f": {_shown(names)}" if names else ""
        raise DatasetError(
            f"{source}: {row.place}: the label {label}, but the model has {model.count} labels{listed};"
            " they count from 0"
        )
    return label


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
