"""What classifiers have in common: one logit per label, whatever the items are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wattserve_server.engine.tasks.port import Inputs

_FEW = 16
"""Labels for which numpy's calls take longer than the arithmetic."""


class LabelAnswers:
    """The methods of a Task that concern its answers."""

    output_name = "logits"
    unused_weights: tuple[str, ...] = ()

    def labels(self, config: Any) -> list[str]:
        return [str(config.id2label[index]) for index in range(config.num_labels)]

    def forward(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        logits: torch.Tensor = module(**inputs).logits
        return logits

    def scores(self, config: Any, rows: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """Softmax; sigmoid for multi-label models; the raw value for a regression."""
        kind = getattr(config, "problem_type", None)
        if kind == "regression" or (kind is None and config.num_labels == 1):
            return list(rows)
        if kind == "multi_label_classification":
            return [_sigmoid(row) for row in rows]
        return [_softmax(row) for row in rows]


def _softmax(row: NDArray[np.float32]) -> NDArray[np.float32]:
    if len(row) <= _FEW:
        numbers = row.tolist()
        highest = max(numbers)
        powers = [math.exp(number - highest) for number in numbers]
        total = sum(powers)
        return np.array([power / total for power in powers], dtype=np.float32)
    exponentials: NDArray[np.float32] = np.exp(row - row.max())
    scores: NDArray[np.float32] = exponentials / exponentials.sum()
    return scores


def _sigmoid(row: NDArray[np.float32]) -> NDArray[np.float32]:
    scores: NDArray[np.float32] = np.reciprocal(1 + np.exp(-row), dtype=np.float32)
    return scores
