"""Reply messages into results. Pure: knows nothing of grpc.

Raises ValueError for a message that makes no sense, such as a tensor whose bytes do not fit its shape.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from wattserve_client.reports import (
    CrossCheck,
    EnergyReport,
    Gap,
    Limits,
    Meter,
    SensorProbe,
    ServerInfo,
    Variant,
    VariantEnergy,
    VariantState,
)
from wattserve_client.results import (
    Classification,
    EnergyQuality,
    EnergySource,
    EnergyState,
    Outcome,
    Prediction,
    Receipt,
    ReceiptLine,
    Timing,
)
from wattserve_proto.v1 import inference_pb2 as pb

_STATES = {
    pb.ENERGY_STATE_PROVISIONAL: EnergyState.PROVISIONAL,
    pb.ENERGY_STATE_SETTLED: EnergyState.SETTLED,
    pb.ENERGY_STATE_UNKNOWN: EnergyState.UNKNOWN,
}
_QUALITIES = {
    pb.ENERGY_QUALITY_MEASURED: EnergyQuality.MEASURED,
    pb.ENERGY_QUALITY_ESTIMATED: EnergyQuality.ESTIMATED,
    pb.ENERGY_QUALITY_SIMULATED: EnergyQuality.SIMULATED,
    pb.ENERGY_QUALITY_NONE: EnergyQuality.NONE,
}
_OUTCOMES = {
    pb.OUTCOME_COMPLETED: Outcome.COMPLETED,
    pb.OUTCOME_CANCELLED: Outcome.CANCELLED,
    pb.OUTCOME_FAILED: Outcome.FAILED,
}
_VARIANT_STATES = {
    pb.VARIANT_STATE_READY: VariantState.READY,
    pb.VARIANT_STATE_UNLOADED: VariantState.UNLOADED,
    pb.VARIANT_STATE_LOADING: VariantState.LOADING,
    pb.VARIANT_STATE_FAILED: VariantState.FAILED,
}
_DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # as bits
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
    "UINT8": np.dtype("u1"),
}


def array(message: pb.Tensor) -> npt.NDArray[Any]:
    """A writable array of the tensor's shape in native byte order; BF16 becomes float32, exactly."""
    dtype = _DTYPES.get(message.datatype)
    if dtype is None:
        raise ValueError(f"tensor {message.name!r} has the unknown datatype {message.datatype!r}")
    shape = tuple(message.shape)
    if any(size < 0 for size in shape) or prod(shape) * dtype.itemsize != len(message.data):
        raise ValueError(
            f"tensor {message.name!r} has {len(message.data)} bytes, "
            f"which do not fit {message.datatype} of shape {shape}"
        )
    stored = np.frombuffer(message.data, dtype).reshape(shape)
    if message.datatype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(dtype.newbyteorder("="))


def prediction(message: pb.PredictResponse) -> Prediction:
    return Prediction(
        request_id=message.request_id,
        variant=message.variant,
        output=array(message.output),
        output_name=message.output.name,
        classifications=tuple(
            Classification(each.label, each.label_index, np.array(each.scores, np.float32))
            for each in message.classifications
        ),
        receipt=receipt(message.receipt),
        timing=Timing(
            tokenize_ns=message.timing.tokenize_ns,
            queue_ns=message.timing.queue_ns,
            compute_ns=message.timing.compute_ns,
            total_ns=message.timing.total_ns,
        ),
    )


def receipt(message: pb.Receipt) -> Receipt:
    return Receipt(
        receipt_id=message.receipt_id,
        request_id=message.request_id,
        variant=message.variant,
        device=message.device,
        outcome=_OUTCOMES.get(message.outcome, Outcome.UNSPECIFIED),
        state=_STATES.get(message.state, EnergyState.UNSPECIFIED),
        source=_source(message.source),
        energy_uj=_whole(message, "energy_uj"),
        energy_low_uj=_whole(message, "energy_low_uj"),
        energy_high_uj=_whole(message, "energy_high_uj"),
        idle_share_uj=_whole(message, "idle_share_uj"),
        idle_policy=message.idle_policy,
        split_rule=message.split_rule,
        unknown_reason=message.unknown_reason,
        lines=tuple(
            ReceiptLine(
                energy_uj=_whole(line, "energy_uj"),
                idle_share_uj=_whole(line, "idle_share_uj"),
                tokens=line.tokens,
                padded_tokens=line.padded_tokens,
                batch_size=line.batch_size,
                compute_ns=line.compute_ns,
            )
            for line in message.lines
        ),
        provisional_energy_uj=_whole(message, "provisional_energy_uj"),
        created_unix_ns=message.created_unix_ns,
        warnings=tuple(message.warnings),
        proxy=message.proxy,
        unverified=message.unverified,
    )


def server_info(message: pb.ServerInfo) -> ServerInfo:
    return ServerInfo(
        server_version=message.server_version,
        model_name=message.model_name,
        model_source=message.model_source,
        task=message.task,
        labels=tuple(message.labels),
        accepts_text=message.accepts_text,
        random_weights=message.random_weights,
        default_variant=message.default_variant,
        variants=tuple(variant(each) for each in message.variants),
        meter=_meter(message.meter),
        limits=_limits(message.limits),
        versions=dict(message.versions),
        hardware=message.hardware,
        instance_id=message.instance_id,
        model_parameters=message.model_parameters,
        other_meters=tuple(_meter(each) for each in message.other_meters),
        pixel_shape=tuple(message.pixel_shape),
        model_memory_limit_bytes=message.model_memory_limit_bytes,
    )


def variant(message: pb.VariantInfo) -> Variant:
    return Variant(
        name=message.name,
        device=message.device,
        dtype=message.dtype,
        native=message.native,
        kernels=message.kernels,
        detail=message.detail,
        parameter_bytes=message.parameter_bytes,
        warmup_seconds=message.warmup_seconds,
        warmup_shapes=message.warmup_shapes,
        state=_VARIANT_STATES.get(message.state, VariantState.UNSPECIFIED),
        state_reason=message.state_reason,
        proxy=message.proxy,
        verified=message.verified,
        verification=message.verification,
        operands=message.operands,
        weights=message.weights,
        kept_layers=tuple(message.kept_layers),
        shared_bytes=message.shared_bytes,
        tuning=message.tuning,
        packs_tokens=message.packs_tokens,
        threads=message.threads,
    )


def energy_report(message: pb.EnergyReport) -> EnergyReport:
    measured_uj = _whole(message, "measured_uj")
    return EnergyReport(
        source=_source(message.source),
        since_unix_ns=message.since_unix_ns,
        until_unix_ns=message.until_unix_ns,
        now_unix_ns=message.now_unix_ns,
        measured_uj=measured_uj,
        active=tuple(
            VariantEnergy(
                variant=each.variant,
                # Not optional on the wire: without a measured total, its 0 means "not known".
                active_uj=None if measured_uj is None else each.active_uj,
                sequences=each.sequences,
                tokens=each.tokens,
                padded_tokens=each.padded_tokens,
            )
            for each in message.active
        ),
        warmup_uj=_whole(message, "warmup_uj"),
        idle_uj=_whole(message, "idle_uj"),
        idle_shared_uj=_whole(message, "idle_shared_uj"),
        unattributed_uj=_whole(message, "unattributed_uj"),
        pending_uj=_whole(message, "pending_uj"),
        gap_count=message.gap_count,
        gap_seconds=message.gap_seconds,
        recent_gaps=tuple(
            Gap(gap.start_unix_ns, gap.end_unix_ns or None, gap.reason) for gap in message.recent_gaps
        ),
        unknown_sequences=message.unknown_sequences,
        pending_receipts=message.pending_receipts,
        idle_watts=_real(message, "idle_watts"),
        unknown_reason=message.unknown_reason,
        gap_uj=_whole(message, "gap_uj"),
        device=message.device,
        other_devices=tuple(energy_report(each) for each in message.other_devices),
    )


def _source(message: pb.EnergySource) -> EnergySource:
    return EnergySource(
        name=message.name,
        method=message.method,
        quality=_QUALITIES.get(message.quality, EnergyQuality.UNSPECIFIED),
        note=message.note,
    )


def _meter(message: pb.MeterInfo) -> Meter:
    return Meter(
        source=_source(message.source),
        poll_period_seconds=message.poll_period_seconds,
        update_period_seconds=_real(message, "update_period_seconds"),
        read_cost_seconds=_real(message, "read_cost_seconds"),
        idle_watts=_real(message, "idle_watts"),
        idle_origin=message.idle_origin,
        boundary=message.boundary,
        probe=_probe(message.probe) if message.HasField("probe") else None,
        lag_seconds=_real(message, "lag_seconds"),
        ramp_seconds=_real(message, "ramp_seconds"),
        neighbours=_whole(message, "neighbours"),
        parts=tuple(_meter(part) for part in message.parts),
        device=message.device,
    )


def _probe(message: pb.SensorProbe) -> SensorProbe:
    return SensorProbe(
        duration_seconds=message.duration_seconds,
        reads=message.reads,
        stepped=message.stepped,
        update_period_seconds=_real(message, "update_period_seconds"),
        edge_jitter_seconds=_real(message, "edge_jitter_seconds"),
        read_cost_p50_seconds=_real(message, "read_cost_p50_seconds"),
        read_cost_p99_seconds=_real(message, "read_cost_p99_seconds"),
        resolution_uj=_whole(message, "resolution_uj"),
        watts=_real(message, "watts"),
        cross_checks=tuple(
            CrossCheck(check.window_seconds, check.counter_joules, check.power_joules)
            for check in message.cross_checks
        ),
        unsupported=dict(message.unsupported),
    )


def _limits(message: pb.Limits) -> Limits:
    return Limits(
        max_sequence_tokens=message.max_sequence_tokens,
        max_batch_sequences=message.max_batch_sequences,
        max_batch_tokens=message.max_batch_tokens,
        max_queue_sequences=message.max_queue_sequences,
        max_request_sequences=message.max_request_sequences,
        vocabulary_size=message.vocabulary_size,
        receipt_retention_seconds=message.receipt_retention_seconds,
        receipt_retention_count=message.receipt_retention_count,
        settlement_limit_seconds=message.settlement_limit_seconds,
    )


def _whole(message: Any, field: str) -> int | None:
    """An optional whole number; None when it is absent."""
    value: int | None = getattr(message, field) if message.HasField(field) else None
    return value


def _real(message: Any, field: str) -> float | None:
    """An optional real number; None when it is absent."""
    value: float | None = getattr(message, field) if message.HasField(field) else None
    return value
