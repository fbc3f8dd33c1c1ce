"""Between messages and what the engine works with: checked items in, answers and receipts out.

Pure: no transport, no clock. Errors name the field in the request message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.attribution import IDLE_POLICY
from wattserve_server.energy.reading import Quality, Source
from wattserve_server.energy.receipt import Line, Outcome, Receipt, State
from wattserve_server.engine.tasks import InputFacts, Item
from wattserve_server.errors import InvalidRequest
from wattserve_server.service.tensors import (
    Ids,
    check_count,
    describe_pixels,
    ids_of_tensors,
    images_of_tensors,
)

MAX_TEXT_CHARACTERS = 200_000
"""Of all texts of a request; more would keep the tokenizer from others for too long."""

MAX_REQUEST_ID = 256
"""Characters. Ids are kept with the receipts."""

_STATES = {
    State.PROVISIONAL: pb.ENERGY_STATE_PROVISIONAL,
    State.SETTLED: pb.ENERGY_STATE_SETTLED,
    State.UNKNOWN: pb.ENERGY_STATE_UNKNOWN,
}
_OUTCOMES = {
    Outcome.OPEN: pb.OUTCOME_UNSPECIFIED,
    Outcome.COMPLETED: pb.OUTCOME_COMPLETED,
    Outcome.CANCELLED: pb.OUTCOME_CANCELLED,
    Outcome.FAILED: pb.OUTCOME_FAILED,
}
_QUALITIES = {
    Quality.MEASURED: pb.ENERGY_QUALITY_MEASURED,
    Quality.ESTIMATED: pb.ENERGY_QUALITY_ESTIMATED,
    Quality.SIMULATED: pb.ENERGY_QUALITY_SIMULATED,
    Quality.NONE: pb.ENERGY_QUALITY_NONE,
}


def check_request_id(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID:
        raise InvalidRequest(
            f"{len(request_id)} characters; at most {MAX_REQUEST_ID} are kept and echoed", "request_id"
        )


def texts_of(request: pb.PredictRequest, max_sequences: int) -> list[str]:
    """The texts of a request that holds texts. Raises InvalidRequest."""
    texts = request.text.texts
    if not texts:
        raise InvalidRequest("a request needs at least one text", "text.texts")
    check_count(len(texts), max_sequences, "text.texts")
    for index, text in enumerate(texts):
        if not text.strip():
            raise InvalidRequest("the text is empty", f"text.texts[{index}]")
    characters = sum(len(text) for text in texts)
    if characters > MAX_TEXT_CHARACTERS:
        raise InvalidRequest(
            f"{characters} characters; at most {MAX_TEXT_CHARACTERS} of a request are tokenised", "text.texts"
        )
    return list(texts)


def items_of(request: pb.PredictRequest, facts: InputFacts, max_sequences: int) -> list[Item]:
    """The items of a request that holds tokens or tensors, checked against what the model takes.

    Raises InvalidRequest for what the model does not take, texts for a model of images among it.
    """
    kind = request.WhichOneof("input")
    if kind is None:
        raise InvalidRequest("a request needs one of text, tokens or tensors", "input")
    if facts.pixel_shape:
        if kind != "tensors":
            raise InvalidRequest(f"this model takes {describe_pixels(facts)}", kind)
        return [*images_of_tensors(request.tensors.tensors, facts, max_sequences)]
    if kind == "text":
        raise InvalidRequest("texts are to be tokenised first", kind)
    if kind == "tensors":
        ids = ids_of_tensors(request.tensors.tensors, max_sequences)
        check_ids(ids, facts, "tensors.tensors")
        return [*ids]
    sequences = request.tokens.sequences
    if not sequences:
        raise InvalidRequest("a request needs at least one sequence", "tokens.sequences")
    check_count(len(sequences), max_sequences, "tokens.sequences")
    ids = [np.array(sequence.ids, dtype=np.int64) for sequence in sequences]
    check_ids(ids, facts, "tokens.sequences")
    return [*ids]


def check_ids(sequences: Sequence[Ids], facts: InputFacts, field: str) -> None:
    """Everything that could make a model fail or answer nonsense. Raises InvalidRequest."""
    for index, ids in enumerate(sequences):
        if len(ids) == 0:
            raise InvalidRequest("the sequence is empty", f"{field}[{index}]")
        if len(ids) > facts.max_tokens:
            raise InvalidRequest(
                f"the sequence has {len(ids)} tokens; this model takes at most {facts.max_tokens}",
                f"{field}[{index}]",
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= facts.vocabulary_size:
            raise InvalidRequest(
                f"token id {low if low < 0 else high} is outside the vocabulary, 0 to "
                f"{facts.vocabulary_size - 1}",
                f"{field}[{index}]",
            )


def output_tensor(name: str, rows: Sequence[NDArray[np.float32]]) -> pb.Tensor:
    """rows: float32 [width] each."""
    array = np.ascontiguousarray(np.stack(rows), dtype="<f4")
    return pb.Tensor(name=name, datatype="FP32", shape=array.shape, data=array.tobytes())


def classification(scores: NDArray[np.float32], labels: Sequence[str]) -> pb.Classification:
    best = int(scores.argmax())
    return pb.Classification(label_index=best, label=labels[best], scores=scores.tolist())


def source_message(source: Source) -> pb.EnergySource:
    return pb.EnergySource(
        name=source.name, method=source.method, quality=_QUALITIES[source.quality], note=source.note
    )


def receipt_message(receipt: Receipt, source: pb.EnergySource) -> pb.Receipt:
    """What is known of the receipt now."""
    state = receipt.state
    message = pb.Receipt(
        receipt_id=receipt.receipt_id,
        request_id=receipt.request_id,
        variant=receipt.variant,
        device=receipt.device,
        outcome=_OUTCOMES[receipt.outcome],
        state=_STATES[state],
        source=source,
        idle_policy=IDLE_POLICY,
        split_rule=receipt.split_rule,
        unknown_reason=receipt.reason,
        lines=[_line_message(line, state) for line in receipt.lines],
        created_unix_ns=receipt.created_unix_ns,
        warnings=receipt.warnings,
        proxy=receipt.proxy,
        unverified=receipt.is_unverified,
    )
    if (energy_uj := receipt.energy_uj) is not None:
        message.energy_uj = energy_uj
    elif not message.unknown_reason:
        message.unknown_reason = (
            source.note
            if source.quality == pb.ENERGY_QUALITY_NONE
            else f"the cost law of {receipt.variant!r} is not known yet; this will settle"
        )
    if (interval := receipt.interval_uj()) is not None:
        message.energy_low_uj, message.energy_high_uj = interval
    if (idle_uj := receipt.idle_share_uj) is not None:
        message.idle_share_uj = idle_uj
    if (provisional_uj := receipt.provisional_uj) is not None:
        message.provisional_energy_uj = provisional_uj
    return message


def _line_message(line: Line, state: State) -> pb.ReceiptLine:
    message = pb.ReceiptLine(
        tokens=line.tokens,
        padded_tokens=line.padded_tokens,
        batch_size=line.batch_size,
        compute_ns=line.compute_ns,
    )
    energy_uj = line.energy_uj if line.is_settled else line.provisional_uj
    if energy_uj is not None and state is not State.UNKNOWN:
        message.energy_uj = energy_uj
    if line.idle_share_uj is not None:
        message.idle_share_uj = line.idle_share_uj
    return message
