"""A variant: the hosted model in one precision, on the device that owns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.tasks import Task
from wattserve_server.engine.variants.kinds import Kind


@dataclass(slots=True)
class Variant:
    """device, dtype, kernels, detail: what really runs. parameter_bytes: weights and scales."""

    name: str
    device: torch.device
    dtype: str
    kernels: str
    detail: str
    parameter_bytes: int
    module: torch.nn.Module
    task: Task
    pad_id: int
    warmup_seconds: float = 0.0
    warmup_shapes: int = 0

    def run(self, sequences: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """One batch: token ids of each sequence -> [sequences, width]. Returns when it is done."""
        longest = max(len(ids) for ids in sequences)
        padded = np.full((len(sequences), longest), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(sequences), longest), dtype=np.int64)
        for row, ids in enumerate(sequences):
            padded[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
        with torch.inference_mode():
            output = self.task.forward(
                self.module,
                torch.from_numpy(padded).to(self.device, non_blocking=True),
                torch.from_numpy(mask).to(self.device, non_blocking=True),
            )
            array: NDArray[np.float32] = output.float().cpu().numpy()
        return array


def build_variant(model: LoadedModel, kind: Kind, device: torch.device) -> Variant:
    """Make one variant of a loaded model. The kind must be native on the device."""
    support = kind.support(device)
    module, detail = kind.build(model.module, device)
    return Variant(
        name=kind.name,
        device=device,
        dtype=support.dtype,
        kernels=support.kernels,
        detail=detail,
        parameter_bytes=parameter_bytes(module),
        module=module,
        task=model.task,
        pad_id=model.pad_id,
    )


def parameter_bytes(module: torch.nn.Module) -> int:
    """Bytes of all weights and scales, shared ones once; position and token-type indices excluded."""
    weights = [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.dtype != torch.int64)]
    distinct = {tensor.data_ptr(): tensor for tensor in weights}
    return sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())
