"""What the server says of itself: its description and its ledger, as messages."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.ledger import Gap, Ledger
from wattserve_server.energy.reading import MeterStatus
from wattserve_server.engine.device import describe_device
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.meters.sampler import Sampler
from wattserve_server.service.meter_info import add_status
from wattserve_server.service.serving import SETTLEMENT_LIMIT_S

PACKAGES = ("wattserve", "torch", "transformers", "tokenizers", "grpcio", "protobuf", "numpy")


def static_info(engine: Engine, meter: pb.MeterInfo, accepts_text: bool) -> pb.ServerInfo:
    """What GetServerInfo says, but for the changing figures of `meter`."""
    model, limits = engine.model, engine.limits
    device = next(iter(engine.variants.values())).device
    return pb.ServerInfo(
        server_version=version("wattserve"),
        model_name=model.name,
        model_source=model.source,
        task=model.task.name,
        labels=model.labels,
        accepts_text=accepts_text,
        random_weights=model.has_random_weights,
        default_variant=engine.default_variant,
        variants=[_variant_info(variant) for variant in engine.variants.values()],
        meter=meter,
        limits=pb.Limits(
            max_sequence_tokens=model.max_tokens,
            max_batch_sequences=limits.batch.max_sequences,
            max_batch_tokens=limits.batch.max_tokens,
            max_queue_sequences=limits.max_queue,
            max_request_sequences=limits.max_request,
            vocabulary_size=model.vocabulary_size,
            receipt_retention_seconds=int(engine.book.retention_s),
            receipt_retention_count=engine.book.retention_count,
            settlement_limit_seconds=int(SETTLEMENT_LIMIT_S),
        ),
        versions=_versions(),
        hardware=describe_device(device),
        instance_id=engine.book.instance_id,
        model_parameters=model.parameters,
    )


def server_info(static: pb.ServerInfo, status: MeterStatus) -> pb.ServerInfo:
    info = pb.ServerInfo()
    info.CopyFrom(static)
    add_status(info.meter, status)
    return info


def energy_report(sampler: Sampler, engine: Engine, source: pb.EnergySource) -> pb.EnergyReport:
    ledger, status = sampler.ledger, sampler.status
    message = pb.EnergyReport(
        source=source,
        gap_count=ledger.gap_count,
        gap_seconds=ledger.gap_ns / 1e9,
        unknown_sequences=ledger.unknown_lines,
        pending_receipts=engine.book.pending,
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
    for name in engine.variants:
        message.active.append(_variant_energy(ledger, name))
    gaps = [*ledger.recent_gaps, *([ledger.open_gap] if ledger.open_gap else [])]
    message.recent_gaps.extend(_gap_message(gap, offset_ns) for gap in gaps)
    if status.idle_watts is not None:
        message.idle_watts = status.idle_watts
    return message


def _variant_info(variant: Variant) -> pb.VariantInfo:
    return pb.VariantInfo(
        name=variant.name,
        device=str(variant.device),
        dtype=variant.dtype,
        native=True,
        kernels=variant.kernels,
        detail=variant.detail,
        parameter_bytes=variant.parameter_bytes,
        warmup_seconds=variant.warmup_seconds,
        warmup_shapes=variant.warmup_shapes,
    )


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
