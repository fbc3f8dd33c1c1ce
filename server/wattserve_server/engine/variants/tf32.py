"""tf32: fp32 tensors whose products keep 10 bits of the mantissa, on Tensor Cores; CUDA only."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from wattserve_server.engine.variants.hardware import tf32_support
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import Built, Kind, Materials
from wattserve_server.engine.variants.tf32_switch import SWITCH


def _build(materials: Materials, device: torch.device) -> Built:
    module = materials.weights.copy(device, torch.float32)
    return Built(module, "all layers; attention's products too", linear_paths(module))


def _running(device: torch.device) -> AbstractContextManager[None]:
    return SWITCH.hold(True)


KIND = Kind("tf32", weights="fp32", support=tf32_support, build=_build, running=_running)
