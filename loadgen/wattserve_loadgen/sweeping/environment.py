"""Where the client ran: enough to repeat a sweep, or to refuse to compare two."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("wattserve", "grpcio", "protobuf", "numpy", "torch", "matplotlib")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CPUINFO = Path("/proc/cpuinfo")


def loadgen_version() -> str:
    return _versions().get("wattserve", "unknown")


def describe_client(addresses: Sequence[str]) -> dict[str, Any]:
    """Plain JSON values; what cannot be read is None."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "governor": _read_line(_GOVERNOR),
        "load_average_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "packages": _versions(),
        "git_revision": _git_revision(),
        "same_machine_as_server": any(map(is_this_machine, addresses)),
    }


def is_this_machine(target: str) -> bool:
    """Whether HOST:PORT names this machine by a loopback address or by its own host name."""
    host = target.rpartition(":")[0].strip("[]")
    if host in ("localhost", socket.gethostname()) or target.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str | None:
    try:
        for line in _CPUINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or None


def _read_line(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _git_revision() -> str | None:
    """The checkout that this package runs from, with `+changes` when it is not as committed."""
    here = Path(__file__).resolve().parent
    try:
        revision = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--", str(here))
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{revision}+changes" if changed else revision


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=5
    ).stdout.strip()
