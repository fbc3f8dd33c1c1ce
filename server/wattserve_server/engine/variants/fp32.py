"""fp32: every layer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from wattserve_server.engine.variants.hardware import fp32_support
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import Built, Kind, Materials
from wattserve_server.engine.variants.tf32_switch import SWITCH


def _build(materials: Materials, device: torch.device) -> Built:
    module = materials.weights.copy(device, torch.float32)
    return Built(module, "all layers", linear_paths(module))


def _running(device: torch.device) -> AbstractContextManager[None]:
    """Without TF32. The flags do not concern a CPU, which need not wait for a GPU's tf32 batch."""
    return SWITCH.hold(False) if device.type == "cuda" else nullcontext()


KIND = Kind("fp32", weights="fp32", support=fp32_support, build=_build, running=_running)
