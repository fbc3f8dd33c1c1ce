"""bf16: every layer."""

from __future__ import annotations

import torch

from wattserve_server.engine.variants.hardware import bf16_support
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import Built, Kind, Materials


def _build(materials: Materials, device: torch.device) -> Built:
    module = materials.weights.copy(device, torch.bfloat16)
    return Built(module, "all layers", linear_paths(module))


KIND = Kind("bf16", weights="bf16", support=bf16_support, build=_build)
