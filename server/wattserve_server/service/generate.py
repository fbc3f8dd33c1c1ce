"""Generations by the native protocol, and scores of given texts; and what becomes of their messages.

Reading and writing messages is pure: no transport, no clock. Errors name the field in the request message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import numpy as np

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.engine.generation.port import FinishReason, Piece, TokenIds, TokenScore
from wattserve_server.engine.policy import NORMAL_PRIORITY
from wattserve_server.errors import InvalidRequest
from wattserve_server.meters.composite import joined
from wattserve_server.service.caller import CALLER
from wattserve_server.service.checks import (
    check_generates,
    check_length,
    check_priority,
    check_request_id,
    check_texts,
    check_tokenizer,
)
from wattserve_server.service.generation import AskedGeneration, Generated, Running, Unread, begin
from wattserve_server.service.inference import (
    ids_of,
    unknown_reason,
    write_receipt,
    write_timing,
    write_usage,
)
from wattserve_server.service.methods import CALL
from wattserve_server.service.prediction import Answered, Asked, Host, Options, Predictor, Serving
from wattserve_server.service.source import source_message
from wattserve_server.service.wishes import Given, Places, check_prompt, wish_of

PLACES = Places()

_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ENERGY: pb.FINISH_REASON_ENERGY,
}


class GenerateMethods:
    _serving: Serving
    _predictor: Predictor
    unread: Unread

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        call = CALL.get()
        call.limit()
        with self._predictor.accept(context.time_remaining(), CALLER.get()) as prediction:
            host = prediction.host
            check_generates(host.engine.model)
            prediction.choose(host.engine.hosted(request.variant), request.priority or NORMAL_PRIORITY)
            async with aclosing(await begin(prediction, generation_asked(request, host))) as running:
                call.receipt = running.receipt
                async for piece in running:
                    message = _message(request, running)
                    write_piece(message.piece, piece, running, host)
                    with self.unread.waiting(call):
                        yield message
                last = _message(request, running)
                write_end(last.end, await running.end(), host)
        yield last

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        with self._predictor.accept(context.time_remaining(), CALLER.get()) as prediction:
            host = prediction.host
            check_generates(host.engine.model)
            prediction.choose(host.engine.hosted(request.variant), request.priority or NORMAL_PRIORITY)
            answered = await prediction.answer(score_asked(request, host))
            return score_response(request, answered, host)


def generation_asked(request: pb.GenerateRequest, host: Host) -> AskedGeneration:
    """Raises InvalidRequest; NotPossibleHere for a text where there is no tokenizer."""
    facts, has_tokenizer, options = host.engine.model.facts, host.tokenizer is not None, _options(request)
    prompt: str | TokenIds
    kind = request.WhichOneof("prompt")
    if kind == "text":
        check_tokenizer(host.engine.model, has_tokenizer, "text")
        prompt, place = check_prompt(request.text, "text"), "text"
    elif kind == "tokens":
        ids, place = request.tokens.ids, "tokens.ids"
        if not 0 < len(ids) <= facts.max_tokens:  # before they are copied
            check_length(len(ids), facts, place)
        prompt = np.array(ids[:], dtype=np.int64)
    else:
        raise InvalidRequest("a generation needs a prompt: text or tokens", "prompt")
    wish = wish_of(_given(request), facts, has_tokenizer, PLACES)
    return AskedGeneration(options, prompt, place, wish, PLACES)


def _options(request: pb.GenerateRequest | pb.ScoreRequest) -> Options:
    return Options(
        check_request_id(request.request_id, "request_id"),
        check_priority(request.priority, "priority"),
        request.wait_for_settled_energy,
    )


def _given(request: pb.GenerateRequest) -> Given:
    sampling = request.sampling
    return Given(
        request.max_new_tokens,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p if sampling.HasField("top_p") else 1.0,
        sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0,
        sampling.seed if sampling.HasField("seed") else None,
        request.ignore_eos,
        request.stop_token_ids,
        request.stop_strings,
        request.logprobs if request.HasField("logprobs") else None,
        request.max_energy_uj if request.HasField("max_energy_uj") else None,
    )


def _message(request: pb.GenerateRequest, running: Running) -> pb.GenerateResponse:
    receipt = running.receipt
    return pb.GenerateResponse(
        request_id=request.request_id, variant=receipt.variant, receipt_id=receipt.receipt_id
    )


def write_piece(message: pb.GenerationPiece, piece: Piece, running: Running, host: Host) -> None:
    message.token_ids.extend(piece.token_ids)
    message.text = piece.text
    for score in piece.scores:
        _write_score(message.scores.add(), score)
    if piece.energy_uj is not None:
        message.energy_uj = piece.energy_uj
    else:
        receipt = running.receipt
        source = source_message(joined(tuple(host.sources_of(receipt).values())))
        message.unknown_reason = unknown_reason(receipt.variant, receipt.whole, source)


def _write_score(message: pb.TokenScore, score: TokenScore) -> None:
    message.chosen.token_id = score.token_id
    message.chosen.logprob = score.logprob
    for token_id, logprob in score.best:
        message.likeliest.add(token_id=token_id, logprob=logprob)


def write_end(message: pb.GenerationEnd, generated: Generated, host: Host) -> None:
    ended = generated.ended
    message.finish_reason = _REASONS[ended.reason]
    message.stop_string = ended.stop
    write_usage(message.usage, ended.prompt_tokens, ended.output_tokens)
    write_receipt(message.receipt, generated.receipt, host.sources_of(generated.receipt))
    write_timing(message.timing, generated.times)
    message.timing.first_token_ns = generated.first_token_ns
    if generated.seed is not None:
        message.seed = generated.seed


def score_asked(request: pb.ScoreRequest, host: Host) -> Asked:
    """Raises InvalidRequest; NotPossibleHere for texts where there is no tokenizer."""
    model, limit, options = host.engine.model, host.engine.limits.max_request, _options(request)
    kind = request.WhichOneof("input")
    if kind == "text":
        check_tokenizer(model, host.tokenizer is not None, "text.texts")
        texts = check_texts(request.text.texts, limit, "text.texts")
        return Asked(options, "text.texts", texts=texts, scores=True)
    if kind is None:
        raise InvalidRequest("a score needs texts or tokens", "input")
    place = "tokens.sequences"
    items = ids_of(request.tokens.sequences, model.facts, limit, place)
    return Asked(options, place, items=items, scores=True)


def score_response(request: pb.ScoreRequest, answered: Answered, host: Host) -> pb.ScoreResponse:
    message = pb.ScoreResponse(request_id=request.request_id, variant=answered.receipt.variant)
    for ids, logprobs in zip(answered.items, answered.rows, strict=True):
        total = float(logprobs.sum(dtype=np.float64))
        message.sequences.add(token_ids=ids.tolist(), logprobs=logprobs.tolist(), logprob_sum=total)
    write_usage(message.usage, sum(map(len, answered.items)))
    write_receipt(message.receipt, answered.receipt, host.sources_of(answered.receipt))
    write_timing(message.timing, answered.times)
    return message
