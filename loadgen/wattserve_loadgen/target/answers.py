"""Reads the bytes that a cell collected: answers, then receipts, into records.

Runs after the window, where time is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.data.dataset import NO_LABEL, Dataset
from wattserve_loadgen.drive.closed import Failure, LoopResult, Outcome
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.results.codec import enum_name
from wattserve_loadgen.results.schema import Record
from wattserve_proto.v1 import inference_pb2 as pb

Answer = pb.PredictResponse | Failure
_FINAL = (pb.ENERGY_STATE_SETTLED, pb.ENERGY_STATE_UNKNOWN)
_STATE = pb.DESCRIPTOR.enum_types_by_name["EnergyState"]


def serialise_rows(dataset: Dataset) -> list[bytes]:
    """Each row as a PredictRequest that names no variant yet."""
    make = _image_request if dataset.pixel_shape else _tokens_request
    return [make(row).SerializeToString() for row in dataset.rows]


def _tokens_request(row: npt.NDArray[Any]) -> pb.PredictRequest:
    return pb.PredictRequest(tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=row.tolist())]))


def _image_request(row: npt.NDArray[Any]) -> pb.PredictRequest:
    data = row.astype("<f4", copy=False).tobytes()
    tensor = pb.Tensor(name="pixel_values", datatype="FP32", shape=(1, *row.shape), data=data)
    return pb.PredictRequest(tensors=pb.TensorInput(tensors=[tensor]))


def make_requests(rows: Sequence[bytes], order: Sequence[int], variant: str) -> list[bytes]:
    """Serialised rows in `order`, for `variant`: joined protobuf messages merge."""
    prefix = pb.PredictRequest(variant=variant).SerializeToString()
    return [prefix + rows[row] for row in order]


def parse(outcomes: Sequence[Outcome], variant: str) -> list[Answer]:
    """The answers; one from another variant than the one asked for counts as a failure."""
    answers: list[Answer] = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            answers.append(outcome)
            continue
        response = pb.PredictResponse.FromString(outcome)
        if response.variant == variant:
            answers.append(response)
        else:
            answers.append(Failure("WRONG_VARIANT", f"asked for {variant}, answered by {response.variant!r}"))
    return answers


def unsettled_ids(answers: Sequence[Answer]) -> list[str]:
    """Receipts that were not final when the answer was sent."""
    return [
        answer.receipt.receipt_id
        for answer in answers
        if not isinstance(answer, Failure) and answer.receipt.state not in _FINAL
    ]


def predicted_label(output: pb.Tensor) -> int | None:
    """The index of the highest logit of a one-sequence answer; None when it holds none or they are not
    finite.
    """
    if output.datatype == "FP32":
        logits = np.frombuffer(output.data, dtype="<f4")
    elif output.datatype == "FP16":
        logits = np.frombuffer(output.data, dtype="<f2").astype(np.float32)
    elif output.datatype == "BF16":
        logits = (np.frombuffer(output.data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        return None
    if len(logits) == 0 or not np.isfinite(logits).all():
        return None
    return int(logits.argmax())


def make_records(
    cell: Cell,
    dataset: Dataset,
    order: Sequence[int],
    loop: LoopResult,
    answers: Sequence[Answer],
    receipts: dict[str, pb.Receipt],
    origin_ns: int,
) -> list[Record]:
    """One record per request sent, with its receipt in the last state known."""
    inside = loop.in_window().tolist()
    sent, done = (loop.sent_ns - origin_ns).tolist(), (loop.done_ns - origin_ns).tolist()
    records = []
    for index, answer in enumerate(answers):
        row = order[index % len(order)]
        label = int(dataset.labels[row])
        failed = isinstance(answer, Failure)
        receipt = (
            None if isinstance(answer, Failure) else receipts.get(answer.receipt.receipt_id, answer.receipt)
        )
        records.append(
            Record(
                block=cell.block,
                variant=cell.variant,
                concurrency=cell.concurrency,
                row=row,
                tokens=None if dataset.pixel_shape else len(dataset.rows[row]),
                sent_ns=sent[index],
                done_ns=done[index],
                in_window=inside[index],
                ok=not failed,
                code=answer.code if isinstance(answer, Failure) else "OK",
                message=answer.message if isinstance(answer, Failure) else None,
                predicted=None if isinstance(answer, Failure) else predicted_label(answer.output),
                label=None if label == NO_LABEL else label,
                queue_ns=None if isinstance(answer, Failure) else answer.timing.queue_ns,
                compute_ns=None if isinstance(answer, Failure) else answer.timing.compute_ns,
                **_receipt_fields(receipt),
            )
        )
    return records


def _receipt_fields(receipt: pb.Receipt | None) -> dict[str, Any]:
    if receipt is None:
        names = ("receipt_id", "energy_state", "energy_reason", "batch_size", "padded_tokens")
        return dict.fromkeys((*names, "energy_uj", "energy_low_uj", "energy_high_uj"))
    settled = receipt.state == pb.ENERGY_STATE_SETTLED
    reason = None
    if receipt.state == pb.ENERGY_STATE_UNKNOWN:
        reason = receipt.unknown_reason or "the server gave no reason"
    elif not settled:
        reason = "not settled in time, or no longer kept by the server"
    return {
        "receipt_id": receipt.receipt_id,
        "energy_state": enum_name(_STATE, receipt.state),
        "energy_reason": reason,
        "batch_size": max((line.batch_size for line in receipt.lines), default=None),
        "padded_tokens": sum(line.padded_tokens for line in receipt.lines) if receipt.lines else None,
        "energy_uj": receipt.energy_uj if settled and receipt.HasField("energy_uj") else None,
        "energy_low_uj": receipt.energy_low_uj if settled and receipt.HasField("energy_low_uj") else None,
        "energy_high_uj": receipt.energy_high_uj if settled and receipt.HasField("energy_high_uj") else None,
    }
