"""Where the client ran: enough to repeat a sweep, or to refuse to compare two; and what changed meanwhile."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattserve_common.machine import cpu_model, governor, load_average, usable_cores, version_of
from wattserve_loadgen.model.cells import Conditions

_PACKAGES = ("wattserve", "grpcio", "protobuf", "numpy", "torch", "matplotlib")
_CPUS = Path("/sys/devices/system/cpu")
_ZONES = Path("/sys/class/thermal")
_CLOCK_STEP_S = 0.5


def describe_client(addresses: Sequence[str]) -> dict[str, Any]:
    """Plain JSON values; what cannot be read is None."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_model": cpu_model(),
        "cpu_count": os.cpu_count(),
        "usable_cpus": usable_cores(),
        "governor": governor(),
        "load_average_at_start": load_average(),
        "packages": {name: version for name in _PACKAGES if (version := version_of(name)) is not None},
        "git_revision": _git_revision(),
        "same_machine_as_server": any(map(is_this_machine, addresses)),
    }


def is_this_machine(target: str) -> bool:
    """Whether HOST:PORT, or one of several that commas join, names an address of this machine. What a tunnel
    hides, nobody can tell."""
    if "," in target:
        return any(map(is_this_machine, target.split(",")))
    if target.startswith("unix:"):
        return True
    host = target.rpartition(":")[0].strip("[]")
    try:
        places = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_is_own(family, address) for family, _, _, _, address in places)


def conditions_now(cpus: Path = _CPUS, zones: Path = _ZONES) -> Conditions:
    """This machine when a cell begins: the mean clock of its CPUs, its hottest thermal zone as Linux says,
    and its load. None where there is no such figure.
    """
    kilohertz = _numbers(sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")))
    thousandths = _numbers(sorted(zones.glob("thermal_zone*/temp")))
    return Conditions(
        started_unix_seconds=time.time(),
        cpu_mhz=sum(kilohertz) / len(kilohertz) / 1000 if kilohertz else None,
        temperature_celsius=max(thousandths) / 1000 if thousandths else None,
        load_average=load_average(),
    )


class ClockWatch:
    """Notices when somebody sets the wall clock during a sweep. Durations are on the monotonic clock and do
    not suffer; instants in wall-clock time, as in Grafana, do.
    """

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, monotonic: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._offset_ns = wall() - monotonic()

    def step(self) -> str:
        """How the wall clock stepped since the last call, in words; "" when it did not."""
        offset_ns = self._wall() - self._monotonic()
        step_s = (offset_ns - self._offset_ns) / 1e9
        self._offset_ns = offset_ns
        if abs(step_s) < _CLOCK_STEP_S:
            return ""
        return (
            f"The client's wall clock was set {'forward' if step_s > 0 else 'back'} by {abs(step_s):.1f} s;"
            " latencies and energies are on monotonic clocks and do not suffer."
        )


def _is_own(family: int, address: Any) -> bool:
    """Whether a socket can be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


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


def _numbers(paths: list[Path]) -> list[float]:
    numbers = []
    for path in paths:
        with suppress(OSError, ValueError):  # a zone that is switched off cannot be read
            numbers.append(float(path.read_text()))
    return numbers
