"""The weights of the hosted model: the source that variants are made from, what they share, and their bytes.

The source is the checkpoint in fp32 on the CPU. It is loaded when something needs it and can be let go of;
tensors that variants have in common (embeddings, norms, whatever a variant does not convert) exist once for
each device and dtype, for as long as a variant holds them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from wattserve_server.errors import ConfigError

if TYPE_CHECKING:  # they are made of weights
    from wattserve_server.engine.variants.catalogue import Choice
    from wattserve_server.engine.variants.port import Materials
    from wattserve_server.engine.variants.variant import Variant

# Of a submodule's path and itself: what stands in its place, or None to keep it.
Replace = Callable[[str, nn.Module], nn.Module | None]

# What identifies a shared tensor: its name in the source, and where and in what dtype it is.
Key = tuple[str, torch.device, torch.dtype]


def keep(path: str, module: nn.Module) -> nn.Module | None:
    """A Replace that replaces nothing."""
    return None


class Weights:
    """load: makes the fp32 module, in evaluation mode, on the CPU; the same one each time.

    made: empty, or, for a model that comes as a variant already, what it is. Its source is then an
    architecture without numbers, and no other variant can be made from it.
    """

    def __init__(self, load: Callable[[], nn.Module], made: str = "") -> None:
        self._load = load
        self.made = made
        self._module: nn.Module | None = None
        self._shared: WeakValueDictionary[Key, torch.Tensor] = WeakValueDictionary()

    @property
    def module(self) -> nn.Module:
        """The source; never change it."""
        if self._module is None:
            self._module = self._load()
        return self._module

    def release(self) -> None:
        """Let go of the source. What variants share with it stays."""
        self._module = None

    def copy(self, device: torch.device, dtype: torch.dtype, replace: Replace = keep) -> nn.Module:
        """The model on a device, in `dtype` but for what `replace` puts in; shares what it can.

        Replacements are moved to the device and keep their dtypes. Raises ConfigError where the source has
        no numbers.
        """
        if self.made:
            raise ConfigError(f"{self.made}: nothing else can be made from it")
        memo: dict[int, object] = {}
        replaced: list[str] = []
        for path, part in self.module.named_modules():
            if any(path.startswith(f"{above}.") for above in replaced):
                continue
            stand_in = replace(path, part)
            if stand_in is not None:
                memo[id(part)] = stand_in.to(device).eval()
                replaced.append(path)
        inside = tuple(f"{path}." for path in replaced)
        uncast = computed_buffers(self.module)
        for name, tensor in _tensors(self.module):
            if id(tensor) not in memo and not name.startswith(inside):
                wanted = tensor.dtype if name in uncast else dtype
                memo[id(tensor)] = self._tensor(name, tensor, device, wanted)
        return copy.deepcopy(self.module, memo)

    def sketch(self) -> Sketch:
        """The same model without its numbers: variants made of it take no memory, and say how much they
        would."""
        memo: dict[int, object] = {}
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            empty = tensor.detach().to("meta")
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if is_parameter else empty
        module = copy.deepcopy(self.module, memo)
        return Sketch(lambda: module, self.made)

    def shared(self, keys: set[Key]) -> list[torch.Tensor]:
        """Those shared tensors that exist now."""
        tensors = (self._shared.get(key) for key in keys)
        return [tensor for tensor in tensors if tensor is not None]

    def _tensor(
        self, name: str, tensor: torch.Tensor, device: torch.device, dtype: torch.dtype
    ) -> torch.Tensor:
        dtype = dtype if tensor.is_floating_point() else tensor.dtype
        shared = self._shared.get((name, device, dtype))
        if shared is None:
            cast = tensor.detach().to(device=device, dtype=dtype)
            shared = nn.Parameter(cast, requires_grad=False) if isinstance(tensor, nn.Parameter) else cast
            self._shared[name, device, dtype] = shared
        return shared


class Sketch(Weights):
    """Weights on torch's `meta` device. taken: the shared tensors that its variants would hold."""

    def __init__(self, load: Callable[[], nn.Module], made: str) -> None:
        super().__init__(load, made)
        self.taken: set[Key] = set()

    def copy(self, device: torch.device, dtype: torch.dtype, replace: Replace = keep) -> nn.Module:
        self._wanted = device
        return super().copy(torch.device("meta"), dtype, replace)

    def _tensor(
        self, name: str, tensor: torch.Tensor, device: torch.device, dtype: torch.dtype
    ) -> torch.Tensor:
        self.taken.add((name, self._wanted, dtype if tensor.is_floating_point() else tensor.dtype))
        return super()._tensor(name, tensor, device, dtype)


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Under each of its names where one is tied: the first may lie in a layer that is replaced."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def computed_buffers(module: nn.Module) -> set[str]:
    """Buffers that are computed from the config and not stored, such as the frequencies of rotary positions:
    their precision is the architecture's, as transformers has it in every dtype."""
    return {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }


def distinct_tensors(*modules: nn.Module) -> list[torch.Tensor]:
    """Weights, scales and buffers of the modules, those that share memory once; without indices (int64)."""
    distinct: dict[tuple[int, int, int], torch.Tensor] = {}
    for module in modules:
        for tensor in stored_tensors((*module.parameters(), *module.buffers())):
            if tensor.dtype != torch.int64:
                distinct.setdefault((place(tensor), tensor.numel(), tensor.element_size()), tensor)
    return list(distinct.values())


def place(tensor: torch.Tensor) -> int:
    """Where its numbers are: the same for tensors that share them."""
    has_address = not (tensor.is_meta or tensor.is_mkldnn)
    return tensor.data_ptr() if has_address else id(tensor)


def stored_tensors(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors that hold the numbers: quantisation libraries wrap several in one that looks like fp32."""
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            yield from stored_tensors(getattr(tensor, name) for name in names)
        else:
            yield tensor


def tensor_bytes(*modules: nn.Module) -> int:
    """Bytes of `distinct_tensors`."""
    return bytes_of(distinct_tensors(*modules))


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def format_bytes(amount: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if amount >= size:
            return f"{amount / size:.4g} {unit}"
    return f"{amount} B"


def bytes_after_loading(materials: Materials, choice: Choice, loaded: Sequence[Variant]) -> int:
    """Bytes of all weights on the choice's device once it is loaded beside `loaded`, what they share counted
    once. Found by making the variant from weights that take no memory."""
    sketch = materials.weights.sketch()
    built = choice.kind.build(dataclasses.replace(materials, weights=sketch), choice.device)
    modules = [variant.built.module for variant in loaded]
    present = distinct_tensors(*modules)
    places = {place(tensor) for tensor in present}
    shared = [tensor for tensor in materials.weights.shared(sketch.taken) if place(tensor) in places]
    counted = [tensor for tensor in shared if tensor.dtype != torch.int64]
    return bytes_of(present) + tensor_bytes(built.module) - bytes_of(counted)


def bytes_together(materials: Materials, choices: Sequence[Choice]) -> dict[torch.device, int]:
    """Bytes of all weights on each device once these choices are loaded, what they share counted once. Found
    as in `bytes_after_loading`. Raises ConfigError for a choice that cannot be made of this model."""
    sketched = dataclasses.replace(materials, weights=materials.weights.sketch())
    modules: dict[torch.device, list[nn.Module]] = {}
    for choice in choices:
        modules.setdefault(choice.device, []).append(choice.kind.build(sketched, choice.device).module)
    return {device: tensor_bytes(*made) for device, made in modules.items()}


def shared_bytes(variant: Variant, others: Sequence[Variant]) -> int:
    """Of a variant's bytes, those that others hold as well."""
    modules = [other.built.module for other in others]
    return variant.parameter_bytes + tensor_bytes(*modules) - tensor_bytes(variant.built.module, *modules)
