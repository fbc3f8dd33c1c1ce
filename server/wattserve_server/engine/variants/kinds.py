"""The kinds of variants: what each needs from a device, and how it is made from the fp32 module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

from wattserve_server.engine.device import cpu_has
from wattserve_server.engine.variants.int8 import Int8Linear, quantise_linears
from wattserve_server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a device runs a kind natively. why: the reason, either way; kernels: what would do
    the matrix work; dtype: of the activations between layers."""

    native: bool
    why: str
    kernels: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One precision. support: asks a device. build: makes the module (a copy) and says the details."""

    name: str
    support: Callable[[torch.device], Support]
    build: Callable[[torch.nn.Module, torch.device], tuple[torch.nn.Module, str]]


def _fp32_support(device: torch.device) -> Support:
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")  # an environment variable may have allowed TF32
        return Support(True, "CUDA cores, TF32 off", "fp32 GEMM (TF32 off)", "fp32")
    return Support(True, "every CPU", f"fp32 GEMM ({torch.backends.cpu.get_cpu_capability()})", "fp32")


def _bf16_support(device: torch.device) -> Support:
    if device.type == "cuda":
        return _tensor_cores(device, (8, 0), "bf16", "Ampere")
    if torch.cpu._is_amx_tile_supported():
        return Support(True, "AMX", "bf16 GEMM (AMX)", "bf16")
    if torch.ops.mkldnn._is_mkldnn_bf16_supported() and cpu_has("avx512_bf16"):
        return Support(True, "AVX512-BF16", "bf16 GEMM (AVX512-BF16)", "bf16")
    return Support(False, "this CPU has neither AMX nor AVX512-BF16; bf16 would be emulated in fp32")


def _fp16_support(device: torch.device) -> Support:
    if device.type == "cuda":
        return _tensor_cores(device, (7, 0), "fp16", "Volta")
    if torch.ops.mkldnn._is_mkldnn_fp16_supported() and (cpu_has("amx_fp16") or cpu_has("avx512_fp16")):
        return Support(True, "AVX512-FP16 or AMX-FP16", "fp16 GEMM (AVX512-FP16 or AMX-FP16)", "fp16")
    return Support(False, "this CPU has neither AVX512-FP16 nor AMX-FP16; fp16 would be emulated, and slow")


def _int8_support(device: torch.device) -> Support:
    if device.type == "cuda":
        found = _tensor_cores(device, (7, 5), "int8", "Turing")
        if not found.native:
            return found
        return Support(True, found.why, "int8 x int8 -> int32 GEMM (Tensor Cores)", "fp16")
    if torch.cpu._is_amx_tile_supported():
        return Support(True, "AMX", "int8 x int8 -> int32 GEMM (AMX)", "fp32")
    if torch.cpu._is_vnni_supported():
        return Support(True, "AVX512-VNNI", "int8 x int8 -> int32 GEMM (AVX512-VNNI)", "fp32")
    return Support(False, "this CPU has neither AMX nor AVX512-VNNI; int8 would run as widened arithmetic")


def _tensor_cores(device: torch.device, least: tuple[int, int], dtype: str, family: str) -> Support:
    capability = torch.cuda.get_device_capability(device)
    have = f"compute capability {capability[0]}.{capability[1]}"
    if capability >= least:
        return Support(True, have, f"{dtype} GEMM (Tensor Cores)", dtype)
    return Support(False, f"{have}; {dtype} Tensor Cores need {least[0]}.{least[1]} ({family}) or later")


def _as_dtype(dtype: torch.dtype) -> Callable[[torch.nn.Module, torch.device], tuple[torch.nn.Module, str]]:
    def build(module: torch.nn.Module, device: torch.device) -> tuple[torch.nn.Module, str]:
        return copy.deepcopy(module).to(device=device, dtype=dtype).eval(), "all layers"

    return build


def _build_int8(module: torch.nn.Module, device: torch.device) -> tuple[torch.nn.Module, str]:
    made = copy.deepcopy(module)
    quantised = quantise_linears(made)
    if quantised.parameters * 2 < sum(p.numel() for p in module.parameters() if p.ndim > 1) - _embeddings(
        module
    ):
        raise ConfigError(
            f"int8 would leave most of this model as it is: only {quantised.replaced} of its layers are "
            "linear layers that the integer product takes"
        )
    rest = torch.float16 if device.type == "cuda" else torch.float32
    for part in made.modules():
        if not isinstance(part, Int8Linear):  # which keeps its scales in fp32
            _cast_own_tensors(part, rest)
    total = quantised.replaced + len(quantised.kept)
    detail = f"{quantised.replaced} of {total} linear layers; weights per channel, activations per token"
    if quantised.kept:
        detail += f"; kept in {str(rest).removeprefix('torch.')}: {', '.join(quantised.kept)}"
    return made.to(device).eval(), detail


def _embeddings(module: torch.nn.Module) -> int:
    """Weights that are looked up, not multiplied."""
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, torch.nn.Embedding))


def _cast_own_tensors(module: torch.nn.Module, dtype: torch.dtype) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.to(dtype)
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            setattr(module, name, buffer.to(dtype))


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("fp32", _fp32_support, _as_dtype(torch.float32)),
        Kind("bf16", _bf16_support, _as_dtype(torch.bfloat16)),
        Kind("fp16", _fp16_support, _as_dtype(torch.float16)),
        Kind("int8", _int8_support, _build_int8),
    )
}


def choose_kinds(names: str | None, device: torch.device) -> list[Kind]:
    """`names`: comma-separated, or None for all that are native. Raises ConfigError for an unknown
    name, a repeated one, or one that the device cannot run natively."""
    if names is None:
        return [kind for kind in KINDS.values() if kind.support(device).native]
    chosen: list[Kind] = []
    for name in (part.strip() for part in names.split(",")):
        kind = KINDS.get(name)
        if kind is None:
            raise ConfigError(f"unknown variant {name!r}; known: {', '.join(KINDS)}")
        if kind in chosen:
            raise ConfigError(f"variant {name!r} is listed twice")
        support = kind.support(device)
        if not support.native:
            raise ConfigError(f"variant {name!r} cannot run on {device}: {support.why}")
        chosen.append(kind)
    return chosen
