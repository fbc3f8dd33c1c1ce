"""What the server says of its meter, as messages: what it is, what its probe found, what is known now."""

from __future__ import annotations

from collections.abc import Sequence

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.probe import MeterPart, SensorProbe
from wattserve_server.energy.reading import MeterStatus
from wattserve_server.service.convert import source_message


def meter_info(
    status: MeterStatus, probe: SensorProbe, parts: Sequence[MeterPart] = (), device: str = ""
) -> pb.MeterInfo:
    """What does not change while the server runs. parts: of a composite meter."""
    return pb.MeterInfo(
        device=device,
        source=source_message(status.source),
        poll_period_seconds=status.poll_period_s,
        boundary=status.source.boundary,
        probe=_probe_message(probe),
        parts=[_part_message(part, status.poll_period_s) for part in parts],
    )


def add_status(message: pb.MeterInfo, status: MeterStatus) -> None:
    """What changes: what is not known stays absent."""
    message.MergeFrom(
        pb.MeterInfo(
            idle_origin=status.idle_origin,
            update_period_seconds=status.update_period_s,
            read_cost_seconds=status.read_cost_s,
            idle_watts=status.idle_watts,
            lag_seconds=status.lag_s,
            ramp_seconds=status.ramp_s,
            neighbours=status.neighbours,
        )
    )


def _part_message(part: MeterPart, poll_period_s: float) -> pb.MeterInfo:
    return pb.MeterInfo(
        source=source_message(part.source),
        poll_period_seconds=poll_period_s,
        boundary=part.source.boundary,
        idle_origin="unknown" if part.idle_watts is None else "configured",
        idle_watts=part.idle_watts,
        probe=None if part.probe is None else _probe_message(part.probe),
    )


def _probe_message(probe: SensorProbe) -> pb.SensorProbe:
    return pb.SensorProbe(
        duration_seconds=probe.duration_s,
        reads=probe.reads,
        stepped=probe.stepped,
        update_period_seconds=probe.update_period_s,
        edge_jitter_seconds=probe.edge_jitter_s,
        read_cost_p50_seconds=probe.read_cost_p50_s,
        read_cost_p99_seconds=probe.read_cost_p99_s,
        resolution_uj=probe.resolution_uj,
        watts=probe.watts,
        cross_checks=[
            pb.CrossCheck(
                window_seconds=check.window_s,
                counter_joules=check.counter_joules,
                power_joules=check.power_joules,
            )
            for check in probe.cross_checks
        ],
        unsupported=dict(probe.unsupported),
    )
