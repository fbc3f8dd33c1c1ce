"""fp16: every layer."""

from __future__ import annotations

import torch

from wattserve_server.engine.variants.hardware import fp16_support
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import Built, Kind, Materials


def _build(materials: Materials, device: torch.device) -> Built:
    module = materials.weights.copy(device, torch.float16)
    return Built(module, "all layers", linear_paths(module))


KIND = Kind("fp16", weights="fp16", support=fp16_support, build=_build)
