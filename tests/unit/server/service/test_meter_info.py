"""The meter on the wire: everything that is known, and nothing in the place of what is not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.probe import CrossCheck, MeterPart, SensorProbe
from wattserve_server.energy.reading import Energy, MeterStatus, Quality, Source
from wattserve_server.service.prediction import DeviceMeter
from wattserve_server.service.report import fill, meter_info, meter_now

SOURCE = Source("nvml:GPU-5", "apportioned counter", Quality.MEASURED, "a note", "GPU board")
ESTIMATE = Source("estimate", "apportioned estimate", Quality.ESTIMATED, "7.5 W", "this process")
PROBE = SensorProbe(
    duration_s=1.3,
    reads=900,
    stepped=True,
    update_period_s=0.1,
    edge_jitter_s=0.002,
    read_cost_p50_s=0.0001,
    read_cost_p99_s=0.0004,
    resolution_uj=1000,
    watts=80.0,
    cross_checks=(CrossCheck(1.2, 99.0, 100.0),),
    unsupported={"average power": "too old"},
)


def status(**known: Any) -> MeterStatus:
    return MeterStatus(SOURCE, 0.01, None, None, None, "unknown", "", 7, 0, **known)


def test_what_the_probe_found_is_said_in_full() -> None:
    assert meter_info(status(), PROBE).probe == pb.SensorProbe(
        duration_seconds=1.3,
        reads=900,
        stepped=True,
        update_period_seconds=0.1,
        edge_jitter_seconds=0.002,
        read_cost_p50_seconds=0.0001,
        read_cost_p99_seconds=0.0004,
        resolution_uj=1000,
        watts=80.0,
        cross_checks=[pb.CrossCheck(window_seconds=1.2, counter_joules=99.0, power_joules=100.0)],
        unsupported={"average power": "too old"},
    )


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    message = meter_info(status(), SensorProbe(0.01, 5, unsupported={"reading": "gone"}))
    fill(message, status())
    assert message == pb.MeterInfo(
        source=pb.EnergySource(
            name="nvml:GPU-5",
            method="apportioned counter",
            quality=pb.ENERGY_QUALITY_MEASURED,
            note="a note",
            boundary="GPU board",
        ),
        poll_period_seconds=0.01,
        boundary="GPU board",
        idle_origin="unknown",
        probe=pb.SensorProbe(duration_seconds=0.01, reads=5, unsupported={"reading": "gone"}),
    )


def test_a_lag_of_zero_and_no_neighbours_are_said_once_they_are_known() -> None:
    message = pb.MeterInfo()
    fill(message, status(lag_s=0.0, ramp_s=0.03, average_s=1.0, unresolved="why", neighbours=0))
    assert (message.average_seconds, message.unresolved) == (1.0, "why")
    assert message.HasField("lag_seconds")
    assert message.HasField("neighbours")
    assert (message.lag_seconds, message.ramp_seconds, message.neighbours) == (0.0, 0.03, 0)


def test_each_part_has_the_idle_draw_that_was_learned_since() -> None:
    parts = (MeterPart(SOURCE, Energy(7), None), MeterPart(ESTIMATE, Energy(3), None))
    whole, board, host = (
        SimpleNamespace(status=replace(status(), idle_watts=watts, idle_origin="measured"))
        for watts in (90.0, 70.0, 20.0)
    )
    booked: Any = {"accelerator": board, "host": host}
    together: Any = whole
    told = meter_now(DeviceMeter("cuda:0", together, meter_info(status(), PROBE, parts), booked))
    assert (told.idle_watts, [part.idle_watts for part in told.parts]) == (90.0, [70.0, 20.0])
    assert {part.idle_origin for part in told.parts} == {"measured"}


def test_each_part_of_a_composite_says_what_it_is() -> None:
    parts = (MeterPart(SOURCE, Energy(7), None, PROBE), MeterPart(ESTIMATE, Energy(3), 5.0))
    first, second = meter_info(status(), PROBE, parts).parts
    assert (first.source.name, first.boundary, first.probe.reads) == ("nvml:GPU-5", "GPU board", 900)
    assert not first.HasField("idle_watts")
    assert (second.source.quality, second.idle_watts, second.idle_origin) == (
        pb.ENERGY_QUALITY_ESTIMATED,
        5.0,
        "configured",
    )
    assert not second.HasField("probe")
