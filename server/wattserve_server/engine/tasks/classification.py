"""Sequence classification: one logit per label, for each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class SequenceClassification:
    name = "sequence-classification"
    auto_class = "AutoModelForSequenceClassification"
    output_name = "logits"
    unused_weights: tuple[str, ...] = ()

    def labels(self, config: Any) -> list[str]:
        return [str(config.id2label[index]) for index in range(config.num_labels)]

    def forward(
        self, module: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        logits: torch.Tensor = module(input_ids=input_ids, attention_mask=attention_mask).logits
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
    exponentials: NDArray[np.float32] = np.exp(row - row.max())
    scores: NDArray[np.float32] = exponentials / exponentials.sum()
    return scores


def _sigmoid(row: NDArray[np.float32]) -> NDArray[np.float32]:
    scores: NDArray[np.float32] = np.reciprocal(1 + np.exp(-row), dtype=np.float32)
    return scores
