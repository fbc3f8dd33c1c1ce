"""The files of a model: found, read and loaded, with transformers' complaints made into one line.

A model may come as a variant already (`exported`, `prequantised`). Such a model has no fp32 source. What
stands in for it is the architecture on torch's `meta` device: enough to count parameters and to foretell
memory, and nothing that another variant could be made from.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.utils import cached_file

from wattserve_common.strict_json import json_of
from wattserve_common.words import counted
from wattserve_server.engine.builtin.demo import demo_folder
from wattserve_server.engine.builtin.demo_llm import demo_llm_folder
from wattserve_server.engine.builtin.random_weights import RANDOM_MODELS
from wattserve_server.engine.generation.attention import use_own_attention
from wattserve_server.engine.tasks import TASKS, Task
from wattserve_server.engine.tasks.causal import with_linear_layers
from wattserve_server.engine.variants.port import Kind
from wattserve_server.engine.weights import stored_tensors
from wattserve_server.errors import ConfigError

log = logging.getLogger(__name__)

DIGESTED_BYTES = 4096  # of either end of a tensor
MOST_HEAD_BYTES = 100_000_000  # of a file of safetensors, as its format has it

# The models of this package, by what --model takes, and what gives their folders.
BUILT_IN: dict[str, Callable[[], Path]] = {"demo": demo_folder, "demo-llm": demo_llm_folder}
RANDOM_PREFIX = "random:"

# Some times what the deepest models have. Each takes milliseconds and memory to build, with weights or not.
MOST_LAYERS = 1_000
_LAYERS = re.compile(r"(.*_)?(layers?|depths?)")  # a number of them in a config, or one for each stage
_ALL_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")  # of which there is no model of none
_OF_LAYER = re.compile(r"(?P<place>.*?)\.(?P<number>\d+)\..+")  # a weight's name

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def without_path(source: str) -> str:
    """Of a folder its name only: exports and reports are given away, and tell nothing of where they were
    made."""
    is_folder = source.startswith(("/", ".", "~")) or Path(source).is_dir()
    return Path(source).resolve().name if is_folder else source


def load_checkpoint(
    place: str, task: Task, trust_remote_code: bool, dtype: torch.dtype = torch.float32, **options: Any
) -> torch.nn.Module:
    """In evaluation mode; as it is stored where it is quantised, else in `dtype`; made `runnable`. options:
    for transformers. Raises ConfigError."""
    _check_depth(place)
    loader = getattr(transformers, task.auto_class)
    try:
        module, report = loader.from_pretrained(
            place,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except MemoryError:
        raise
    except Exception as error:  # whatever transformers raises where anything in its files is wrong
        raise _cannot_load(place, task, error) from error
    missing = sorted(
        key for key in report.get("missing_keys") or () if not key.startswith(task.unused_weights)
    )
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ConfigError(
            f"model {place!r} has no weights for {shown}: it is not a {task.name} checkpoint "
            "(they would be random, and so would its answers); give the task that it is made for, such as "
            "--task feature-extraction for an encoder without a head"
        )
    _tell_unused(place, task, module, sorted(report.get("unexpected_keys") or ()))
    return runnable(place, task, module.eval())


def _tell_unused(place: str, task: Task, module: Any, names: list[str]) -> None:
    """Weights that the model has no place for. Raises ConfigError where they are of layers that it lacks."""
    if not names:
        return
    deepest: dict[str, int] = {}  # by where layers stand, counted from 0
    for own in filter(None, map(_OF_LAYER.fullmatch, module.state_dict())):
        deepest[own["place"]] = max(deepest.get(own["place"], 0), int(own["number"]))
    prefix = f"{module.base_model_prefix}."
    for found in filter(None, map(_OF_LAYER.fullmatch, names)):
        at = found["place"]
        for stem in (at, at.removeprefix(prefix), prefix + at):  # a head's weights stand above its base's
            if int(found["number"]) > deepest.get(stem, int(found["number"])):
                raise ConfigError(
                    f"model {place!r} has weights of {at}.{found['number']}, and by its config.json "
                    f"{deepest[stem] + 1} of these layers: it would be another network; correct config.json"
                )
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    log.info(
        "model %r: its task %s does not use %s: %s", place, task.name, counted(len(names), "weight"), shown
    )


def runnable(source: str, task: Task, module: nn.Module) -> nn.Module:
    """The same module as the task runs it, changed in place: one that generates attends to a cache of ours.
    Raises ConfigError for one that cannot."""
    if task.generates:
        model: Any = with_linear_layers(module)
        use_own_attention(model, source)
    return module


def _cannot_load(place: str, task: Task, error: Exception) -> ConfigError:
    if "trust_remote_code" in str(error):
        return ConfigError(
            f"model {place!r} needs code that comes with it; if you trust it, pass --trust-remote-code"
        )
    if "Unrecognized configuration class" in str(error):
        return ConfigError(
            f"model {place!r} cannot do the task {task.name}: its architecture has no {task.auto_class}; "
            f"try --task {' or '.join(name for name in TASKS if name != task.name)}"
        )
    if "ignore_mismatched_sizes" in str(error):
        return ConfigError(
            f"model {place!r}: its config.json gives some of its weights other sizes than they have"
        )
    pickles = sorted(path.name for path in Path(place).glob("pytorch_model*.bin"))
    if pickles and "no file named" in str(error):
        return ConfigError(
            f"model {place!r} holds its weights only as a pickle ({pickles[0]}), which can run code when it "
            "is read, and so is not: weights must be safetensors. If you trust it, convert it: python -c "
            f'"import transformers; transformers.{task.auto_class}.from_pretrained({place!r})'
            f'.save_pretrained({place!r})"'
        )
    return ConfigError(f"cannot load model {place!r}: {in_words(error)}{known_builtins(place)}")


def _check_depth(place: str) -> None:
    config = read_json(place, "config.json") or {}
    inner = [value for name, value in config.items() if name.endswith("_config") and isinstance(value, dict)]
    for part in (config, *inner):  # not its labels: one of ImageNet's is a layer
        for name in filter(_LAYERS.fullmatch, part):
            stages = part[name] if isinstance(part[name], list) else [part[name]]
            numbers = [stage for stage in stages if isinstance(stage, int)]
            layers = sum(numbers)
            least = 1 if name in _ALL_LAYERS else 0
            if any(number < least for number in numbers):
                raise ConfigError(f"model {place!r}: its config.json has {name} {min(numbers)}")
            if layers > MOST_LAYERS:
                raise ConfigError(
                    f"model {place!r}: its config.json has {name} {layers:,}: a model of more than "
                    f"{MOST_LAYERS:,} layers is not built"
                )


def check_finite(source: str, module: torch.nn.Module) -> None:
    """Raises ConfigError."""
    broken = {
        name: count
        for name, tensor in module.state_dict().items()
        if (count := sum(map(_not_finite, stored_tensors([tensor]))))
    }
    if broken:
        name, count = next(iter(broken.items()))
        raise ConfigError(
            f"model {source!r} holds {sum(broken.values())} weights that are NaN or infinite, in "
            f"{len(broken)} tensors, e.g. {count} in {name}: the checkpoint is damaged"
        )


def fingerprint(place: str) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of a folder's weights and config; empty for what is not a folder."""
    files = [
        path for path in Path(place).glob("*") if path.suffix == ".safetensors" or path.name == "config.json"
    ]
    return tuple(sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


def digest(place: str) -> str:
    """Of a folder's weights: SHA-256 of what each file says of its tensors, and of both ends of each, so that
    weights of any size are told apart at once. Empty for what is not a folder with weights, and for damaged
    ones, which are refused where they are loaded."""
    files, found = sorted(Path(place).glob("*.safetensors")), hashlib.sha256()
    try:
        for path in files:
            with path.open("rb") as file:
                _digest(file, found)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return ""
    return found.hexdigest() if files else ""


def _digest(file: BinaryIO, found: hashlib._Hash) -> None:
    head = file.read(min(int.from_bytes(file.read(8), "little"), MOST_HEAD_BYTES))
    found.update(head)
    tensors = {name: tensor for name, tensor in json.loads(head).items() if name != "__metadata__"}
    for begin, end in (tensor["data_offsets"] for tensor in tensors.values()):
        for at in (begin, max(begin, end - DIGESTED_BYTES)):
            file.seek(8 + len(head) + at)
            found.update(file.read(min(DIGESTED_BYTES, end - begin)))


def check_not_an_export(place: str) -> None:
    """Raises ConfigError for an exported variant without its description: its int8 levels would pass for
    weights."""
    for path in Path(place).glob("*.safetensors"):
        with suppress(SafetensorError, OSError), safe_open(path, "pt") as file:
            kind = (file.metadata() or {}).get("wattserve_kind")
            if kind:
                raise ConfigError(
                    f"model {place!r} is an exported {kind} whose wattserve_variant.json is missing: copy "
                    "the whole folder, or export it again"
                )


def _not_finite(tensor: torch.Tensor) -> int:
    if not tensor.is_floating_point():
        return 0
    is_small = tensor.element_size() == 1  # torch cannot ask 8-bit numbers
    return int((~torch.isfinite(tensor.float() if is_small else tensor)).sum())


def in_words(error: Exception) -> str:
    """The first line of what transformers says; where that is Python's own, what it is about."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, ArithmeticError | AttributeError | LookupError | TypeError):
        kind = type(error).__name__
        return f"a value in its files is none that transformers can use ({kind}: {lines[0]})"
    return " ".join(line.strip() for line in lines[:2]) if lines[0].endswith(":") else lines[0]


def known_builtins(place: str) -> str:
    """For the end of an error, where nothing of that name is here."""
    if Path(place).exists():
        return ""
    known = ", ".join([*BUILT_IN, *(RANDOM_PREFIX + name for name in RANDOM_MODELS)])
    return f" (a hub id needs the network; built-in models: {known})"


@dataclass(frozen=True, slots=True)
class Made:
    """The one variant that a model holds."""

    kind: Kind
    words: str  # what it is and where it comes from, for people
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
        content = json_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def skeleton(source: str, task: Task, trust_remote_code: bool = False) -> nn.Module:
    """The model's architecture in fp32, in evaluation mode, without numbers, made `runnable`. Raises
    ConfigError."""
    _check_depth(source)
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            module: nn.Module = getattr(transformers, task.auto_class).from_config(
                config, dtype=torch.float32, trust_remote_code=trust_remote_code
            )
    except MemoryError:
        raise
    except Exception as error:  # whatever transformers raises where anything in its files is wrong
        raise _cannot_load(source, task, error) from error
    return runnable(source, task, module.float().eval())


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, those too that a state_dict leaves out; what is tied, once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def fill(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """A copy of a module without numbers, holding those tensors: one for each of its `named_tensors`."""
    memo: dict[int, object] = {}
    for name, empty in named_tensors(module).items():
        tensor = tensors[name]
        is_parameter = isinstance(empty, nn.Parameter)
        memo[id(empty)] = nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
    return copy.deepcopy(module, memo)
