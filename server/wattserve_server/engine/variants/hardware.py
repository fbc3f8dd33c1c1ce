"""What a device multiplies natively, by precision: CPU instruction sets and CUDA compute capabilities."""

from __future__ import annotations

import torch

from wattserve_server.engine.device import cpu_has
from wattserve_server.engine.variants.port import Support
from wattserve_server.engine.variants.tf32_switch import library_override


def fp32_support(device: torch.device) -> Support:
    if device.type == "cuda":
        if library_override():
            return Support(False, "NVIDIA_TF32_OVERRIDE=1 is set: fp32 would really be TF32; unset it")
        return Support(True, "CUDA cores, TF32 off", "fp32 GEMM (TF32 off)", "fp32", "fp32")
    return Support(
        True, "every CPU", f"fp32 GEMM ({torch.backends.cpu.get_cpu_capability()})", "fp32", "fp32"
    )


def tf32_support(device: torch.device) -> Support:
    if device.type != "cuda":
        return Support(False, "TF32 is a format of NVIDIA's Tensor Cores; no CPU has it")
    if library_override() is False:
        return Support(False, "NVIDIA_TF32_OVERRIDE=0 is set: tf32 would really be fp32; unset it")
    return tensor_cores(device, (8, 0), "tf32", "Ampere", dtype="fp32")


def bf16_support(device: torch.device) -> Support:
    if device.type == "cuda":
        return tensor_cores(device, (8, 0), "bf16", "Ampere")
    if torch.cpu._is_amx_tile_supported():
        return Support(True, "AMX", "bf16 GEMM (AMX)", "bf16", "bf16")
    if torch.ops.mkldnn._is_mkldnn_bf16_supported() and cpu_has("avx512_bf16"):
        return Support(True, "AVX512-BF16", "bf16 GEMM (AVX512-BF16)", "bf16", "bf16")
    return Support(False, "this CPU has neither AMX nor AVX512-BF16; bf16 would be emulated in fp32")


def fp16_support(device: torch.device) -> Support:
    if device.type == "cuda":
        return tensor_cores(device, (7, 0), "fp16", "Volta")
    if torch.ops.mkldnn._is_mkldnn_fp16_supported() and (cpu_has("amx_fp16") or cpu_has("avx512_fp16")):
        return Support(True, "AVX512-FP16 or AMX-FP16", "fp16 GEMM (AVX512-FP16 or AMX-FP16)", "fp16", "fp16")
    return Support(False, "this CPU has neither AVX512-FP16 nor AMX-FP16; fp16 would be emulated, and slow")


def int8_support(device: torch.device) -> Support:
    if device.type == "cuda":
        found = tensor_cores(device, (7, 5), "int8", "Turing")
        if not found.native:
            return found
        return Support(True, found.why, "int8 x int8 -> int32 GEMM (Tensor Cores)", "fp16", "int8")
    if torch.cpu._is_amx_tile_supported():
        return Support(True, "AMX", "int8 x int8 -> int32 GEMM (AMX)", "fp32", "int8")
    if torch.cpu._is_vnni_supported():
        return Support(True, "AVX512-VNNI", "int8 x int8 -> int32 GEMM (AVX512-VNNI)", "fp32", "int8")
    return Support(False, "this CPU has neither AMX nor AVX512-VNNI; int8 would run as widened arithmetic")


def fp8_support(device: torch.device) -> Support:
    """From Hopper on: Ada multiplies fp8 too, but not with a scale for each row."""
    if device.type != "cuda":
        return Support(False, "no CPU multiplies fp8; it would be emulated in fp32")
    return tensor_cores(device, (9, 0), "fp8", "Hopper", dtype="bf16")


def tensor_cores(
    device: torch.device, least: tuple[int, int], operands: str, family: str, dtype: str = ""
) -> Support:
    """Support for `operands` from compute capability `least` on; activations are of `dtype`, or of
    the same."""
    capability = torch.cuda.get_device_capability(device)
    have = f"compute capability {capability[0]}.{capability[1]}"
    if capability >= least:
        return Support(True, have, f"{operands} GEMM (Tensor Cores)", dtype or operands, operands)
    return Support(False, f"{have}; {operands} Tensor Cores need {least[0]}.{least[1]} ({family}) or later")
