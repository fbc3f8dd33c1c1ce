"""One batch of a variant under torch's profiler: which products it really ran, and on what hardware."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.profiler import profile, record_function

from wattserve_server.engine.variants.cpu_verbose import CpuReport, Implementation, cpu_report, unit
from wattserve_server.engine.variants.port import Built
from wattserve_server.engine.variants.trace import CONVOLUTION, LAYER_MARK, MatrixCall, read_trace

if TYPE_CHECKING:  # a variant holds its verification, which comes from here
    from wattserve_server.engine.variants.variant import Batch, Variant

NOT_REPORTED = "not reported"

_ONE_AT_A_TIME = threading.Lock()  # kineto has one session in a process, and CPU libraries one voice

# From the widest; of a product whose operands differ, the wider one says how it was computed.
_WIDTHS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What the name of a CUDA kernel says of the arithmetic in it."""

    precision: str = ""  # of the operands; empty where the name does not tell
    tensor_cores: bool | None = None  # None where the name does not tell


UNTOLD = KernelFacts()

# NVIDIA documents no scheme; the table is what cuBLAS, cuBLASLt, cuDNN, CUTLASS and flash attention have been
# seen to call their kernels. What it does not know it says nothing about. The first pattern found in the name
# counts, so the special ones stand above the general ones.
_KERNELS: tuple[tuple[str, KernelFacts], ...] = (
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
_KERNEL_FACTS = tuple((re.compile(pattern), facts) for pattern, facts in _KERNELS)


def kernel_facts(name: str) -> KernelFacts:
    """Of a kernel's (demangled) name."""
    lowered = name.lower()
    return next((facts for pattern, facts in _KERNEL_FACTS if pattern.search(lowered)), UNTOLD)


def told_precision(names: Iterable[str]) -> str:
    """The first that any of the kernels of one product tells; empty where none does."""
    return next((facts.precision for name in names if (facts := kernel_facts(name)).precision), "")


def on_tensor_cores(names: Iterable[str]) -> bool | None:
    """Whether any of the kernels of one product runs there; None where no name tells."""
    told = [facts.tensor_cores for name in names if (facts := kernel_facts(name)).tensor_cores is not None]
    return any(told) if told else None


@dataclass(frozen=True, slots=True)
class Fp32Flags:
    """What fp32 products and convolutions were allowed to be while the batch ran, in torch's words: ieee,
    tf32, bf16 or none."""

    products: str = "none"
    convolutions: str = "none"


@dataclass(frozen=True, slots=True)
class Profile:
    device: str  # cpu or cuda
    calls: tuple[MatrixCall, ...]  # every matrix product
    layers: frozenset[str]  # the variant's linear layers that ran
    hardware: str = NOT_REPORTED  # the compute capability, or the most that oneDNN uses on this CPU
    implementations: tuple[Implementation, ...] = ()  # on a CPU
    flags: Fp32Flags = Fp32Flags()

    @property
    def unseen(self) -> frozenset[str]:
        """Layers that ran, but not by any product that is known here."""
        return self.layers - {call.layer for call in self.calls}

    def precision(self, call: MatrixCall) -> str:
        """In which a product was computed. fp32 operands may have been rounded on the way in: on a GPU the
        kernel's name decides, and where it tells nothing, the flag that torch hands to the library."""
        widest = min(call.operands, key=lambda name: _WIDTHS.index(name) if name in _WIDTHS else -1)
        if widest != "fp32":
            return widest
        flag = self.flags.convolutions if call.op == CONVOLUTION else self.flags.products
        if self.device == "cuda":
            return told_precision(call.kernels) or ("tf32" if flag == "tf32" else "fp32")
        rounded = {code.fpmath for code in self.implementations} - {""}
        if flag in ("bf16", "tf32") and (rounded or not self.implementations):
            return flag
        return "fp32"

    def units(self) -> str:
        """The matrix hardware that ran, for people, as far as the libraries or the kernels' names tell."""
        if self.device == "cuda":
            told = [on_tensor_cores(call.kernels) for call in self.calls if call.kernels]
            if not told:
                return f"kernels {NOT_REPORTED}"
            return f"Tensor Cores by kernel name in {told.count(True)} of {len(told)} products"
        if not self.implementations:
            return f"instructions {NOT_REPORTED}"
        named = dict.fromkeys(unit(code) for code in self.implementations if unit(code))
        untold = dict.fromkeys(
            f"{code.library} {code.name}" for code in self.implementations if not unit(code)
        )
        words = [", ".join(named)] if named else []
        return "; ".join([*words, *(f"{name} (instructions not named)" for name in untold)])


def profile_batch(variant: Variant, batch: Batch, with_kernels: bool = False) -> Profile:
    """Run one prepared batch and say what it did. Raises what the batch raises, with the profiler off.

    with_kernels: have CUPTI name and time the CUDA kernels. It stays attached to the process and slows later
    launches (github.com/pytorch/pytorch/issues/144455), and detaching it can crash (pytorch/kineto pull
    request 1169): not for a process whose joules are billed.
    """
    on_cuda = variant.device.type == "cuda"
    flags: list[Fp32Flags] = []

    def note_flags(module: nn.Module, inputs: object) -> None:
        flags.append(_flags(on_cuda))

    with _ONE_AT_A_TIME, ExitStack() as undo:
        root = variant.built.module.register_forward_pre_hook(note_flags)
        undo.callback(root.remove)
        undo.enter_context(_marked(variant.built.module, _linears(variant.built)))
        report = undo.enter_context(nullcontext(CpuReport()) if on_cuda else cpu_report())
        events = _profiled(variant, batch, with_cupti=on_cuda and with_kernels)
    trace = read_trace(events)
    return Profile(
        device=variant.device.type,
        calls=trace.calls,
        layers=trace.layers,
        hardware=_capability(variant.device) if on_cuda else report.instructions or NOT_REPORTED,
        implementations=report.implementations,
        flags=flags[-1] if flags else Fp32Flags(),
    )


def begin_on_this_thread() -> None:
    """To be called once, early, on the thread that imported torch: Kineto complains on standard error when
    its first recording is another thread's."""
    with profile(use_kineto=True):
        pass


def _profiled(variant: Variant, batch: Batch, with_cupti: bool) -> list[dict[str, Any]]:
    """The trace's events. Not by torch.profiler, which imports torch's compiler (800 modules) to start."""
    with profile(use_kineto=True, use_device="cuda" if with_cupti else None, record_shapes=True) as recorded:
        variant.run(batch)
    with tempfile.TemporaryDirectory(prefix="wattserve-profile-") as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_bytes().decode(errors="replace"), strict=False)[
            "traceEvents"
        ]
    return events


def _linears(built: Built) -> list[str]:
    """The paths of a variant's linear layers, whatever stands in the place of those that are converted."""
    parts = dict(built.module.named_modules())
    return [*built.converted, *(path for path in built.kept if hasattr(parts.get(path), "out_features"))]


@contextmanager
def _marked(module: nn.Module, paths: Sequence[str]) -> Iterator[None]:
    """Every run of those layers is recorded as a range, by the layer's path."""
    parts = dict(module.named_modules())
    with ExitStack() as undo:
        for path in paths:
            if path in parts:
                before, after = _range(path)
                undo.callback(parts[path].register_forward_pre_hook(before).remove)
                undo.callback(parts[path].register_forward_hook(after, always_call=True).remove)
        yield


def _range(path: str) -> tuple[Callable[[nn.Module, Any], None], Callable[[nn.Module, Any, Any], None]]:
    entered: list[record_function] = []

    def before(module: nn.Module, inputs: object) -> None:
        entered.append(record_function(LAYER_MARK + path))
        entered[-1].__enter__()

    def after(module: nn.Module, inputs: object, output: object) -> None:
        if entered:  # empty after another hook's failure ahead of ours
            entered.pop().__exit__(None, None, None)

    return before, after


def _flags(on_cuda: bool) -> Fp32Flags:
    library = "cuda" if on_cuda else "mkldnn"
    read = torch._C._get_fp32_precision_getter  # what `torch.backends.*.fp32_precision` reads
    return Fp32Flags(read(library, "matmul"), read(library, "conv"))


def _capability(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"compute capability {major}.{minor}"
