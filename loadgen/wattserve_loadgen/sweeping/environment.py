"""Where the client ran: enough to repeat a sweep, or to refuse to compare two."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattserve_loadgen.this_machine import cpu_model, usable_cpus, version_of

_PACKAGES = ("wattserve", "grpcio", "protobuf", "numpy", "torch", "matplotlib")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def loadgen_version() -> str:
    return version_of("wattserve") or "unknown"


def describe_client(addresses: Sequence[str]) -> dict[str, Any]:
    """Plain JSON values; what cannot be read is None."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_model": cpu_model(),
        "cpu_count": os.cpu_count(),
        "usable_cpus": usable_cpus(),
        "governor": _read_line(_GOVERNOR),
        "load_average_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "packages": _versions(),
        "git_revision": _git_revision(),
        "same_machine_as_server": any(map(is_this_machine, addresses)),
    }


def is_this_machine(target: str) -> bool:
    """Whether HOST:PORT names an address of this machine. What a tunnel hides, nobody can tell."""
    if target.startswith("unix:"):
        return True
    host = target.rpartition(":")[0].strip("[]")
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: Any) -> bool:
    """Whether a socket can be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _versions() -> dict[str, str]:
    found = {name: version_of(name) for name in _PACKAGES}
    return {name: version for name, version in found.items() if version is not None}


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
