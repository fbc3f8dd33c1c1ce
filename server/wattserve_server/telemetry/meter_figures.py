"""The metrics of the meter: its state, what its probe found, and the parts of a composite.

What is not known has no series, rather than a 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattserve_server.energy.probe import MeterPart, SensorProbe
from wattserve_server.energy.reading import MeterStatus, Quality
from wattserve_server.telemetry import declared_state as declared
from wattserve_server.telemetry.series import Read


@dataclass(frozen=True, slots=True, eq=False)
class MeterFigures:
    """probe: what start-up found. parts: of a composite meter, now."""

    probe: SensorProbe | None
    parts: Callable[[], Sequence[MeterPart]]

    def add(self, read: Read, device: str, status: MeterStatus, offset_ns: int) -> None:
        """offset_ns: from the monotonic clock to Unix time."""
        source = status.source
        is_there = source.quality is not Quality.NONE
        read.add(declared.METER, 1, device, source.name, source.method, source.quality.value)
        read.add(declared.METER_UP, not status.last_error, device)
        read.add(declared.METER_READS, status.reads, device)
        read.add(declared.METER_FAILED_READS, status.failed_reads, device)
        if status.last_read_ns is not None:
            read.add(declared.LAST_READING, (status.last_read_ns + offset_ns) / 1e9, device)
        read.add(declared.IDLE_WATTS, status.idle_watts, device)
        read.add(declared.POLL_PERIOD, status.poll_period_s, device)
        read.add(declared.METER_LAG, status.lag_s if is_there else None, device)
        read.add(declared.METER_RAMP, status.ramp_s if is_there else None, device)
        read.add(declared.NEIGHBOURS, status.neighbours, device)
        if self.probe is not None:
            _add_probe(read, device, self.probe)
        for part in self.parts():
            labels = (device, part.source.name, part.source.quality.value)
            read.add(declared.METER_PARTS, part.energy.uj / 1e6, *labels)


def _add_probe(read: Read, device: str, probe: SensorProbe) -> None:
    resolution_uj, checks = probe.resolution_uj, probe.cross_checks
    read.add(declared.UPDATE_PERIOD, probe.update_period_s, device)
    read.add(declared.EDGE_JITTER, probe.edge_jitter_s, device)
    read.add(declared.RESOLUTION, None if resolution_uj is None else resolution_uj / 1e6, device)
    read.add(declared.CROSS_CHECK, checks[-1].difference_ratio if checks else None, device)
    read.add(declared.READ_COST, probe.read_cost_p50_s, device, "p50")
    read.add(declared.READ_COST, probe.read_cost_p99_s, device, "p99")
