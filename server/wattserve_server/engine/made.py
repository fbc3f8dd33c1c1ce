"""Models that come as a variant already: what the two sorts (exported.py, prequantised.py) have in common.

Such a model has no fp32 source. What stands in for it is the architecture on torch's `meta` device: enough to
count parameters and to foretell memory, and nothing that another variant could be made from.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.utils import cached_file

from wattserve_server.engine.tasks import TASKS, Task
from wattserve_server.engine.variants.port import Kind
from wattserve_server.errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Made:
    """The one variant that a model holds. words: what it is and where it comes from, for people."""

    kind: Kind
    words: str
    has_random_weights: bool = False


def locate(source: str, name: str) -> Path | None:
    """A file of a model, by a folder or a hub id; None where there is none, or no way to know."""
    try:
        path = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        return None
    return Path(path) if path else None


def read_json(source: str, name: str) -> dict[str, Any] | None:
    """None where there is no such file, or nothing in it that could be meant."""
    path = locate(source, name)
    if path is None:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def skeleton(source: str, task: Task, trust_remote_code: bool = False) -> nn.Module:
    """The model's architecture in fp32, in evaluation mode, without numbers. Raises ConfigError."""
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            module: nn.Module = getattr(transformers, task.auto_class).from_config(
                config, dtype=torch.float32, trust_remote_code=trust_remote_code
            )
    except (OSError, ValueError, KeyError, ImportError, AttributeError, RuntimeError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        if "Unrecognized configuration class" in str(error):
            first = f"it cannot do --task {task.name}; choose among {', '.join(TASKS)}"
        raise ConfigError(f"cannot load model {source!r}: {first}") from error
    return module.float().eval()


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, those too that a state_dict leaves out; what is tied, once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def fill(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """A copy of a module without numbers, holding those tensors: one for each of its `named_tensors`."""
    memo: dict[int, object] = {}
    for name, empty in named_tensors(module).items():
        found = tensors[name]
        is_parameter = isinstance(empty, nn.Parameter)
        memo[id(empty)] = nn.Parameter(found, requires_grad=False) if is_parameter else found
    return copy.deepcopy(module, memo)
