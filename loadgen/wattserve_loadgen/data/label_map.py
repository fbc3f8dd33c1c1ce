"""Labels of a file of texts as the model counts them: names are looked up, integers held against its count.

It knows nothing of texts and tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattserve_loadgen.data.tables import TextRow
from wattserve_loadgen.data.tensor_files import NO_LABEL
from wattserve_loadgen.errors import DatasetError

_INTEGER = re.compile(r"[+-]?\d+")
_LARGEST = 2**31 - 1
_SHOWN = 10


@dataclass(frozen=True)
class ModelLabels:
    """What a model's configuration says of its labels."""

    ids: dict[str, int]  # empty: it has no names of its own
    count: int | None  # None: it does not say


@dataclass(frozen=True)
class LabelMap:
    """How a file's labels became indices."""

    names: list[str]  # in the order of their indices; empty: not known
    origin: str


def model_labels(model: str) -> ModelLabels:
    """From the configuration of a model's folder or name; nothing for a folder with a tokenizer alone."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(model)
    except Exception:  # whatever is wrong with it: labels are then sorted
        return ModelLabels({}, None)
    ids = {str(name): int(index) for name, index in (config.label2id or {}).items()}
    generic = all(name == f"LABEL_{index}" for name, index in ids.items())
    # every configuration says two generic labels when it was told nothing
    told = not generic or len(ids) != 2 or _is_classifier(config.architectures)
    return ModelLabels({} if generic else ids, config.num_labels if told else None)


def map_labels(source: Path, rows: Sequence[TextRow], model: ModelLabels) -> tuple[list[int], LabelMap]:
    """Label indices in the order of the rows, -1 for none; DatasetError names the line of a label that the
    model does not have."""
    if all(row.label is None for row in rows):
        return [NO_LABEL] * len(rows), LabelMap([], "none: the file has no label column")
    known = sorted(model.ids, key=model.ids.__getitem__)
    if all(_integer(row.label) is not None for row in rows):
        return [_checked(source, row, model, known) for row in rows], LabelMap(known, "integers of the file")
    named = [row for row in rows if _integer(row.label) != NO_LABEL]
    if model.ids:
        ids, names, origin = model.ids, known, "the model's label2id"
    else:
        names = sorted({str(row.label) for row in named})
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
    return labels, LabelMap(names, origin)


def _is_classifier(architectures: Iterable[str] | None) -> bool:
    return any("Classification" in name for name in architectures or ())


def _integer(label: str | int | None) -> int | None:
    if isinstance(label, str):
        return int(label) if _INTEGER.fullmatch(label) else None
    return label


def _checked(source: Path, row: TextRow, model: ModelLabels, known: Sequence[str]) -> int:
    label = _integer(row.label)
    assert label is not None
    if label < NO_LABEL or label > _LARGEST:
        raise DatasetError(
            f"{source}: {row.place}: the label {label}; a label is 0 or more, or -1 for a row without"
        )
    if model.count is not None and label >= model.count:
        names = f": {_shown(known)}" if known else ""
        raise DatasetError(
            f"{source}: {row.place}: the label {label}, but the model has {model.count} labels{names};"
            " they count from 0"
        )
    return label


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
