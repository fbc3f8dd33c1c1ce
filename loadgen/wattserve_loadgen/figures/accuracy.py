"""Accuracy of every arm from the same timed answers, paired row by row with the baseline's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from wattserve_common.stats import paired_difference, wilson_interval
from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.model.results import Accuracy

Predictions = Mapping[str, Mapping[int, Sequence[int | None]]]
"""By arm, then by row of the dataset: the labels predicted, in the order in which they were answered."""


def note_predictions(predictions: dict[str, dict[int, list[int | None]]], records: Iterable[Record]) -> None:
    """Add what the answered requests of the windows predicted."""
    for record in records:
        if record.ok and record.in_window:
            rows = predictions.setdefault(record.arm, {})
            for row, label in zip(record.rows, record.predicted, strict=True):
                rows.setdefault(row, []).append(label)


def measure_accuracy(
    predictions: Predictions, labels: Mapping[int, int], baseline: str
) -> tuple[int, dict[str, Accuracy]]:
    """Accuracy per arm on the labelled rows that every arm answered, each row counted once by its first
    answer; an answer without a label is wrong. Returns the number of rows too.

    `labels`: the index of the right label by row, of those that have one. `baseline`: the arm that the others
    are paired with; when it answered nothing, none is.
    """
    if not predictions:
        return 0, {}
    common = set(labels).intersection(*predictions.values())
    if not common:
        return 0, {}
    right = {
        arm: np.array([rows[row][0] == labels[row] for row in common]) for arm, rows in predictions.items()
    }
    accuracies = {}
    for arm, rows in predictions.items():
        correct = int(right[arm].sum())
        low, high = wilson_interval(correct, len(common))
        unstable = sum(len(set(rows[row])) > 1 for row in common)
        accuracy = Accuracy(correct, len(common), low, high, unstable)
        paired = arm != baseline and baseline in right
        accuracies[arm] = _paired(accuracy, right[arm], right[baseline]) if paired else accuracy
    return len(common), accuracies


def _paired(accuracy: Accuracy, own: npt.NDArray[np.bool_], base: npt.NDArray[np.bool_]) -> Accuracy:
    gained, lost = int(np.sum(own & ~base)), int(np.sum(~own & base))
    paired = paired_difference(int(np.sum(own & base)), gained, lost, int(np.sum(~own & ~base)))
    return replace(
        accuracy,
        gained_rows=gained,
        lost_rows=lost,
        difference=paired.difference,
        difference_low=paired.low,
        difference_high=paired.high,
        p_value=paired.p,
    )
