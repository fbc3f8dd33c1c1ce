"""The port that every task implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

# What one sequence consists of, as a request brings it; its task knows the shape and the dtype.
Item = NDArray[Any]

# From a row of the answer, float32 [labels], to one score per label.
Scoring = Callable[[NDArray[np.float32]], list[float]]

# A batch, by the model's argument names, the first dimension being the sequences.
Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What a model takes."""

    max_tokens: int  # of the longest item
    vocabulary_size: int = 0  # token ids lie in [0, vocabulary_size); 0 for a model that takes none
    pixel_shape: tuple[int, ...] = ()  # (channels, height, width) for a model that takes images
    pad_id: int = 0  # what fills the ends of shorter items
    end_id: int | None = None  # with which each must end, where the model looks for it


class Task(Protocol):
    """One kind of work. All its methods are pure; modules are passed in."""

    name: str  # as `--task` takes it
    auto_class: str  # the transformers class that loads its models
    architectures: frozenset[str]  # classes of models that are made for it, by which it is found
    output_name: str  # of the array in the answer
    unused_weights: tuple[str, ...]  # prefixes of those that it does not use: a checkpoint may lack them
    takes_text: bool  # whether its items can be made from text by the model's tokenizer
    generates: bool  # whether it runs in steps, each of which chooses the next tokens

    def refusal(self, config: Mapping[str, Any]) -> str:
        """Why a model with that config.json cannot do this task, where its weights could be loaded for it all
        the same; empty otherwise."""
        ...

    def facts(self, source: str, config: Any, tokenizer: Any | None) -> InputFacts:
        """What a model of that config takes. Raises ConfigError when it cannot do this task."""
        ...

    def labels(self, config: Any) -> list[str]:
        """The labels of a model's config, by index; empty when the task has none."""
        ...

    def length(self, item: Item) -> int:
        """The item's size in tokens, the unit of batches and of cost."""
        ...

    def example(self, facts: InputFacts, tokenizer: Any | None, length: int, seed: int) -> Item:
        """A made-up item of that length, for warming up."""
        ...

    def collate(self, items: Sequence[Item], facts: InputFacts) -> Inputs:
        """A batch on the CPU, padded to its longest item."""
        ...

    def forward(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        """[sequences, width]"""
        ...

    def scoring(self, config: Any) -> Scoring | None:
        """What a caller reads off each row; None for a task without labels."""
        ...
