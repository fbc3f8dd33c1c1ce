"""A variant: the hosted model in one precision, on the device that owns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.tasks import Inputs, Item
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.port import Built, Kind, Materials
from wattserve_server.engine.variants.verification import UNVERIFIED, Verification
from wattserve_server.engine.weights import tensor_bytes


@dataclass(slots=True)
class Variant:
    """name: as requests name it. dtype, kernels: what really runs. built: the module and how it was made.
    parameter_bytes: weights and scales, those that it shares with other variants included.
    verification: whether the profiler saw what the kind declares."""

    name: str
    kind: Kind
    device: torch.device
    dtype: str
    kernels: str
    built: Built
    model: LoadedModel
    parameter_bytes: int
    verification: Verification = UNVERIFIED
    warmup_seconds: float = 0.0
    warmup_shapes: int = 0
    _input_dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        floating = (tensor.dtype for tensor in self.built.module.parameters() if tensor.is_floating_point())
        self._input_dtype = next(floating, torch.float32)

    def prepare(self, items: Sequence[Item]) -> Inputs:
        """A batch of items as this variant takes it, still on the host: nothing is left to convert."""
        inputs = self.model.task.collate(items, self.model.facts)
        return {
            name: tensor.to(self._input_dtype) if tensor.is_floating_point() else tensor
            for name, tensor in inputs.items()
        }

    def run(self, inputs: Inputs) -> NDArray[np.float32]:
        """One prepared batch -> [sequences, width]. Returns when it is done."""
        with torch.inference_mode(), self.kind.running(self.device):
            on_device = {name: tensor.to(self.device, non_blocking=True) for name, tensor in inputs.items()}
            output = self.model.task.forward(self.built.module, on_device)
            array: NDArray[np.float32] = output.float().cpu().numpy()
        return array


def build_variant(model: LoadedModel, choice: Choice, materials: Materials | None = None) -> Variant:
    """Make one variant of a loaded model. Raises ConfigError for a model that its kind cannot convert."""
    support = choice.kind.support(choice.device)
    built = choice.kind.build(materials or Materials(model.weights), choice.device)
    return Variant(
        name=choice.name,
        kind=choice.kind,
        device=choice.device,
        dtype=support.dtype,
        kernels=support.kernels,
        built=built,
        model=model,
        parameter_bytes=tensor_bytes(built.module),
    )
