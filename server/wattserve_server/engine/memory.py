"""Bytes of weights: what loading a variant would take, known before it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.weights import bytes_of, distinct_tensors, place, tensor_bytes
from wattserve_server.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def parse_bytes(text: str, where: str) -> int:
    """E.g. ``2GB``, ``1.5GiB``, ``500000000``. Raises ConfigError, naming `where`."""
    number = text.strip().rstrip("BKMGTIibkmgt")
    unit = text.strip()[len(number) :].upper()
    try:
        amount = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise ConfigError(f"{where} {text!r}: must be an amount of memory such as 500MB, 2GB or 1.5GiB")
    return int(amount)


def format_bytes(amount: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if amount >= size:
            return f"{amount / size:.4g} {unit}"
    return f"{amount} B"


def bytes_after_loading(materials: Materials, choice: Choice, loaded: Sequence[Variant]) -> int:
    """Bytes of all weights on the choice's device once it is loaded beside `loaded`, what they share counted
    once. Found by making the variant from weights that take no memory."""
    sketch = materials.weights.sketch()
    built = choice.kind.build(replace(materials, weights=sketch), choice.device)
    modules = [variant.built.module for variant in loaded]
    present = distinct_tensors(*modules)
    places = {place(tensor) for tensor in present}
    shared = [tensor for tensor in materials.weights.shared(sketch.taken) if place(tensor) in places]
    counted = [tensor for tensor in shared if tensor.dtype != torch.int64]
    return bytes_of(present) + tensor_bytes(built.module) - bytes_of(counted)


def shared_bytes(variant: Variant, others: Sequence[Variant]) -> int:
    """Of a variant's bytes, those that others hold as well."""
    modules = [other.built.module for other in others]
    return variant.parameter_bytes + tensor_bytes(*modules) - tensor_bytes(variant.built.module, *modules)
