"""A variant: the hosted model in one precision, on the device that owns it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.tasks import Inputs, Item
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.packing import Layout, Packing
from wattserve_server.engine.variants.port import Built, Kind, Materials
from wattserve_server.engine.variants.verification import UNVERIFIED, Verification
from wattserve_server.engine.weights import tensor_bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Items ready to run: nothing is left to convert."""

    inputs: Inputs
    length: int  # tokens of each row that is computed
    layout: Layout | None = None  # how sequences share rows; None where each has its own

    @property
    def packed_rows(self) -> int:
        """0 where nothing is packed."""
        return 0 if self.layout is None else self.layout.rows


@dataclass(slots=True)
class Variant:
    name: str  # as requests name it
    kind: Kind
    device: torch.device
    dtype: str  # of the activations that really run
    kernels: str
    built: Built  # the module and how it was made
    model: LoadedModel
    parameter_bytes: int  # weights and scales, those that it shares with other variants included
    verification: Verification = UNVERIFIED  # whether the profiler saw what the kind declares
    warmup_seconds: float = 0.0
    warmup_shapes: int = 0
    tuning: str = ""  # how it was made fast, for people
    packing: Packing | None = None  # of tokens, where it packs them
    threads: int = 0  # that compute a batch; 0: as many as torch is set to
    _input_dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        floating = (tensor.dtype for tensor in self.built.module.parameters() if tensor.is_floating_point())
        self._input_dtype = next(floating, torch.float32)

    @property
    def activation_bytes(self) -> int:
        """Of one number between its layers."""
        return self._input_dtype.itemsize

    def prepare(self, items: Sequence[Item], packs: bool = True) -> Batch:
        """A batch of items as this variant takes it, still on the host. packs: whether they may share
        rows."""
        task = self.model.task
        inputs = {
            name: tensor.to(self._input_dtype) if tensor.is_floating_point() else tensor
            for name, tensor in task.collate(items, self.model.facts).items()
        }
        if self.device.type == "cuda":  # else the copy to the device would wait for a pinned one of its own
            inputs = {name: tensor.pin_memory() for name, tensor in inputs.items()}
        lengths = [task.length(item) for item in items]
        layout = None if self.packing is None or not packs else self.packing.layout(lengths)
        return Batch(inputs, max(lengths) if layout is None else layout.length, layout)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """For what its module computes: with its threads, in its precision."""
        if self.threads and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        running = nullcontext() if self.device.type == "cpu" else self.kind.running(self.device)
        with torch.inference_mode(), running:
            yield

    def run(self, batch: Batch, timed: AbstractContextManager[object] | None = None) -> NDArray[np.float32]:
        """One prepared batch -> [sequences, width]. Returns when it is done.

        timed: entered around what the device does, from the copy to it until only the copy back is left.
        """
        packed = nullcontext() if self.packing is None else self.packing.using(batch.layout)
        with self.at_work(), packed:
            with timed or nullcontext():
                on_device = {
                    name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.inputs.items()
                }
                output = self.model.task.forward(self.built.module, on_device).float()
            array: NDArray[np.float32] = output.cpu().numpy()
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
