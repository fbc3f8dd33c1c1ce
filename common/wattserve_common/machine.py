"""What this machine is, and which packages run on it. Knows nothing of measuring."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def cpu_info(field: str) -> str:
    """Linux's word for a field of the first core; empty where there is none."""
    try:
        with _CPUINFO.open(encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""


def cpu_model() -> str | None:
    """None where the system does not say."""
    return cpu_info("model name") or cpu_info("Model") or platform.processor() or None


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def governor() -> str | None:
    """Of the first core's clock; None where there is none."""
    try:
        return _GOVERNOR.read_text().strip()
    except OSError:
        return None


def load_average() -> float | None:
    """Of the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
