"""What a device multiplies natively, by precision: CPU instruction sets and CUDA compute capabilities."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from wattserve_server.engine.device import cpu_has
from wattserve_server.engine.variants.port import Support

_TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"

# By operands: the compute capability from which on Tensor Cores take them, its name, the activations' dtype.
# fp8 from Hopper on: Ada multiplies it too, but not with a scale for each row.
_TENSOR_CORES = {
    "tf32": ((8, 0), "Ampere", "fp32"),
    "bf16": ((8, 0), "Ampere", "bf16"),
    "fp16": ((7, 0), "Volta", "fp16"),
    "int8": ((7, 5), "Turing", "fp16"),
    "fp8": ((9, 0), "Hopper", "bf16"),
}


def fp32_support(device: torch.device) -> Support:
    if device.type == "cuda":
        if _tf32_override():
            return Support(False, "NVIDIA_TF32_OVERRIDE=1 is set: fp32 would really be TF32; unset it")
        return Support(True, "CUDA cores, TF32 off", "fp32 GEMM (TF32 off)", "fp32", "fp32")
    return Support(
        True, "every CPU", f"fp32 GEMM ({torch.backends.cpu.get_cpu_capability()})", "fp32", "fp32"
    )


def tf32_support(device: torch.device) -> Support:
    if device.type != "cuda":
        return Support(False, "TF32 is a format of NVIDIA's Tensor Cores; no CPU has it")
    if _tf32_override() is False:
        return Support(False, "NVIDIA_TF32_OVERRIDE=0 is set: tf32 would really be fp32; unset it")
    return _tensor_cores(device, "tf32")


def bf16_support(device: torch.device) -> Support:
    if device.type == "cuda":
        return _tensor_cores(device, "bf16")
    if torch.cpu._is_amx_tile_supported():
        return Support(True, "AMX", "bf16 GEMM (AMX)", "bf16", "bf16")
    if torch.ops.mkldnn._is_mkldnn_bf16_supported() and cpu_has("avx512_bf16"):
        return Support(True, "AVX512-BF16", "bf16 GEMM (AVX512-BF16)", "bf16", "bf16")
    return Support(False, "this CPU has neither AMX nor AVX512-BF16; bf16 would be emulated in fp32")


def fp16_support(device: torch.device) -> Support:
    if device.type == "cuda":
        return _tensor_cores(device, "fp16")
    if torch.ops.mkldnn._is_mkldnn_fp16_supported() and (cpu_has("amx_fp16") or cpu_has("avx512_fp16")):
        return Support(True, "AVX512-FP16 or AMX-FP16", "fp16 GEMM (AVX512-FP16 or AMX-FP16)", "fp16", "fp16")
    return Support(False, "this CPU has neither AVX512-FP16 nor AMX-FP16; fp16 would be emulated, and slow")


def int8_support(device: torch.device) -> Support:
    if device.type == "cuda":
        return _tensor_cores(device, "int8")
    if torch.cpu._is_amx_tile_supported():
        return Support(True, "AMX", "int8 x int8 -> int32 GEMM (AMX)", "fp32", "int8")
    if torch.cpu._is_vnni_supported():
        return Support(True, "AVX512-VNNI", "int8 x int8 -> int32 GEMM (AVX512-VNNI)", "fp32", "int8")
    return Support(False, "this CPU has neither AMX nor AVX512-VNNI; int8 would run as widened arithmetic")


def int8_sums_saturate(device: torch.device) -> bool:
    """Whether a CPU multiplies bytes by AVX2, which adds two products in 16 bits. 8 bits by 8 bits come to
    more than that, 7 bits by 8 bits do not."""
    return device.type == "cpu" and not int8_support(device).native and torch.cpu._is_avx2_supported()


def own_int8_support(device: torch.device) -> Support:
    """Of int8 layers that keep activations to 7 bits where sums saturate."""
    if int8_sums_saturate(device):
        return Support(
            True, "AVX2, activations in 7 bits", "int7 x int8 -> int32 GEMM (AVX2)", "fp32", "int8"
        )
    return int8_support(device)


def fp8_support(device: torch.device) -> Support:
    if device.type != "cuda":
        return Support(False, "no CPU multiplies fp8; it would be emulated in fp32")
    return _tensor_cores(device, "fp8")


def _tensor_cores(device: torch.device, operands: str) -> Support:
    least, family, dtype = _TENSOR_CORES[operands]
    capability = torch.cuda.get_device_capability(device)
    have = f"compute capability {capability[0]}.{capability[1]}"
    if capability < least:
        need = f"{operands} Tensor Cores need {least[0]}.{least[1]} ({family}) or later"
        return Support(False, f"{have}; {need}")
    product = "int8 x int8 -> int32" if operands == "int8" else operands
    return Support(True, have, f"{product} GEMM (Tensor Cores)", dtype, operands)


def with_kernels(support: Support, addition: str) -> Support:
    """The same with more said of its kernels, where it is native."""
    return replace(support, kernels=f"{support.kernels}, {addition}") if support.native else support


def _tf32_override() -> bool | None:
    """What NVIDIA's libraries were told of TF32, over any program's head: on, off, or None for nothing."""
    value = os.environ.get(_TF32_OVERRIDE, "").strip()
    return None if not value else value != "0"
