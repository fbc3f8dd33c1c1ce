"""Predictions by the native protocol, and what becomes of its messages.

Reading and writing messages is pure: no transport, no clock. Errors name the field in the request message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.reading import Source
from wattserve_server.energy.receipt import Figures, Line, Outcome, Receipt, Role, State
from wattserve_server.engine.generation.port import TokenIds
from wattserve_server.engine.policy import NORMAL_PRIORITY
from wattserve_server.engine.tasks import InputFacts, Item
from wattserve_server.errors import InvalidRequest, OverloadedError
from wattserve_server.meters.composite import joined
from wattserve_server.service.caller import CALLER, Caller
from wattserve_server.service.checks import (
    GivenTensor,
    check_count,
    check_energy_limit,
    check_ids,
    check_length,
    check_predicts,
    check_priority,
    check_rank,
    check_request_id,
    check_tensors,
    check_texts,
    check_truncates,
    describe_pixels,
    ids_of_tensors,
    images_of_tensors,
)
from wattserve_server.service.generation import Unread
from wattserve_server.service.prediction import Answered, Asked, Host, Options, Predictor, Serving
from wattserve_server.service.source import source_message
from wattserve_server.service.spent import spent_on
from wattserve_server.service.status import failure_of
from wattserve_server.service.streams import answers
from wattserve_server.telemetry.observer import Times


class PredictMethods:
    _serving: Serving
    unread: Unread
    _predictor: Predictor

    async def Predict(self, request: pb.PredictRequest, context: Any) -> pb.PredictResponse:
        message = pb.PredictResponse()
        await self._answer(request, context.time_remaining(), CALLER.get(), message)
        return message

    async def PredictStream(
        self, request_iterator: AsyncIterator[pb.PredictRequest], context: Any
    ) -> AsyncIterator[pb.PredictStreamResponse]:
        open_ids: set[str] = set()
        caller = CALLER.get()

        async def answer(request: pb.PredictRequest) -> pb.PredictStreamResponse:
            request_id = request.request_id
            if not request_id or request_id in open_ids:
                why = "is in flight already" if request_id else "is empty"
                error: Exception = InvalidRequest(f"{why}; on a stream it must be unique", "request_id")
                try:
                    self._predictor.count(caller)
                except OverloadedError as refused:
                    error = refused
                return _stream_error(request_id, error)
            open_ids.add(request_id)
            try:
                message = pb.PredictStreamResponse(request_id=request_id)
                await self._answer(request, context.time_remaining(), caller, message.response)
            except Exception as error:
                return _stream_error(request_id, error)
            finally:
                open_ids.discard(request_id)
            return message

        async for reply in answers(request_iterator, answer, self._serving, self.unread, in_order=False):
            yield reply

    async def _answer(
        self,
        request: pb.PredictRequest,
        left_s: float | None,
        caller: Caller,
        message: pb.PredictResponse,
    ) -> None:
        """From a request's message to its answer's, which is filled in."""
        with self._predictor.accept(left_s, caller) as prediction:
            host = prediction.host
            check_predicts(host.engine.model)
            priority = request.priority or NORMAL_PRIORITY
            prediction.choose(host.engine.hosted(request.variant), priority, _told_sequences(request))
            answered = await prediction.answer(asked_of(request, host))
            write_response(message, request.request_id, host, answered)


def _told_sequences(request: pb.PredictRequest) -> int:
    """How many it says it has, before it is looked at; 0 where it does not say."""
    tensors = request.tensors.tensors
    if tensors:
        return tensors[0].shape[0] if tensors[0].shape else 0
    return len(request.tokens.sequences) or len(request.text.texts)


def _stream_error(request_id: str, error: Exception) -> pb.PredictStreamResponse:
    failure = failure_of(error)
    told = pb.PredictError(
        code=failure.reaction.code_number,
        message=failure.message,
        reason=failure.reaction.reason,
        field=failure.field,
        retry_after_ms=failure.retry_after_ms,
        receipt_id=failure.receipt_id,
    )
    return pb.PredictStreamResponse(request_id=request_id, error=told)


_TENSORS = "tensors.tensors"

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
_ROLES = {
    Role.PROMPT: pb.LINE_ROLE_PROMPT,
    Role.OUTPUT: pb.LINE_ROLE_OUTPUT,
    Role.RECOMPUTED: pb.LINE_ROLE_RECOMPUTED,
}


def asked_of(request: pb.PredictRequest, host: Host) -> Asked:
    """Raises InvalidRequest."""
    facts, limit = host.engine.model.facts, host.engine.limits.max_request
    are_texts = request.WhichOneof("input") == "text" and not facts.pixel_shape
    options = Options(
        check_request_id(request.request_id, "request_id"),
        check_priority(request.priority, "priority"),
        request.wait_for_settled_energy,
        truncates=check_truncates(request.truncate, are_texts, "truncate"),
        max_energy_uj=(
            check_energy_limit(request.max_energy_uj, "max_energy_uj")
            if request.HasField("max_energy_uj")
            else None
        ),
    )
    if are_texts:
        return Asked(options, "text.texts", texts=check_texts(request.text.texts, limit, "text.texts"))
    return Asked(options, "input", items_of(request, facts, limit))


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
        return [*images_of_tensors(_given(request.tensors.tensors), _TENSORS, facts, max_sequences)]
    if kind == "text":
        raise InvalidRequest("texts are to be tokenised first", kind)
    if kind == "tensors":
        return [*ids_of_tensors(_given(request.tensors.tensors), _TENSORS, facts, max_sequences)]
    return [*ids_of(request.tokens.sequences, facts, max_sequences, "tokens.sequences")]


def ids_of(
    sequences: Sequence[pb.TokenIds], facts: InputFacts, max_sequences: int, place: str
) -> list[TokenIds]:
    """Raises InvalidRequest."""
    if not sequences:
        raise InvalidRequest("a request needs at least one sequence", place)
    check_count(len(sequences), max_sequences, place)
    items: list[TokenIds] = []
    for index, sequence in enumerate(sequences):
        ids = sequence.ids
        if not 0 < len(ids) <= facts.max_tokens:  # before they are copied
            check_length(len(ids), facts, f"{place}[{index}]")
        items.append(np.array(ids[:], dtype=np.int64))
    check_ids(items, facts, place)
    return items


def _given(tensors: Sequence[pb.Tensor]) -> list[GivenTensor]:
    check_tensors(len(tensors), _TENSORS)
    return [
        GivenTensor(
            tensor.name,
            tensor.datatype,
            check_rank(tensor.shape, f"{_TENSORS}[{index}].shape"),
            tensor.data,
            f"{_TENSORS}[{index}]",
            f"{_TENSORS}[{index}].data",
        )
        for index, tensor in enumerate(tensors)
    ]


def write_response(message: pb.PredictResponse, request_id: str, host: Host, answered: Answered) -> None:
    """Every part in its place: a part that was made elsewhere would be copied."""
    receipt, rows, times, cut_tokens, _ = answered
    model = host.engine.model
    message.request_id = request_id
    message.variant = receipt.variant
    write_output(message.output, model.task.output_name, rows)
    if model.scoring is not None:
        for row in rows:
            write_classification(message.classifications.add(), model.scoring(row), model.labels)
    write_receipt(message.receipt, receipt, host.sources_of(receipt))
    write_timing(message.timing, times)
    message.cut_tokens.extend(cut_tokens)
    write_usage(message.usage, sum([line.tokens for line in receipt.lines]))


def write_timing(message: pb.Timing, times: Times) -> None:
    message.tokenize_ns = times.tokenize_ns
    message.queue_ns = times.queue_ns
    message.compute_ns = times.compute_ns
    message.total_ns = times.total_ns


def write_usage(message: pb.Usage, prompt_tokens: int, output_tokens: int = 0) -> None:
    message.prompt_tokens = prompt_tokens
    message.output_tokens = output_tokens
    message.total_tokens = prompt_tokens + output_tokens


def write_output(message: pb.Tensor, name: str, rows: Sequence[NDArray[np.float32]]) -> None:
    """rows: float32 [width] each."""
    array = rows[0] if len(rows) == 1 else np.stack(rows)
    message.name = name
    message.datatype = "FP32"
    message.shape.extend((len(rows), len(rows[0])))
    message.data = array.astype("<f4", copy=False).tobytes()


def write_classification(message: pb.Classification, scores: list[float], labels: Sequence[str]) -> None:
    best = scores.index(max(scores))  # argmax would give the interpreter's lock away, to the lane
    message.label_index = best
    message.label = labels[best]
    message.scores.extend(scores)


def receipt_message(receipt: Receipt, sources: Mapping[str, Source]) -> pb.Receipt:
    """What is known of the receipt now. sources: of its figures, by part."""
    message = pb.Receipt()
    write_receipt(message, receipt, sources)
    return message


def write_receipt(message: pb.Receipt, receipt: Receipt, sources: Mapping[str, Source]) -> None:
    """As `receipt_message`, into a message that holds nothing yet."""
    whole = receipt.whole
    message.CopyFrom(
        _alike(
            receipt.variant,
            receipt.device,
            receipt.split_rule,
            receipt.idle_policy,
            receipt.proxy,
            receipt.is_unverified,
            tuple(sources.items()),
        )
    )
    state = known_state(whole.state, message.source)
    message.receipt_id = receipt.receipt_id
    message.request_id = receipt.request_id
    message.outcome = _OUTCOMES[receipt.outcome]
    message.state = _STATES[state]
    message.created_unix_ns = receipt.created_unix_ns
    if receipt.warnings:
        message.warnings.extend(receipt.warnings)
    for line in receipt.lines:
        _write_line(message.lines.add(), line, state)
    _write_figures(message, receipt.variant, whole)
    if receipt.lines and receipt.lines[0].role is not None:
        write_generation(message.generation, receipt)
    for part in message.parts:
        figures = whole if len(receipt.parts) == 1 else receipt.of_part(part.name)
        part.state = _STATES[known_state(figures.state, part.source)]
        _write_figures(part, receipt.variant, figures)


def _write_figures(message: pb.Receipt | pb.ReceiptPart, variant: str, figures: Figures) -> None:
    """Into a message that has its source."""
    if figures.energy_uj is not None:
        message.energy_uj = figures.energy_uj
        message.unknown_reason = figures.reason
    else:
        message.unknown_reason = unknown_reason(variant, figures, message.source)
    if figures.interval_uj is not None:
        message.energy_low_uj, message.energy_high_uj = figures.interval_uj
    if figures.idle_share_uj is not None:
        message.idle_share_uj = figures.idle_share_uj
    if figures.provisional_uj is not None:
        message.provisional_energy_uj = figures.provisional_uj


@lru_cache(maxsize=256)
def _alike(
    variant: str,
    device: str,
    split_rule: str,
    idle_policy: str,
    proxy: str,
    is_unverified: bool,
    sources: Sequence[tuple[str, Source]],
) -> pb.Receipt:
    """What is the same on many receipts: to be copied, which takes a tenth of making it."""
    return pb.Receipt(
        variant=variant,
        device=device,
        idle_policy=idle_policy,
        split_rule=split_rule,
        proxy=proxy,
        unverified=is_unverified,
        source=source_message(joined(tuple(source for _, source in sources))),
        parts=[pb.ReceiptPart(name=part, source=source_message(source)) for part, source in sources],
    )


def known_state(state: State, source: pb.EnergySource) -> State:
    """Without a meter nothing will ever be known, so it is final at once."""
    return State.UNKNOWN if source.quality == pb.ENERGY_QUALITY_NONE else state


def unknown_reason(variant: str, figures: Figures, source: pb.EnergySource) -> str:
    """Why there is no figure where there is none."""
    if figures.reason:
        return figures.reason
    if source.quality == pb.ENERGY_QUALITY_NONE:
        return source.note
    return f"the cost law of {variant!r} is not known yet; this will settle"


def quality_word(source: pb.EnergySource) -> str:
    return pb.EnergyQuality.Name(source.quality).removeprefix("ENERGY_QUALITY_").lower()


def write_generation(message: pb.GenerationEnergy, receipt: Receipt) -> None:
    """What it was spent on. What is not known, or cannot be told, stays absent."""
    spent = spent_on(receipt)
    message.prompt_tokens = spent.prompt_tokens
    message.output_tokens = spent.output_tokens
    message.recomputed_tokens = spent.recomputed_tokens
    for name, value in spent.energies.items():
        if value is not None:
            setattr(message, name, value)


def _write_line(message: pb.ReceiptLine, line: Line, state: State) -> None:
    message.tokens = line.tokens
    message.padded_tokens = line.padded_tokens
    message.batch_size = line.batch_size
    message.compute_ns = line.compute_ns
    if state is not State.UNKNOWN and (energy_uj := line.energy_uj) is not None:
        message.energy_uj = energy_uj
    if (idle_share_uj := line.idle_share_uj) is not None:
        message.idle_share_uj = idle_share_uj
    if line.role is not None:
        message.role = _ROLES[line.role]
