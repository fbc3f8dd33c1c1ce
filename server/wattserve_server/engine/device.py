"""Which device to run on, and what it is called."""

from __future__ import annotations

import platform
import re

import torch

from wattserve_common.machine import cpu_info, cpu_model, usable_cores
from wattserve_common.words import counted
from wattserve_server.errors import ConfigError

NUMBERED = re.compile(r"(cpu|cuda):(\d{1,3})")


def resolve_devices(choice: str) -> tuple[torch.device, ...]:
    """One device as `resolve_device` reads it, or several of one kind, such as `cuda:0,cuda:1`; a CPU has as
    many as it has cores, to try that out. Raises ConfigError when one is not there."""
    if "," not in choice:
        return (resolve_device(choice),)
    where, names = f"--device {choice!r}", [name.strip() for name in choice.split(",")]
    for name in names:
        if not NUMBERED.fullmatch(name):
            raise ConfigError(
                f"{where}: {name!r} is not one of several; name each with its number, as in cuda:0,cuda:1 or "
                "cpu:0,cpu:1"
            )
        if names.count(name) > 1:
            raise ConfigError(f"{where}: {name} is listed twice; name each device once")
    kind, *other_kinds = dict.fromkeys(name.partition(":")[0] for name in names)
    if other_kinds:
        raise ConfigError(
            f"{where}: several devices are of one kind; name one kind here, and the other with a variant, as "
            "in --variants fp32,int8@cpu"
        )
    if kind == "cuda":
        return tuple(resolve_device(name) for name in names)
    cores = usable_cores()
    for name in names:
        if int(name.partition(":")[2]) >= cores:
            raise ConfigError(
                f"{where}: {name} is not there: this process may use {counted(cores, 'core')}, and a CPU has "
                f"no more lanes than cores; the last one is cpu:{cores - 1}"
            )
    return tuple(torch.device(name) for name in names)


def resolve_device(choice: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N`. Raises ConfigError when it is not there."""
    if "," in choice:
        raise ConfigError(f"--device {choice!r}: this command runs on one device; name one of them")
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
    return f"{cpu_model() or platform.machine()} ({counted(usable_cores(), 'core')})"


def cpu_has(feature: str) -> bool:
    """Whether the CPU has an instruction set, by Linux's name for it, e.g. ``avx512_bf16``."""
    return feature in cpu_info("flags").split()
