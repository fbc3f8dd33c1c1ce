"""The port that every kind of variant implements, one small file each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from wattserve_server.engine.weights import Weights

OPERANDS = ("fp32", "tf32", "bf16", "fp16", "int8", "fp8")
"""In what linear layers may multiply."""


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a device runs a kind natively. why: the reason, either way; kernels: what would do
    the matrix work; dtype: of the activations between layers; operands: the precision in which the
    linear layers multiply there, one of OPERANDS, which the profiler must see. Only `why` is set where
    it is not native."""

    native: bool
    why: str
    kernels: str = ""
    dtype: str = ""
    operands: str = ""


@dataclass(frozen=True, slots=True)
class ActivationScales:
    """For static quantisation. scales: of each linear layer's input, by its path; origin: the data that
    they were read from, for people."""

    scales: dict[str, float]
    origin: str


@dataclass(frozen=True, slots=True)
class Materials:
    """What a variant is made from. activation_scales: None where no calibration data was given."""

    weights: Weights
    activation_scales: ActivationScales | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """A made module, on its device, ready to run. detail: how it was made, for people. converted: the
    paths of the linear layers that run in the kind's precision; kept: those left in a higher one, and the
    other modules with weights of their own that the kind has no form of, such as convolutions."""

    module: torch.nn.Module
    detail: str
    converted: tuple[str, ...]
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """One precision.

    weights: how its linear layers' weights are stored. proxy: empty, or, for what only stands in for a
    precision, what really runs. needs_calibration: see ActivationScales. support: asks a device. build:
    makes the module; raises ConfigError for a model that it cannot convert. running: of its device; entered
    around every batch.
    """

    name: str
    weights: str
    support: Callable[[torch.device], Support]
    build: Callable[[Materials, torch.device], Built]
    proxy: str = ""
    needs_calibration: bool = False
    running: Callable[[torch.device], AbstractContextManager[object]] = field(default=nullcontext)
