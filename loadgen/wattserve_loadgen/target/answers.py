"""Reads the bytes that a cell collected: answers, then receipts, into records.

Runs after the window, where time is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wattserve_loadgen.data.dataset import NO_LABEL, Dataset
from wattserve_loadgen.drive.outcome import Failure, LoopResult, Outcome
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.results.codec import enum_name
from wattserve_loadgen.results.schema import Record
from wattserve_proto.v1 import inference_pb2 as pb

Answer = pb.PredictResponse | Failure
_FINAL = (pb.ENERGY_STATE_SETTLED, pb.ENERGY_STATE_UNKNOWN)
_STATE = pb.DESCRIPTOR.enum_types_by_name["EnergyState"]


def parse(
    outcomes: Sequence[Outcome], variant: str, read: Callable[[bytes], pb.PredictResponse]
) -> list[Answer]:
    """The answers; one from another variant than the one asked for counts as a failure, as does one that
    `read` cannot use (it raises ValueError).
    """
    answers: list[Answer] = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            answers.append(outcome)
            continue
        try:
            response = read(outcome)
        except ValueError as error:
            answers.append(Failure("BAD_ANSWER", str(error)))
            continue
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
        if not isinstance(answer, Failure)
        and answer.HasField("receipt")
        and answer.receipt.state not in _FINAL
    ]


def predicted_labels(output: pb.Tensor, sequences: int) -> list[int | None]:
    """The index of the highest logit of each sequence; None where there is none, or one is not finite."""
    unknown: list[int | None] = [None] * sequences
    if output.datatype == "FP32":
        logits = np.frombuffer(output.data, dtype="<f4")
    elif output.datatype == "FP16":
        logits = np.frombuffer(output.data, dtype="<f2").astype(np.float32)
    elif output.datatype == "BF16":
        logits = (np.frombuffer(output.data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        return unknown
    if len(logits) == 0 or len(logits) % sequences:
        return unknown
    table = logits.reshape(sequences, -1)
    finite = np.isfinite(table).all(axis=1).tolist()
    return [
        best if known else None for best, known in zip(table.argmax(axis=1).tolist(), finite, strict=True)
    ]


def make_records(
    cell: Cell,
    dataset: Dataset,
    groups: Sequence[Sequence[int]],
    loop: LoopResult,
    answers: Sequence[Answer],
    receipts: dict[str, pb.Receipt],
    origin_ns: int,
) -> list[Record]:
    """One record per request sent, with its receipt in the last state known. `groups[i]`: the rows of
    request i.
    """
    inside = loop.in_window().tolist()
    sent, done = (loop.sent_ns - origin_ns).tolist(), (loop.done_ns - origin_ns).tolist()
    due = None if loop.scheduled_ns is None else (loop.scheduled_ns - origin_ns).tolist()
    which = loop.request_index.tolist()
    labels = [None if label == NO_LABEL else label for label in dataset.labels.tolist()]
    lengths = dataset.lengths.tolist()
    records = []
    for index, answer in enumerate(answers):
        rows = list(groups[which[index]])
        failed = isinstance(answer, Failure)
        receipt = (
            None
            if isinstance(answer, Failure) or not answer.HasField("receipt")
            else receipts.get(answer.receipt.receipt_id, answer.receipt)
        )
        records.append(
            Record(
                cell=cell.position,
                block=cell.block,
                arm=cell.arm.name,
                load=cell.load.name,
                rows=rows,
                tokens=None if dataset.pixel_shape else sum(lengths[row] for row in rows),
                scheduled_ns=None if due is None else due[index],
                sent_ns=sent[index],
                done_ns=done[index],
                in_window=inside[index],
                ok=not failed,
                code=answer.code if isinstance(answer, Failure) else "OK",
                message=answer.message if isinstance(answer, Failure) else None,
                predicted=[None] * len(rows)
                if isinstance(answer, Failure)
                else predicted_labels(answer.output, len(rows)),
                labels=[labels[row] for row in rows],
                queue_ns=_timed(answer, "queue_ns"),
                compute_ns=_timed(answer, "compute_ns"),
                **_receipt_fields(receipt),
            )
        )
    return records


def _timed(answer: Answer, name: str) -> int | None:
    """None from a server that does not say."""
    if isinstance(answer, Failure) or not answer.HasField("timing"):
        return None
    return int(getattr(answer.timing, name))


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
