"""One batch of a variant under torch's profiler: which products it really ran, and on what hardware."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.profiler import profile, record_function

from wattserve_server.engine.variants.cpu_verbose import CpuReport, Implementation, cpu_report, unit
from wattserve_server.engine.variants.kernel_names import on_tensor_cores, told_precision
from wattserve_server.engine.variants.port import Built
from wattserve_server.engine.variants.trace import CONVOLUTION, LAYER_MARK, MatrixCall, read_trace

if TYPE_CHECKING:  # a variant holds its verification, which comes from here
    from wattserve_server.engine.variants.variant import Batch, Variant

NOT_REPORTED = "not reported"

_ONE_AT_A_TIME = threading.Lock()  # kineto has one session in a process, and CPU libraries one voice

# From the widest; of a product whose operands differ, the wider one says how it was computed.
_WIDTHS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


@dataclass(frozen=True, slots=True)
class Fp32Flags:
    """What fp32 products and convolutions were allowed to be while the batch ran, in torch's words: ieee,
    tf32, bf16 or none."""

    products: str = "none"
    convolutions: str = "none"


@dataclass(frozen=True, slots=True)
class Profile:
    """device: cpu or cuda. calls: every matrix product. layers: the variant's linear layers that ran.
    hardware: the compute capability, or the most that oneDNN uses on this CPU. implementations: on a CPU."""

    device: str
    calls: tuple[MatrixCall, ...]
    layers: frozenset[str]
    hardware: str = NOT_REPORTED
    implementations: tuple[Implementation, ...] = ()
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
        rounded = {each.fpmath for each in self.implementations} - {""}
        if flag in ("bf16", "tf32") and (rounded or not self.implementations):
            return flag
        return "fp32"

    def units(self) -> str:
        """The matrix hardware that ran, for people, as far as the libraries or the kernels' names tell."""
        if self.device == "cuda":
            told = [on_tensor_cores(call.kernels) for call in self.calls if call.kernels]
            if not told:
                return f"kernels {NOT_REPORTED}"
            count = sum(1 for each in told if each)
            return f"Tensor Cores by kernel name in {count} of {len(told)} products"
        if not self.implementations:
            return f"instructions {NOT_REPORTED}"
        named = dict.fromkeys(unit(each) for each in self.implementations if unit(each))
        untold = dict.fromkeys(
            f"{each.library} {each.name}" for each in self.implementations if not unit(each)
        )
        found = [", ".join(named)] if named else []
        return "; ".join([*found, *(f"{name} (instructions not named)" for name in untold)])


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
    return [*built.converted, *(path for path in built.kept if isinstance(parts.get(path), nn.Linear))]


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
        entered[-1].__enter__()  # type: ignore[no-untyped-call]  # torch has not typed it

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
