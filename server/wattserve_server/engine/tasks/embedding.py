"""Feature extraction: the mean of the last hidden states over a sequence's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wattserve_server.engine.tasks.port import Inputs
from wattserve_server.engine.tasks.tokens import TokenItems


class FeatureExtraction(TokenItems):
    name = "feature-extraction"
    auto_class = "AutoModel"
    output_name = "embedding"
    unused_weights: tuple[str, ...] = ("pooler.",)

    def labels(self, config: Any) -> list[str]:
        return []

    def forward(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        hidden = module(**inputs).last_hidden_state.float()
        weights = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean: torch.Tensor = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        return mean

    def scores(self, config: Any, rows: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        return []
