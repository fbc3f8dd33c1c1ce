"""The RAPL meter: energy of the CPU packages and their DRAM, counted by the processor, read from powercap.

Knows the powercap file tree and its quirks. Knows nothing about processes: the figure is the whole host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wattserve_server.energy.reading import ZERO, Energy, Quality, Reading, Source
from wattserve_server.errors import MeterError
from wattserve_server.meters.host_load import OthersOnHost
from wattserve_server.meters.port import counted_uj

POWERCAP_ROOT = Path("/sys/class/powercap")

# AMD is served by `intel-rapl` too. `intel-rapl-mmio:0` is package 0 a second time: not matched.
_ZONES = "intel-rapl:*"


class RaplHiddenError(MeterError):
    """The processor counts, and this process may not look."""


@dataclass(slots=True)
class _Domain:
    """One counter: its value in microjoules starts again from 0 after `range_uj`."""

    name: str
    counter: Path
    range_uj: int
    last_uj: int

    def advance(self, now_uj: int, elapsed_ns: int) -> int | None:
        """Microjoules since the last value; None when the counter stepped back without wrapping around."""
        before_uj, self.last_uj = self.last_uj, now_uj
        return counted_uj(before_uj, now_uj, self.range_uj, elapsed_ns)


class RaplMeter:
    """The sum over all packages and their DRAM, in microjoules, counted from the opening of the meter.

    Domains inside a package (core, uncore) and the one around it (psys) are left out: they hold the same
    joules again. DRAM is not part of its package, although powercap lists it below. A domain that wraps
    around is followed; one that steps back otherwise (it was reset) leaves a gap: the sum starts again
    from 0, and the step back tells the reader.
    """

    wraps_at: Energy | None = None
    most_watts: float | None = None
    idle_watts: float | None = None
    poll_period_s: float = 0.02

    def __init__(
        self,
        root: Path = POWERCAP_ROOT,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        others: OthersOnHost | None = None,  # None: those on this host
    ) -> None:
        """root: where powercap is mounted. Raises MeterError if there is no RAPL or it may not be read."""
        self._clock_ns = clock_ns
        self._others = others or OthersOnHost()
        self._closed = False
        self._domains = list(_find_domains(root))
        self._at_ns = clock_ns()
        self._energy = ZERO
        names = ", ".join(domain.name for domain in self._domains)
        dram = "" if "dram" in names else ", without DRAM"
        self.source = Source(
            name="rapl",
            method="apportioned counter",
            quality=Quality.MEASURED,
            note="counted by the processor; includes what other processes on this host draw",
            boundary=f"CPU packages of this host ({names}){dram}",
            counts_server=True,
        )

    def read(self) -> Reading:
        if self._closed:
            raise MeterError("the RAPL meter is closed")
        before_ns = self._clock_ns()
        # All are read before any is booked, so that a failed reading leaves nothing half counted.
        values_uj = [_read_uj(domain.counter) for domain in self._domains]
        at_ns = (before_ns + self._clock_ns()) // 2
        gains_uj = [
            domain.advance(value_uj, at_ns - self._at_ns)
            for domain, value_uj in zip(self._domains, values_uj, strict=True)
        ]
        self._at_ns = at_ns
        sound_uj = [gain_uj for gain_uj in gains_uj if gain_uj is not None]
        self._energy = self._energy + Energy(sum(sound_uj)) if len(sound_uj) == len(gains_uj) else ZERO
        return Reading(at_ns, self._energy)

    def neighbours(self) -> int | None:
        return None  # the processor counts for everybody: how many they are says nothing

    def others_at_work(self) -> float | None:
        return self._others.at_work()

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        self._closed = True


def _find_domains(root: Path) -> Iterator[_Domain]:
    zones = sorted(root.glob(_ZONES)) or sorted((root / "intel-rapl").glob(_ZONES))
    if not zones:
        raise MeterError(
            f"RAPL: {root} has no intel-rapl zones: virtual machines usually have none; "
            "on real hardware load the kernel module (sudo modprobe intel_rapl_msr)"
        )
    packages = [(zone, name) for zone in zones if (name := _read_text(zone / "name")).startswith("package")]
    if not packages:
        raise MeterError(f"RAPL: none of the {len(zones)} intel-rapl zones in {root} is a CPU package")
    for package, name in packages:
        yield _domain(package, name)
        for part in sorted(package.glob(f"{package.name}:*")):
            if _read_text(part / "name") == "dram":
                yield _domain(part, f"{name} dram")


def _domain(zone: Path, name: str) -> _Domain:
    range_uj = _read_uj(zone / "max_energy_range_uj")
    return _Domain(name, zone / "energy_uj", range_uj, _read_uj(zone / "energy_uj"))


def _read_uj(path: Path) -> int:
    text = _read_text(path)
    if not text.isdecimal():
        raise MeterError(f"RAPL: {path} holds {text!r} instead of microjoules")
    return int(text)


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except PermissionError as error:
        raise RaplHiddenError(
            f"RAPL: {path} may be read by root only (so Linux has it since 5.10): run as root "
            "or with CAP_DAC_READ_SEARCH, "
            f"or on the host `sudo chmod a+r {POWERCAP_ROOT}/intel-rapl:*/energy_uj` "
            "(lasts until the next boot; a udev rule makes it last)"
        ) from error
    except FileNotFoundError as error:
        raise RaplHiddenError(
            f"RAPL: {path} is not there although its zone is listed: containers hide it; mount the host's "
            "/sys/devices/virtual/powercap read-only at another path and name that path as the powercap root"
        ) from error
    except OSError as error:
        raise MeterError(f"RAPL: {path} cannot be read: {error.strerror}") from error
