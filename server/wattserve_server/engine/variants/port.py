"""The port that every kind of variant implements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from wattserve_server.engine.weights import Weights

# The precisions in which linear layers may multiply, and the dtype of weights that are stored so.
OPERANDS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a device runs a kind natively. Only `why` is set where it does not."""

    native: bool
    why: str  # the reason, either way
    kernels: str = ""  # what would do the matrix work
    dtype: str = ""  # of the activations between layers
    operands: str = ""  # one of OPERANDS: in what linear layers multiply there, which the profiler must see


@dataclass(frozen=True, slots=True)
class ActivationScales:
    """For static quantisation."""

    scales: dict[str, float]  # of each linear layer's input, by its path
    origin: str  # the data that they were read from, for people


@dataclass(frozen=True, slots=True)
class Materials:
    """What a variant is made from."""

    weights: Weights
    activation_scales: ActivationScales | None = None  # None where no calibration data was given


@dataclass(frozen=True, slots=True)
class Built:
    """A made module, on its device, ready to run."""

    module: torch.nn.Module
    detail: str  # how it was made, for people
    converted: tuple[str, ...]  # the paths of the linear layers that run in the kind's precision
    # The paths of linear layers left in a higher one, and of other modules with weights of their own that the
    # kind has no form of, such as convolutions.
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """One precision."""

    name: str
    weights: str  # how its linear layers' weights are stored
    support: Callable[[torch.device], Support]
    build: Callable[[Materials, torch.device], Built]  # raises ConfigError for a model that it cannot convert
    proxy: str = ""  # for what only stands in for a precision: what really runs
    needs_calibration: bool = False  # see ActivationScales
    gains_by_decoding: bool = False  # and by nothing else: offered where a model generates
    # Of its device; entered around every batch, but for those on a CPU, which none concerns.
    running: Callable[[torch.device], AbstractContextManager[object]] = field(default=nullcontext)
