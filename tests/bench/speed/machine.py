"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "grpcio", "protobuf", "numpy")
FEATURES = (
    "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "amx_int8",
)  # fmt: skip
PREFIXES = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "ONEDNN_",
    "DNNL_",
    "LRU_CACHE_",
    "MALLOC_",
    "LD_PRELOAD",
    "WATTSERVE_",
)
ROOT = Path(__file__).resolve().parents[3]


def describe() -> dict[str, Any]:
    """Our server adds variables of its own before it imports torch; plain torch is run without those of
    threads."""
    flags = _cpu("flags").split()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu("model name") or platform.processor() or platform.machine(),
        "family, model, stepping": ", ".join(map(_cpu, ("cpu family", "model", "stepping"))),
        "cores": usable_cores(),
        "MHz that the kernel tells": _cpu("cpu MHz"),
        "features": " ".join(feature for feature in FEATURES if feature in flags),
        "kernel": platform.release(),
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "environment of the shell": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)
        },
    }


def usable_cores() -> int:
    """That this process may run on. The server has such a function, in a module that imports torch."""
    return len(os.sched_getaffinity(0))


def cpu_seconds(pid: int) -> float:
    """Of a process and all its threads, user and system."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stolen_and_all() -> tuple[int, int]:
    """Ticks of all cores that the host gave to others, and all ticks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[7], sum(fields)


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu(field: str) -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
