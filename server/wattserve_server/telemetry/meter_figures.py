"""The metrics of the meter: its state, what its probe found, and the parts of a composite.

What is not known has no series, rather than a 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from wattserve_server.energy.probe import MeterPart, SensorProbe
from wattserve_server.energy.reading import MeterStatus


@dataclass(frozen=True, slots=True, eq=False)
class MeterFigures:
    """probe: what start-up found. parts: of a composite meter, now."""

    probe: SensorProbe | None
    parts: Callable[[], Sequence[MeterPart]]

    def collect(self, status: MeterStatus) -> Iterable[Metric]:
        source = status.source
        labels = {"source": source.name, "method": source.method, "quality": source.quality.value}
        yield InfoMetricFamily("wattserve_meter", "Where the energy figures come from.", value=labels)
        yield gauge(
            "wattserve_meter_up", "1 when the last read of the meter succeeded.", not status.last_error
        )
        yield counter("wattserve_meter_reads", "Reads of the meter.", status.reads)
        yield counter("wattserve_meter_failed_reads", "Reads that failed.", status.failed_reads)
        yield from known(
            ("wattserve_idle_watts", "The device's idle draw, in watts.", status.idle_watts),
            ("wattserve_meter_poll_period_seconds", "How often the meter is read.", status.poll_period_s),
            (
                "wattserve_meter_lag_seconds",
                "From drawing energy to its being counted, as estimated.",
                status.lag_s,
            ),
            (
                "wattserve_meter_ramp_seconds",
                "Time constant of the device's rise and decay, as estimated.",
                status.ramp_s,
            ),
            ("wattserve_meter_neighbours", "Other processes on the metered device.", status.neighbours),
        )
        if self.probe is not None:
            yield from _probed(self.probe)
        yield from _parts(self.parts())


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=float(value))


def known(*figures: tuple[str, str, float | None]) -> Iterable[Metric]:
    """Gauges of those figures that are known."""
    return [gauge(name, text, value) for name, text, value in figures if value is not None]


def _probed(probe: SensorProbe) -> Iterable[Metric]:
    yield from known(
        (
            "wattserve_meter_update_period_seconds",
            "Median time between updates of the sensor, at start-up.",
            probe.update_period_s,
        ),
        (
            "wattserve_meter_edge_jitter_seconds",
            "Standard deviation of that time.",
            probe.edge_jitter_s,
        ),
        (
            "wattserve_meter_resolution_joules",
            "The smallest step that explains all changes of the sensor, at start-up.",
            None if probe.resolution_uj is None else probe.resolution_uj / 1e6,
        ),
        (
            "wattserve_meter_cross_check_ratio",
            "Counted energy less integrated power at start-up, relative to the latter.",
            probe.cross_checks[-1].difference_ratio if probe.cross_checks else None,
        ),
    )
    if probe.read_cost_p50_s is not None and probe.read_cost_p99_s is not None:
        cost = GaugeMetricFamily(
            "wattserve_meter_read_cost_seconds", "What a read took at start-up.", labels=["quantile"]
        )
        cost.add_metric(["0.5"], probe.read_cost_p50_s)
        cost.add_metric(["0.99"], probe.read_cost_p99_s)
        yield cost


def _parts(parts: Sequence[MeterPart]) -> Iterable[Metric]:
    if not parts:
        return
    joules = CounterMetricFamily(
        "wattserve_meter_part_joules",
        "What a part of the composite meter counted since it was opened. Its joules are in "
        "wattserve_energy_measured_joules_total too, which began after the start-up probe.",
        labels=["part", "quality"],
    )
    for part in parts:
        joules.add_metric([part.source.name, part.source.quality.value], part.energy.uj / 1e6)
    yield joules
