"""The port that every task implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray


class Task(Protocol):
    """One kind of work. All its methods are pure; modules are passed in.

    name: as `--task` takes it. auto_class: the transformers class that loads its models.
    output_name: of the array in the answer. unused_weights: prefixes of weights that the task does
    not use, so that a checkpoint may lack them.
    """

    name: str
    auto_class: str
    output_name: str
    unused_weights: tuple[str, ...]

    def labels(self, config: Any) -> list[str]:
        """The labels of a model's config, by index; empty when the task has none."""
        ...

    def forward(
        self, module: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """input_ids, attention_mask: int64 [sequences, length] -> [sequences, width]."""
        ...

    def scores(self, config: Any, rows: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """What a caller reads off each row: one score per label; empty for a task without labels."""
        ...
