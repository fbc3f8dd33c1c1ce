"""Between the protocol's messages and the plain values of the fake server of `testing`. Pure: no grpc."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from wattserve_client import _replies
from wattserve_client._fake.books import SOURCE
from wattserve_client._fake.checks import MAX_SEQUENCES, MAX_TOKENS, VOCABULARY_SIZE
from wattserve_client._fake.errors import refusal
from wattserve_client._fake.script import Given, Reply, Request, Script
from wattserve_client.reports import Variant, VariantState
from wattserve_proto.v1 import inference_pb2 as pb

_WORDS = "a fake server for tests: nothing runs"
_STATES = {
    VariantState.READY: pb.VARIANT_STATE_READY,
    VariantState.UNLOADED: pb.VARIANT_STATE_UNLOADED,
    VariantState.LOADING: pb.VARIANT_STATE_LOADING,
    VariantState.FAILED: pb.VARIANT_STATE_FAILED,
}


def fake_variant(name: str) -> Variant:
    """A variant that is ready, runs nothing, and says so."""
    return Variant(
        name=name,
        device="fake",
        dtype=name,
        native=False,
        kernels="none",
        detail="",
        parameter_bytes=0,
        warmup_seconds=0.0,
        warmup_shapes=0,
        state=VariantState.READY,
        verification=_WORDS,
        operands="none",
        weights="none",
    )


def request_of(message: pb.PredictRequest, *, streamed: bool) -> Request:
    """`Refusal` for tensors that make no sense."""
    try:
        inputs = _inputs(message)
    except ValueError as error:
        raise refusal("INVALID_ARGUMENT", str(error), field="tensors.tensors") from error
    return Request(
        inputs=inputs,
        variant=message.variant,
        request_id=message.request_id,
        wait_for_settled_energy=message.wait_for_settled_energy,
        priority=message.priority,
        streamed=streamed,
    )


def _inputs(message: pb.PredictRequest) -> tuple[Given, ...]:
    match message.WhichOneof("input"):
        case "text":
            return tuple(message.text.texts)
        case "tokens":
            return tuple(tuple(sequence.ids) for sequence in message.tokens.sequences)
        case "tensors":
            return _of_tensors({each.name: _replies.array(each) for each in message.tensors.tensors})
        case _:
            return ()


def _of_tensors(arrays: dict[str, Any]) -> tuple[Given, ...]:
    if "pixel_values" in arrays:
        return tuple(arrays["pixel_values"])
    ids = arrays.get("input_ids")
    if ids is None or ids.ndim != 2:
        raise ValueError("tensors are pixel_values, or input_ids of the shape [sequences, length]")
    mask = arrays.get("attention_mask", np.ones_like(ids))
    if mask.shape != ids.shape:
        raise ValueError(f"attention_mask has the shape {mask.shape}, input_ids {ids.shape}")
    lengths = (mask != 0).sum(axis=1).tolist()
    return tuple(tuple(row[:length].tolist()) for row, length in zip(ids, lengths, strict=True))


def response(
    request_id: str, variant: str, replies: Sequence[Reply], script: Script, receipt: pb.Receipt
) -> pb.PredictResponse:
    rows, scores = zip(*(script.row(reply) for reply in replies), strict=True)
    output = np.stack(rows).astype("<f4")
    message = pb.PredictResponse(
        request_id=request_id,
        variant=variant,
        output=pb.Tensor(
            name="logits" if script.labels else "embedding",
            datatype="FP32",
            shape=output.shape,
            data=output.tobytes(),
        ),
        receipt=receipt,
    )
    if script.labels:
        for each in scores:
            best = int(each.argmax())
            message.classifications.add(label_index=best, label=script.labels[best], scores=each.tolist())
    return message


def variant_info(variant: Variant) -> pb.VariantInfo:
    return pb.VariantInfo(
        name=variant.name,
        device=variant.device,
        dtype=variant.dtype,
        native=variant.native,
        kernels=variant.kernels,
        detail=variant.detail,
        parameter_bytes=variant.parameter_bytes,
        warmup_seconds=variant.warmup_seconds,
        warmup_shapes=variant.warmup_shapes,
        state=_STATES.get(variant.state, pb.VARIANT_STATE_UNSPECIFIED),
        state_reason=variant.state_reason,
        proxy=variant.proxy,
        verified=variant.verified,
        verification=variant.verification,
        operands=variant.operands,
        weights=variant.weights,
        kept_layers=variant.kept_layers,
        shared_bytes=variant.shared_bytes,
        tuning=variant.tuning,
        packs_tokens=variant.packs_tokens,
        threads=variant.threads,
    )


def server_info(instance_id: str, labels: Sequence[str], variants: Sequence[Variant]) -> pb.ServerInfo:
    """The first variant is the default one."""
    return pb.ServerInfo(
        server_version="fake",
        model_name="fake",
        model_source=_WORDS,
        task="sequence-classification" if labels else "feature-extraction",
        labels=labels,
        accepts_text=True,
        random_weights=True,
        default_variant=variants[0].name,
        variants=[variant_info(each) for each in variants],
        meter=pb.MeterInfo(
            source=SOURCE,
            idle_watts=0,
            idle_origin="configured",
            boundary="no hardware",
            device=variants[0].device,
        ),
        limits=pb.Limits(
            max_sequence_tokens=MAX_TOKENS,
            max_batch_sequences=256,
            max_batch_tokens=65536,
            max_queue_sequences=65536,
            max_request_sequences=MAX_SEQUENCES,
            vocabulary_size=VOCABULARY_SIZE,
            receipt_retention_seconds=600,
            receipt_retention_count=100_000,
            settlement_limit_seconds=10,
        ),
        versions={"python": platform.python_version()},
        hardware="none: a fake server for tests",
        instance_id=instance_id,
    )
