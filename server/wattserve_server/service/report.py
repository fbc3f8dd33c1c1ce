"""What the server says of itself as messages: its description, its meters, its ledger."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import TypeVar

from google.protobuf.message import Message

from wattserve_common.machine import version_of
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.ledger import Gap, Ledger, total
from wattserve_server.energy.probe import MeterPart, SensorProbe
from wattserve_server.energy.reading import MeterStatus
from wattserve_server.engine.book import Run
from wattserve_server.engine.device import describe_device
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.roster import HostedVariant, Readiness
from wattserve_server.engine.weights import shared_bytes
from wattserve_server.service.prediction import SETTLEMENT_LIMIT_S, DeviceMeter, Host
from wattserve_server.service.source import source_message

M = TypeVar("M", bound=Message)

_STATES = {
    Readiness.UNLOADED: pb.VARIANT_STATE_UNLOADED,
    Readiness.LOADING: pb.VARIANT_STATE_LOADING,
    Readiness.CALIBRATING: pb.VARIANT_STATE_CALIBRATING,
    Readiness.READY: pb.VARIANT_STATE_READY,
    Readiness.FAILED: pb.VARIANT_STATE_FAILED,
}

PACKAGES = ("wattserve", "torch", "transformers", "tokenizers", "grpcio", "protobuf", "numpy")


def static_info(engine: Engine, accepts_text: bool, memory_limit: int) -> pb.ServerInfo:
    """What GetServerInfo says, except for the variants and the changing figures of the meters."""
    model, limits = engine.model, engine.limits
    device = engine.roster.named(engine.default_variant).choice.device
    packages = {package: found for package in PACKAGES if (found := version_of(package)) is not None}
    return pb.ServerInfo(
        server_version=version("wattserve"),
        model_name=model.name,
        model_source=model.source,
        task=model.task.name,
        labels=model.labels,
        accepts_text=accepts_text,
        random_weights=model.has_random_weights,
        limits=pb.Limits(
            max_sequence_tokens=model.facts.max_tokens,
            max_batch_sequences=limits.batch[device].max_sequences,
            max_batch_tokens=limits.batch[device].max_tokens,
            max_queue_sequences=limits.max_queue,
            max_request_sequences=limits.max_request,
            vocabulary_size=model.facts.vocabulary_size,
            receipt_retention_seconds=int(engine.book.retention_s),
            receipt_retention_count=engine.book.retention_count,
            settlement_limit_seconds=int(SETTLEMENT_LIMIT_S),
        ),
        versions={"python": platform.python_version(), **packages},
        hardware=" + ".join(describe_device(lane) for lane in engine.lanes),
        instance_id=engine.book.run.instance_id,
        model_parameters=model.parameters,
        weights_digest=model.weights_digest,
        pixel_shape=model.facts.pixel_shape,
        model_memory_limit_bytes=memory_limit,
    )


def server_info(host: Host) -> pb.ServerInfo:
    info = pb.ServerInfo()
    info.CopyFrom(host.info)
    info.default_variant = host.engine.default_variant
    info.variants.extend(variant_info(host.engine, hosted) for hosted in host.engine.roster)
    first, *others = (meter_now(meter) for meter in host.meters.values())
    info.meter.CopyFrom(first)
    info.other_meters.extend(others)
    return info


def meter_now(meter: DeviceMeter) -> pb.MeterInfo:
    info = pb.MeterInfo()
    info.CopyFrom(meter.info)
    status = meter.sampler.status
    info.source.CopyFrom(source_message(status.source))
    info.boundary = status.source.boundary
    for part, sampler in zip(info.parts, meter.booked.values(), strict=False):  # one alone is no part
        fill(part, sampler.status)
    return fill(info, status)


def energy_report(host: Host) -> pb.EnergyReport:
    """The ledger of the default variant's device, with those of other devices in it."""
    first, *others = (device_report(host, meter) for meter in host.meters.values())
    first.other_devices.extend(others)
    return first


def device_report(host: Host, meter: DeviceMeter) -> pb.EnergyReport:
    """The ledger of a device, or of what several share, with those of its counters in it."""
    ledgers = {part: sampler.ledger for part, sampler in meter.booked.items()}  # once: they add up
    message = _report(host, meter.device, total(list(ledgers.values())), meter.sampler.status)
    for part, ledger in ledgers.items():
        one = message.parts.add()
        one.CopyFrom(_report(host, meter.device, ledger, meter.booked[part].status))
        one.part = part
    return message


def _report(host: Host, device: str, ledger: Ledger, status: MeterStatus) -> pb.EnergyReport:
    run = host.engine.book.run
    message = pb.EnergyReport(
        source=source_message(status.source),
        device=device,
        gap_count=ledger.gap_count,
        gap_seconds=ledger.gap_ns / 1e9,
        unknown_sequences=ledger.unknown_lines,
        pending_receipts=host.engine.book.pending,
        now_unix_ns=run.unix_ns(time.monotonic_ns()),
        instance_id=run.instance_id,
    )
    if ledger.since_ns is None or ledger.until_ns is None:
        message.unknown_reason = status.last_error or "the meter has not been read yet"
        return message
    message.since_unix_ns = run.unix_ns(ledger.since_ns)
    message.until_unix_ns = run.unix_ns(ledger.until_ns)
    fill(message, ledger)
    for hosted in host.engine.roster:
        if device in map(str, hosted.choice.devices) or hosted.choice.name in ledger.active:
            message.active.append(_variant_energy(ledger, hosted.choice.name))
    gaps = [*ledger.recent_gaps, *([ledger.open_gap] if ledger.open_gap else [])]
    message.recent_gaps.extend(_gap_message(gap, run) for gap in gaps)
    if status.idle_watts is not None:
        message.idle_watts = status.idle_watts
    return message


def variant_info(engine: Engine, hosted: HostedVariant) -> pb.VariantInfo:
    kind, device = hosted.choice.kind, hosted.choice.device
    support = kind.support(device)
    message = pb.VariantInfo(
        name=hosted.choice.name,
        device=str(device),
        dtype=support.dtype,
        native=support.native,
        kernels=support.kernels,
        operands=support.operands,
        weights=kind.weights,
        proxy=kind.proxy,
        state=_STATES[hosted.state],
        state_reason=hosted.reason,
        other_devices=map(str, hosted.choice.others),
    )
    if (variant := hosted.variant) is not None:
        others = [other for other in engine.roster.ready if other is not variant]
        message.detail = variant.built.detail
        message.kept_layers.extend(variant.built.kept)
        message.parameter_bytes = variant.parameter_bytes
        message.shared_bytes = shared_bytes(variant, others)
        message.tuning = variant.tuning
        message.packs_tokens = variant.packing is not None
        message.threads = variant.threads
        message.warmup_seconds = variant.warmup_seconds
        message.warmup_shapes = variant.warmup_shapes
        message.verified = variant.verification.verified
        message.verification = variant.verification.words
    return message


def _variant_energy(ledger: Ledger, name: str) -> pb.VariantEnergy:
    return fill(pb.VariantEnergy(variant=name), ledger.active.get(name))


def _gap_message(gap: Gap, run: Run) -> pb.Gap:
    end_ns = 0 if gap.end_ns is None else run.unix_ns(gap.end_ns)
    return pb.Gap(start_unix_ns=run.unix_ns(gap.start_ns), end_unix_ns=end_ns, reason=gap.reason)


def fill(message: M, values: object) -> M:
    """Copy the numbers and texts that `message` and `values` have by the same name; `_s` fills `_seconds`.
    What is None stays absent."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(values, re.sub("_seconds$", "_s", field.name), None)
        if isinstance(value, (bool, int, float, str)):
            setattr(message, field.name, value)
    return message


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
    checks = [fill(pb.CrossCheck(), check) for check in probe.cross_checks]
    return fill(pb.SensorProbe(cross_checks=checks, unsupported=dict(probe.unsupported)), probe)
