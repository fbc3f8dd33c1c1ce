"""Reads the bytes that a cell collected: answers, then receipts, into records.

Runs after the window, where time is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from wattserve_client import EnergyState, Receipt
from wattserve_client.wire import array, from_message
from wattserve_common.dataset import NO_LABEL, Dataset
from wattserve_loadgen.drive.job import LoopResult, Outcome
from wattserve_loadgen.model.cells import Record, RecordedGeneration
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.target.generation import Generated
from wattserve_loadgen.target.wire import CallFailure
from wattserve_proto.v1 import inference_pb2 as pb

Answered = pb.PredictResponse | Generated
Answer = Answered | CallFailure
_FINAL = (pb.ENERGY_STATE_SETTLED, pb.ENERGY_STATE_UNKNOWN)


def parse(outcomes: Sequence[Outcome], variant: str, read: Callable[[bytes], Answered]) -> list[Answer]:
    """The answers; one from another variant than the one asked for counts as a failure, as does one that
    `read` cannot use (it raises ValueError).
    """
    answers: list[Answer] = []
    for outcome in outcomes:
        if isinstance(outcome, CallFailure):
            answers.append(outcome)
            continue
        try:
            response = read(outcome)
        except ValueError as error:
            answers.append(CallFailure("BAD_ANSWER", str(error)))
            continue
        if response.variant == variant:
            answers.append(response)
        else:
            answers.append(
                CallFailure("WRONG_VARIANT", f"asked for {variant}, answered by {response.variant!r}")
            )
    return answers


def unsettled_ids(answers: Sequence[Answer]) -> list[str]:
    """Receipts that were not final when the answer was sent."""
    ends = [_end(answer) for answer in answers if not isinstance(answer, CallFailure)]
    return [
        end.receipt.receipt_id for end in ends if end.HasField("receipt") and end.receipt.state not in _FINAL
    ]


def _end(answer: Answered) -> pb.PredictResponse | pb.GenerationEnd:
    """The message that holds receipt and timing."""
    return answer.end if isinstance(answer, Generated) else answer


def predicted_labels(output: pb.Tensor, sequences: int) -> list[int | None]:
    """The index of the highest logit of each sequence; None where there is none, or one is not finite."""
    try:
        logits = array(output)
    except ValueError:  # its bytes do not fit its shape
        return [None] * sequences
    if logits.dtype.kind != "f" or logits.size == 0 or logits.size % sequences:
        return [None] * sequences
    table = logits.reshape(sequences, -1)
    finite = np.isfinite(table).all(axis=1).tolist()
    highest = table.argmax(axis=1).tolist()
    return [label if is_known else None for label, is_known in zip(highest, finite, strict=True)]


def make_records(
    cell: Cell,
    dataset: Dataset,
    groups: Sequence[Sequence[int]],
    loop: LoopResult,
    answers: Sequence[Answer],
    receipts: dict[str, Receipt],
    origin_ns: int,
    servers: Sequence[str] = (),
) -> list[Record]:
    """One record per request sent, with its receipt in the last state known. `groups[i]`: the rows of
    request i. `servers`: of a fleet, where each went to.
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
        failed = isinstance(answer, CallFailure)
        receipt = _receipt_of(answer, receipts)
        generation = _generation(answer, receipt, origin_ns) if isinstance(answer, Generated) else None
        tokens = None if dataset.pixel_shape else sum(lengths[row] for row in rows)
        if tokens is not None and generation is not None:
            tokens += generation.output_tokens
        records.append(
            Record(
                cell=cell.position,
                block=cell.block,
                arm=cell.arm.name,
                load=cell.load.name,
                rows=rows,
                tokens=tokens,
                scheduled_ns=None if due is None else due[index],
                sent_ns=sent[index],
                done_ns=done[index],
                in_window=inside[index],
                ok=not failed,
                code=answer.code if isinstance(answer, CallFailure) else "OK",
                message=answer.message if isinstance(answer, CallFailure) else None,
                predicted=predicted_labels(answer.output, len(rows))
                if isinstance(answer, pb.PredictResponse)
                else [None] * len(rows),
                labels=[labels[row] for row in rows],
                queue_ns=_timed(answer, "queue_ns"),
                compute_ns=_timed(answer, "compute_ns"),
                generation=generation,
                server=servers[index] if servers else None,
                **_receipt_fields(receipt),
            )
        )
    return records


def _generation(answer: Generated, receipt: Receipt | None, origin_ns: int) -> RecordedGeneration:
    energy = receipt.generation if receipt is not None and receipt.settled else None
    usage = answer.end.usage
    return RecordedGeneration(
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        first_token_ns=answer.arrivals_ns[0] - origin_ns,
        gaps_ns=[after - before for before, after in pairwise(answer.arrivals_ns)],
        prompt_uj=None if energy is None else energy.prompt_energy_uj,
        output_uj=None if energy is None else energy.output_energy_uj,
        overhead_uj=None if energy is None else energy.overhead_energy_uj,
    )


def _timed(answer: Answer, name: str) -> int | None:
    """None from a server that does not say."""
    if isinstance(answer, CallFailure) or not _end(answer).HasField("timing"):
        return None
    return int(getattr(_end(answer).timing, name))


def _receipt_of(answer: Answer, receipts: dict[str, Receipt]) -> Receipt | None:
    """In the last state known: as it was asked for, or as it came with the answer."""
    if isinstance(answer, CallFailure) or not _end(answer).HasField("receipt"):
        return None
    message = _end(answer).receipt
    later = receipts.get(message.receipt_id)
    return from_message(Receipt, message) if later is None else later


def _receipt_fields(receipt: Receipt | None) -> dict[str, Any]:
    if receipt is None:
        names = ("receipt_id", "energy_state", "energy_reason", "batch_size", "padded_tokens")
        return dict.fromkeys((*names, "energy_uj", "energy_low_uj", "energy_high_uj"))
    reason = None
    if receipt.state is EnergyState.UNKNOWN:
        reason = receipt.unknown_reason or "the server gave no reason"
    elif not receipt.settled:
        reason = "not settled in time, or no longer kept by the server"
    return {
        "receipt_id": receipt.receipt_id,
        "energy_state": receipt.state.value,
        "energy_reason": reason,
        "batch_size": max((line.batch_size for line in receipt.lines), default=None),
        "padded_tokens": sum(line.padded_tokens for line in receipt.lines) if receipt.lines else None,
        "energy_uj": receipt.energy_uj if receipt.settled else None,
        "energy_low_uj": receipt.energy_low_uj if receipt.settled else None,
        "energy_high_uj": receipt.energy_high_uj if receipt.settled else None,
    }
