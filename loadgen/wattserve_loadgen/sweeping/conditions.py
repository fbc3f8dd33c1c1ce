"""The state of the client's machine when a cell begins: clock, temperature, load. Linux; None elsewhere."""

from __future__ import annotations

import os
import time
from pathlib import Path

from wattserve_loadgen.results.schema import Conditions

_CPUS = Path("/sys/devices/system/cpu")
_ZONES = Path("/sys/class/thermal")


def conditions_now(cpus: Path = _CPUS, zones: Path = _ZONES) -> Conditions:
    """The mean clock of the CPUs and the hottest thermal zone, as the kernel gives them."""
    kilohertz = _numbers(sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")))
    thousandths = _numbers(sorted(zones.glob("thermal_zone*/temp")))
    return Conditions(
        started_unix_seconds=time.time(),
        cpu_mhz=sum(kilohertz) / len(kilohertz) / 1000 if kilohertz else None,
        temperature_celsius=max(thousandths) / 1000 if thousandths else None,
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _numbers(paths: list[Path]) -> list[float]:
    found = []
    for path in paths:
        try:
            found.append(float(path.read_text()))
        except (OSError, ValueError):
            continue  # a zone that is switched off cannot be read
    return found
