"""Which device to run on, and what it is called."""

from __future__ import annotations

import os
import platform

import torch

from wattserve_common.words import counted
from wattserve_server.errors import ConfigError


def resolve_device(choice: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N`. Raises ConfigError when it is not there."""
    if choice == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(choice)
    except RuntimeError:
        raise ConfigError(f"unknown device {choice!r}; known: auto, cpu, cuda, cuda:N") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ConfigError(f"device {choice!r} is not supported; known: auto, cpu, cuda, cuda:N")
    if not torch.cuda.is_available():
        why = "this torch was built without CUDA" if torch.version.cuda is None else "torch sees no CUDA GPU"
        raise ConfigError(f"device {choice!r} is not there: {why} (torch {torch.__version__})")
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise ConfigError(f"device {choice!r} is not there: torch sees {torch.cuda.device_count()} GPU(s)")
    return torch.device("cuda", index)


def device_uuid(device: torch.device) -> str | None:
    """The GPU's UUID, so that the meter reads the same board whatever CUDA calls it; None on CPU."""
    if device.type != "cuda":
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def describe_device(device: torch.device) -> str:
    """The hardware's name, for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_model()} ({counted(usable_cores(), 'core')})"


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_has(feature: str) -> bool:
    """Whether the CPU has an instruction set, by Linux's name for it, e.g. ``avx512_bf16``."""
    return feature in _cpu_info("flags").split()


def _cpu_model() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_info(field: str) -> str:
    """A field of the first core in /proc/cpuinfo; empty where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""
