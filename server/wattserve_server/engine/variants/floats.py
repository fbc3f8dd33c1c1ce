"""The kinds in floating point: the whole model in one dtype. fp16 has a second name, as a stand-in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch

from wattserve_server.engine.variants.hardware import bf16_support, fp16_support, fp32_support, tf32_support
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import Built, Kind, Materials


class Tf32Switch:
    """torch's TF32 flags. They hold for the whole process, and several devices may run batches at a time:
    batches that agree on the flags overlap; those that do not wait for each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders = 0
        self._on = False
        self._before = (False, False)

    @contextmanager
    def hold(self, on: bool) -> Iterator[None]:
        """fp32 products and convolutions on CUDA run in TF32, or do not; afterwards as it was before.

        This outdoes TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, not NVIDIA_TF32_OVERRIDE.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._holders or self._on == on)
            if not self._holders:
                self._before = _tf32_flags()
                self._on = on
                _set_tf32_flags((on, on))
            self._holders += 1
        try:
            yield
        finally:
            with self._changed:
                self._holders -= 1
                if not self._holders:
                    _set_tf32_flags(self._before)
                    self._changed.notify_all()


def _tf32_flags() -> tuple[bool, bool]:
    # The older allow_tf32 cannot be read once the process has set fp32_precision.
    return (
        torch.backends.cuda.matmul.fp32_precision == "tf32",
        torch.backends.cudnn.conv.fp32_precision == "tf32",  # type: ignore[attr-defined]
    )


def _set_tf32_flags(flags: tuple[bool, bool]) -> None:
    # Setting allow_tf32 sets fp32_precision too; the other way round, reading allow_tf32 raises.
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


_SWITCH = Tf32Switch()


def without_tf32(device: torch.device) -> AbstractContextManager[None]:
    """The flags do not concern a CPU, which need not wait for a GPU's tf32 batch."""
    return _SWITCH.hold(False) if device.type == "cuda" else nullcontext()


def _with_tf32(device: torch.device) -> AbstractContextManager[None]:
    return _SWITCH.hold(True)


def _whole_model_in(
    dtype: torch.dtype, how: str = "all layers"
) -> Callable[[Materials, torch.device], Built]:
    def build(materials: Materials, device: torch.device) -> Built:
        module = materials.weights.copy(device, dtype)
        return Built(module, how, linear_paths(module))

    return build


FP32 = Kind(
    "fp32", weights="fp32", support=fp32_support, build=_whole_model_in(torch.float32), running=without_tf32
)
# fp32 tensors whose products keep 10 bits of the mantissa, on Tensor Cores.
TF32 = Kind(
    "tf32",
    weights="fp32",
    support=tf32_support,
    build=_whole_model_in(torch.float32, "all layers; attention's products too"),
    running=_with_tf32,
)
BF16 = Kind("bf16", weights="bf16", support=bf16_support, build=_whole_model_in(torch.bfloat16))
FP16 = Kind("fp16", weights="fp16", support=fp16_support, build=_whole_model_in(torch.float16))
FP16_AS_INT8_PROXY = replace(
    FP16,
    name="fp16-as-int8-proxy",
    proxy="fp16 in place of int8: weights and products are fp16 throughout, nothing is quantised",
)
