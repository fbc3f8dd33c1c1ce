"""What the name of a CUDA kernel says of the arithmetic in it.

NVIDIA documents no scheme; the table is what cuBLAS, cuBLASLt, cuDNN, CUTLASS and flash attention have been
seen to call theirs. What it does not know it says nothing about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """precision: of the operands, empty where the name does not tell. tensor_cores: None, likewise."""

    precision: str = ""
    tensor_cores: bool | None = None


UNTOLD = KernelFacts()

# The first pattern found in the name counts, so the special ones stand above the general ones.
_PATTERNS: tuple[tuple[str, KernelFacts], ...] = (
    # Helpers around a product: copies, fills, the sums of split products, casts, packing.
    (r"splitk.?reduce|^void at::native|^mem(set|cpy)|reduce_kernel|nchwtonhwc|nhwctonchw", UNTOLD),
    # nvjet_qqtst_...: cuBLAS on Hopper and later; q is e4m3 (or e5m2), t bf16, h fp16.
    (r"e4m3|e5m2|qgmma|nvjet_(sm\d+_)?(qq|oo|qo|oq)|fp8", KernelFacts("fp8", True)),
    (r"simt_igemm|simt_i8|igemm_int8|dp4a", KernelFacts("int8", False)),
    # cutlass_80_tensorop_i16832gemm_s8_..., sm90_xmma_gemm_i8i32_i8i32_i32_..., turing_int8_i8816gemm...
    (r"imma|i8816|i16832|i16864|igmma|xmma_\w+?_(i8|s8|u8)|gemm_s8|int8_", KernelFacts("int8", True)),
    (r"bf16|bfloat16_t|nvjet_(sm\d+_)?t", KernelFacts("bf16", True)),
    # ahead of s1688, which is the shape of both Turing's fp16 and Ampere's tf32 products
    (
        r"_f16_s1688|fp16_s1688|h1688|s16816|h16816|[sh]884|hmma|hgmma|nvjet_(sm\d+_)?h|half_t|"
        r"xmma_\w+?_f16|fp16_\w*gemm|_f16_\w*(gemm|fprop)|tensorop_f16|fmha_cutlassf_f16",
        KernelFacts("fp16", True),
    ),
    (r"tf32|s1688", KernelFacts("tf32", True)),
    # sm80_xmma_gemm_f32f32_f32f32_f32_...: xmma without Tensor Cores
    (r"xmma_\w+?_f32f32_f32f32_f32|simt_sgemm|simt_s|ffma", KernelFacts("fp32", False)),
    (r"tensorop|gmma|nvjet|flash_fwd", KernelFacts("", True)),
    (
        r"sgemm|scudnn|gemmsn|gemmk1|implicit_convolve|convolve_common|winograd.*sgemm",
        KernelFacts("fp32", False),
    ),
    (r"hgemm", KernelFacts("fp16", False)),
    (r"gemv|gemvx|gemvns|dot_kernel", KernelFacts("", False)),
)
_TABLE = tuple((re.compile(pattern), facts) for pattern, facts in _PATTERNS)


def kernel_facts(name: str) -> KernelFacts:
    """Of a kernel's (demangled) name."""
    lowered = name.lower()
    return next((facts for pattern, facts in _TABLE if pattern.search(lowered)), UNTOLD)


def told_precision(names: Iterable[str]) -> str:
    """The first that any of the kernels of one product tells; empty where none does."""
    return next((facts.precision for name in names if (facts := kernel_facts(name)).precision), "")


def on_tensor_cores(names: Iterable[str]) -> bool | None:
    """Whether any of the kernels of one product runs there; None where no name tells."""
    told = [facts.tensor_cores for name in names if (facts := kernel_facts(name)).tensor_cores is not None]
    return any(told) if told else None
