"""What the server says of itself: its description and its ledger, as messages."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.ledger import Gap, Ledger
from wattserve_server.engine.device import describe_device
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.memory import shared_bytes
from wattserve_server.engine.roster import Entry, State
from wattserve_server.service.meter_info import add_status
from wattserve_server.service.serving import SETTLEMENT_LIMIT_S, DeviceMeter, Ready

_STATES = {
    State.UNLOADED: pb.VARIANT_STATE_UNLOADED,
    State.LOADING: pb.VARIANT_STATE_LOADING,
    State.READY: pb.VARIANT_STATE_READY,
    State.FAILED: pb.VARIANT_STATE_FAILED,
}

PACKAGES = ("wattserve", "torch", "transformers", "tokenizers", "grpcio", "protobuf", "numpy")


def static_info(engine: Engine, accepts_text: bool, memory_limit: int) -> pb.ServerInfo:
    """What GetServerInfo says, but for the variants and the changing figures of the meters."""
    model, limits = engine.model, engine.limits
    device = engine.roster.named(engine.default_variant).choice.device
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
        versions=_versions(),
        hardware=" + ".join(describe_device(lane) for lane in engine.lanes),
        instance_id=engine.book.instance_id,
        model_parameters=model.parameters,
        pixel_shape=model.facts.pixel_shape,
        model_memory_limit_bytes=memory_limit,
    )


def server_info(ready: Ready) -> pb.ServerInfo:
    info = pb.ServerInfo()
    info.CopyFrom(ready.info)
    info.default_variant = ready.engine.default_variant
    info.variants.extend(variant_info(ready.engine, entry) for entry in ready.engine.roster)
    first, *others = (meter_now(meter) for meter in ready.meters.values())
    info.meter.CopyFrom(first)
    info.other_meters.extend(others)
    return info


def meter_now(meter: DeviceMeter) -> pb.MeterInfo:
    info = pb.MeterInfo()
    info.CopyFrom(meter.info)
    add_status(info, meter.sampler.status)
    return info


def energy_report(ready: Ready) -> pb.EnergyReport:
    """The ledger of the default variant's device, with those of other devices in it."""
    first, *others = (device_report(ready, meter) for meter in ready.meters.values())
    first.other_devices.extend(others)
    return first


def device_report(ready: Ready, meter: DeviceMeter) -> pb.EnergyReport:
    ledger, status = meter.sampler.ledger, meter.sampler.status
    message = pb.EnergyReport(
        source=meter.info.source,
        device=meter.device,
        gap_count=ledger.gap_count,
        gap_seconds=ledger.gap_ns / 1e9,
        unknown_sequences=ledger.unknown_lines,
        pending_receipts=ready.engine.book.pending,
        now_unix_ns=time.time_ns(),
    )
    if ledger.since_ns is None or ledger.until_ns is None:
        message.unknown_reason = status.last_error or "the meter has not been read yet"
        return message
    offset_ns = time.time_ns() - time.monotonic_ns()
    message.since_unix_ns = ledger.since_ns + offset_ns
    message.until_unix_ns = ledger.until_ns + offset_ns
    message.measured_uj = ledger.measured_uj
    message.warmup_uj = ledger.warmup_uj
    message.idle_uj = ledger.idle_uj
    message.idle_shared_uj = ledger.idle_shared_uj
    message.unattributed_uj = ledger.unattributed_uj
    message.gap_uj = ledger.gap_uj
    message.pending_uj = ledger.pending_uj
    for entry in ready.engine.roster:
        if str(entry.choice.device) == meter.device:
            message.active.append(_variant_energy(ledger, entry.choice.name))
    gaps = [*ledger.recent_gaps, *([ledger.open_gap] if ledger.open_gap else [])]
    message.recent_gaps.extend(_gap_message(gap, offset_ns) for gap in gaps)
    if status.idle_watts is not None:
        message.idle_watts = status.idle_watts
    return message


def variant_info(engine: Engine, entry: Entry) -> pb.VariantInfo:
    kind, device = entry.choice.kind, entry.choice.device
    support = kind.support(device)
    message = pb.VariantInfo(
        name=entry.choice.name,
        device=str(device),
        dtype=support.dtype,
        native=support.native,
        kernels=support.kernels,
        operands=support.operands,
        weights=kind.weights,
        proxy=kind.proxy,
        state=_STATES[entry.state],
        state_reason=entry.reason,
    )
    if (variant := entry.variant) is not None:
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
    totals = ledger.active.get(name)
    if totals is None:
        return pb.VariantEnergy(variant=name)
    return pb.VariantEnergy(
        variant=name,
        active_uj=totals.active_uj,
        sequences=totals.sequences,
        tokens=totals.tokens,
        padded_tokens=totals.padded_tokens,
    )


def _gap_message(gap: Gap, offset_ns: int) -> pb.Gap:
    end_ns = 0 if gap.end_ns is None else gap.end_ns + offset_ns
    return pb.Gap(start_unix_ns=gap.start_ns + offset_ns, end_unix_ns=end_ns, reason=gap.reason)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
