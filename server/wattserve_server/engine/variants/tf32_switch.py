"""torch's TF32 flags. They hold for the whole process, and several devices may run batches at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_OVERRIDE = "NVIDIA_TF32_OVERRIDE"


class Tf32Switch:
    """Batches that agree on the flags overlap; those that do not wait for each other."""

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
                self._before = _flags()
                self._on = on
                _set_flags((on, on))
            self._holders += 1
        try:
            yield
        finally:
            with self._changed:
                self._holders -= 1
                if not self._holders:
                    _set_flags(self._before)
                    self._changed.notify_all()


SWITCH = Tf32Switch()


def _flags() -> tuple[bool, bool]:
    # The older allow_tf32 cannot be read once the process has set fp32_precision.
    return (
        torch.backends.cuda.matmul.fp32_precision == "tf32",
        torch.backends.cudnn.conv.fp32_precision == "tf32",  # type: ignore[attr-defined]
    )


def _set_flags(flags: tuple[bool, bool]) -> None:
    # Setting allow_tf32 sets fp32_precision too; the other way round, reading allow_tf32 raises.
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


def library_override() -> bool | None:
    """What NVIDIA's libraries were told of TF32, over any program's head: on, off, or None for nothing."""
    value = os.environ.get(_OVERRIDE, "").strip()
    return None if not value else value != "0"
