"""What this machine is, and which packages run on it. Knows nothing of measuring."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def cpu_model() -> str | None:
    """None where the system does not say."""
    try:
        for line in _CPUINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or None


def usable_cpus() -> int | None:
    """Those that this process may run on; None where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
