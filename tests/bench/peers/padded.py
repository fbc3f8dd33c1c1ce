"""What each peer runs, in its own environment: a module of transformers on padded batches, as users write it.

Servers that batch by joining arrays want equal shapes: rows come as `LONGEST` ids, the rest `PAD`, and a
batch is cut to its longest row before it is computed.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification

from tests.bench.peers.settings import PAD, THREADS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Model:
    """folder: with weights and configuration. variant: of DTYPES."""

    def __init__(self, folder: str, variant: str) -> None:
        torch.set_num_threads(THREADS)
        module = AutoModelForSequenceClassification.from_pretrained(folder, dtype=DTYPES[variant])
        self._module = module.eval()

    def logits(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(batch, labels) of (batch, LONGEST)."""
        mask = rows != PAD
        longest = int(mask.sum(axis=1).max())
        ids = torch.from_numpy(np.ascontiguousarray(rows[:, :longest]))
        with torch.inference_mode():
            answer = self._module(
                input_ids=ids, attention_mask=torch.from_numpy(mask[:, :longest].astype(np.int64))
            )
        found: NDArray[np.float32] = answer.logits.float().numpy()
        return found
