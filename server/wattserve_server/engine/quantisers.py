"""What quantisation libraries make of a checkpoint: read from its config alone, named after what it says.

What each really computes in was found by trying (docs/variants.md); the profiler looks again at every start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from wattserve_server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scheme:
    """name: of the kind. label: the method, for people. weights, proxy: see Kind. operands: what its layers
    multiply in, empty for the dtype of the activations. modules: that it is loaded by, of the packages
    `packages`. is_unpacked: its weights are floating point once loaded. takes_map: the library wants to know
    the device while it loads."""

    name: str
    label: str
    weights: str
    modules: tuple[str, ...]
    packages: str
    operands: str = ""
    proxy: str = ""
    is_unpacked: bool = False
    takes_map: bool = False

    @property
    def missing(self) -> list[str]:
        return [module for module in self.modules if find_spec(module) is None]


_TORCHAO = {
    "Int8WeightOnlyConfig": ("torchao-int8-weight-only", "int8", ""),
    "Int8DynamicActivationInt8WeightConfig": ("torchao-int8", "int8", "int8"),
    "Float8WeightOnlyConfig": ("torchao-fp8-weight-only", "fp8", ""),
    "Float8DynamicActivationFloat8WeightConfig": ("torchao-fp8", "fp8", "fp8"),
}
"""torchao's configurations: the name of the kind, how it stores weights, what it multiplies in."""


def scheme_of(source: str, found: dict[str, Any]) -> Scheme:
    """found: a config's `quantization_config`. Raises ConfigError for what cannot be named truthfully."""
    method = str(found.get("quant_method") or ("bitsandbytes" if _is_bitsandbytes(found) else "unknown"))
    readers = {
        "torchao": _torchao,
        "compressed-tensors": _compressed_tensors,
        "gptq": _gptq,
        "awq": _awq,
        "bitsandbytes": _bitsandbytes,
    }
    if method not in readers:
        raise ConfigError(
            f"model {source!r} is quantised by {method!r}: Wattserve does not know what that computes in, "
            f"and so has no name for it; known: {', '.join(readers)}"
        )
    scheme = readers[method](found)
    if scheme is None:
        raise ConfigError(
            f"model {source!r} is quantised by {method} in a way that Wattserve does not know, and so has no "
            f"name for: {_shown(found)}"
        )
    return scheme


def _torchao(found: dict[str, Any]) -> Scheme | None:
    quantised = found.get("quant_type")
    default = quantised.get("default") if isinstance(quantised, dict) else None
    config = str(default.get("_type")) if isinstance(default, dict) else ""
    if config not in _TORCHAO:
        return None
    name, weights, operands = _TORCHAO[config]
    return Scheme(name, f"torchao ({config})", weights, ("torchao",), "torchao", operands)


def _compressed_tensors(found: dict[str, Any]) -> Scheme | None:
    groups = found.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return None
    forms = {_form(group) for group in groups.values()}
    if len(forms) != 1 or "" in forms:
        return None
    form = forms.pop()
    bits, activations = re.findall(r"\d+", form)[:2]
    family = "fp" if form.endswith("fp") else "int"
    if activations == "16":
        proxy = (
            f"{family}{bits} weights unpacked by compressed-tensors: stored and multiplied in floating point"
        )
    else:
        proxy = (
            f"{family}{bits} weights and {activations}-bit activations simulated by compressed-tensors: "
            "rounded to their levels, stored and multiplied in floating point"
        )
    return Scheme(
        f"compressed-tensors-{form}",
        f"compressed-tensors ({form})",
        f"floating point, rounded to {family}{bits} levels",
        ("compressed_tensors",),
        "compressed-tensors",
        proxy=proxy,
        is_unpacked=True,
    )


def _form(group: Any) -> str:
    """E.g. ``w8a8``, ``w4a16`` or ``w8a8-fp``; empty for what is not understood."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or weights.get("type") not in ("int", "float"):
        return ""
    inputs = group.get("input_activations")
    activations = inputs.get("num_bits") if isinstance(inputs, dict) else 16
    if not isinstance(weights.get("num_bits"), int) or not isinstance(activations, int):
        return ""
    return f"w{weights['num_bits']}a{activations}" + ("-fp" if weights["type"] == "float" else "")


def _gptq(found: dict[str, Any]) -> Scheme | None:
    return _by_gptqmodel("gptq", found, ("gptqmodel", "optimum", "accelerate"))


def _awq(found: dict[str, Any]) -> Scheme | None:
    return _by_gptqmodel("awq", found, ("gptqmodel", "accelerate"))


def _by_gptqmodel(method: str, found: dict[str, Any], modules: tuple[str, ...]) -> Scheme | None:
    bits = found.get("bits", found.get("w_bit"))
    if not isinstance(bits, int):
        return None
    label = f"{method.upper()} ({bits} bit)"
    return Scheme(f"{method}-{bits}bit", label, f"int{bits}", modules, " ".join(modules), takes_map=True)


def _bitsandbytes(found: dict[str, Any]) -> Scheme | None:
    modules = ("bitsandbytes", "accelerate")
    if found.get("load_in_8bit"):
        name, weights, operands = "bitsandbytes-int8", "int8", "int8"
    elif found.get("load_in_4bit") and found.get("bnb_4bit_quant_type") in ("nf4", "fp4"):
        weights = str(found["bnb_4bit_quant_type"])
        name, operands = f"bitsandbytes-{weights}", ""
    else:
        return None
    label = f"bitsandbytes ({weights})"
    return Scheme(name, label, weights, modules, " ".join(modules), operands, takes_map=True)


def _is_bitsandbytes(found: dict[str, Any]) -> bool:
    """Its older checkpoints do not name the method."""
    return bool(found.get("load_in_8bit") or found.get("load_in_4bit"))


def _shown(found: dict[str, Any]) -> str:
    text = ", ".join(f"{key}: {value}" for key, value in found.items() if value and key != "quant_method")
    return text if len(text) <= 120 else text[:117] + "..."
