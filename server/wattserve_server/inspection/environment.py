"""Where an inspection ran: enough to repeat it, or to refuse to compare two. No host names and no paths."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from wattserve_server.engine.device import describe_device, usable_cores

_PACKAGES = ("wattserve", "torch", "transformers", "numpy")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def describe(devices: Sequence[torch.device], seed: int | None) -> dict[str, Any]:
    """Plain JSON values; what cannot be read is None."""
    hardware = {str(device): describe_device(device) for device in (torch.device("cpu"), *devices)}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "versions": {"python": platform.python_version(), **_versions()},
        "hardware": hardware,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "usable_cores": usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "governor": _governor(),
        "load_average_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _governor() -> str | None:
    try:
        return _GOVERNOR.read_text().strip()
    except OSError:
        return None
