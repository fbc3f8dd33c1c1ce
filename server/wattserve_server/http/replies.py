"""What a request is told, in OpenAI's form, with its joules in `usage.energy`. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wattserve_server.energy.receipt import Receipt, State
from wattserve_server.engine.generation.port import Piece, TokenScore
from wattserve_server.http.wire import encoded
from wattserve_server.meters.composite import joined
from wattserve_server.service.generation import Generated
from wattserve_server.service.inference import known_state, quality_word, unknown_reason
from wattserve_server.service.oip_request import alias
from wattserve_server.service.prediction import Answered, Host
from wattserve_server.service.source import source_message
from wattserve_server.service.spent import spent_on

Json = dict[str, Any]

LEAST_LOGPROB = -9999.0  # of what cannot be: JSON has no infinity

_SPENT = {
    "prompt_energy_uj": "prompt_joules",
    "output_energy_uj": "output_joules",
    "energy_per_output_token_uj": "joules_per_output_token",
    "energy_per_total_token_uj": "joules_per_total_token",
    "overhead_energy_uj": "overhead_joules",
}


def joules(energy_uj: float) -> float:
    return energy_uj / 1e6


def energy_of(receipt: Receipt, host: Host) -> Json:
    """What is not known is left out, and `unknown_reason` says why."""
    whole, source = receipt.whole, source_message(joined(tuple(host.sources_of(receipt).values())))
    told: Json = {"state": known_state(whole.state, source).value, "receipt_id": receipt.receipt_id}
    if whole.energy_uj is not None:
        told["joules"] = joules(whole.energy_uj)
    else:
        told["unknown_reason"] = unknown_reason(receipt.variant, whole, source)
    if whole.interval_uj is not None:
        told["interval_joules"] = [joules(bound) for bound in whole.interval_uj]
    if whole.idle_share_uj is not None:
        told["idle_share_joules"] = joules(whole.idle_share_uj)
    if receipt.lines and receipt.lines[0].role is not None:
        energies = spent_on(receipt).energies
        told |= {_SPENT[name]: joules(each) for name, each in energies.items() if each is not None}
    told["source"] = {
        "name": source.name,
        "method": source.method,
        "quality": quality_word(source),
        "boundary": source.boundary,
    }
    told["variant"] = receipt.variant
    if receipt.is_unverified:
        told["unverified"] = True
    if receipt.warnings:
        told["warnings"] = list(receipt.warnings)
    return told


def usage_so_far(receipt: Receipt, output_tokens: int, energy_uj: int | None) -> Json:
    """Of a generation that runs, whose prompt has been read."""
    told = _tokens(receipt.lines[0].tokens, output_tokens)
    if energy_uj is not None:
        told["energy"] = {"joules": joules(energy_uj), "state": State.PROVISIONAL.value}
    return told


def _tokens(prompt_tokens: int, output_tokens: int) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }


class Names(NamedTuple):
    """How a kind of generation is called."""

    prefix: str  # of an id
    whole: str
    chunk: str


class Told:
    """One generation as it is told: whole, or chunk by chunk."""

    names = Names("cmpl", "text_completion", "text_completion")
    # What its log-probabilities have beside lists of a member for each token.
    beside_scores: ClassVar[Json] = {}

    def __init__(
        self, receipt: Receipt, host: Host, word_of: Callable[[int], str], tells_so_far: bool
    ) -> None:
        """word_of: the text of a token by itself. tells_so_far: what it has used, in each chunk."""
        self._host = host
        self._receipt = receipt
        self._word_of = word_of
        self._tells_so_far = tells_so_far
        self._tokens = 0  # that were told
        self._offset = 0  # their characters
        self._text: list[str] = []  # of pieces that are told whole
        self._scores: dict[str, list[str]] = {}  # and their log-probabilities, as JSON

    def head(self, kind: str) -> Json:
        receipt = self._receipt
        return {
            "id": f"{self.names.prefix}-{receipt.receipt_id}",
            "object": kind,
            "created": receipt.created_unix_ns // 1_000_000_000,
            "model": alias(self._host.engine, receipt.variant),
        }

    def begin(self) -> list[Json]:
        """Chunks before the first piece."""
        return []

    def chunk(self, piece: Piece) -> Json:
        return self._piece({"text": piece.text}, piece)

    def last_chunk(self, done: Generated) -> Json:
        return self._chunk({"text": ""}, None, done.ended.reason.value)

    def usage_chunk(self, done: Generated) -> Json:
        return self.head(self.names.chunk) | {"choices": [], "usage": self._usage(done)}

    def keep(self, piece: Piece) -> None:
        """For `whole`. Log-probabilities are encoded piece by piece: those of a long answer are megabytes
        that hold the event loop for a second.
        """
        self._text.append(piece.text)
        if piece.scores:
            for name, scores in self._logprobs(piece.scores).items():
                self._scores.setdefault(name, []).append(encoded(scores)[1:-1])

    def whole(self, done: Generated) -> str:
        """As JSON: all pieces that were kept."""
        choice = {
            "index": 0,
            **self._told("".join(self._text)),
            "logprobs": None,
            "finish_reason": done.ended.reason.value,
        }
        told = encoded(self.head(self.names.whole) | {"choices": [choice], "usage": self._usage(done)})
        if not self._scores:
            return told
        lists = [f'"{name}":[{",".join(parts)}]' for name, parts in self._scores.items()]
        others = [f'"{name}":{encoded(value)}' for name, value in self.beside_scores.items()]
        # The first one is the choice's own: a text has its quotes escaped.
        return told.replace('"logprobs":null', f'"logprobs":{{{",".join(lists + others)}}}', 1)

    def _told(self, text: str) -> Json:
        return {"text": text}

    def _piece(self, told: Json, piece: Piece) -> Json:
        scores = {**self._logprobs(piece.scores), **self.beside_scores} if piece.scores else None
        chunk = self._chunk(told, scores)
        self._tokens += len(piece.token_ids)
        if self._tells_so_far:
            chunk["usage"] = usage_so_far(self._receipt, self._tokens, piece.energy_uj)
        return chunk

    def _chunk(self, told: Json, logprobs: Json | None, reason: str | None = None) -> Json:
        choice = {"index": 0, **told, "logprobs": logprobs, "finish_reason": reason}
        return self.head(self.names.chunk) | {"choices": [choice]}

    def _usage(self, done: Generated) -> Json:
        told = _tokens(done.ended.prompt_tokens, done.ended.output_tokens)
        told["energy"] = energy_of(done.receipt, self._host)
        if done.seed is not None:
            told["seed"] = done.seed
        return told

    def _logprobs(self, scores: Sequence[TokenScore]) -> dict[str, list[Any]]:
        words = [self._word_of(score.token_id) for score in scores]
        offsets = []
        for word in words:
            offsets.append(self._offset)
            self._offset += len(word)
        return {
            "tokens": words,
            "token_logprobs": [_finite(score.logprob) for score in scores],
            "top_logprobs": [
                {self._word_of(token): _finite(logprob) for token, logprob in score.best} for score in scores
            ],
            "text_offset": offsets,
        }


class ToldChat(Told):
    names = Names("chatcmpl", "chat.completion", "chat.completion.chunk")
    beside_scores: ClassVar[Json] = {"refusal": None}

    def begin(self) -> list[Json]:
        return [self._chunk({"delta": {"role": "assistant", "content": ""}}, None)]

    def chunk(self, piece: Piece) -> Json:
        return self._piece({"delta": {"content": piece.text}}, piece)

    def last_chunk(self, done: Generated) -> Json:
        return self._chunk({"delta": {}}, None, done.ended.reason.value)

    def _told(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _logprobs(self, scores: Sequence[TokenScore]) -> dict[str, list[Any]]:
        content = [
            self._score(score.token_id, score.logprob)
            | {"top_logprobs": [self._score(token, logprob) for token, logprob in score.best]}
            for score in scores
        ]
        return {"content": content}

    def _score(self, token: int, logprob: float) -> Json:
        word = self._word_of(token)
        return {"token": word, "logprob": _finite(logprob), "bytes": list(word.encode())}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def embeddings(answered: Answered, host: Host, in_base64: bool) -> Json:
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(row) if in_base64 else row.tolist()}
        for index, row in enumerate(answered.rows)
    ]
    return _list_of(data, answered, host)


def _base64(row: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(row, dtype="<f4").tobytes()).decode()


def classes(answered: Answered, host: Host) -> Json:
    """As vLLM tells them."""
    model, data = host.engine.model, []
    assert model.scoring is not None
    for index, row in enumerate(answered.rows):
        scores = model.scoring(row)
        label = model.labels[scores.index(max(scores))]
        data.append({"index": index, "label": label, "probs": scores, "num_classes": len(scores)})
    return {"id": f"classify-{answered.receipt.receipt_id}"} | _list_of(data, answered, host)


def _list_of(data: Sequence[Mapping[str, Any]], answered: Answered, host: Host) -> Json:
    receipt = answered.receipt
    tokens = sum(line.tokens for line in receipt.lines)
    told: Json = {
        "object": "list",
        "created": receipt.created_unix_ns // 1_000_000_000,
        "model": alias(host.engine, receipt.variant),
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "energy": energy_of(receipt, host)},
    }
    if answered.cut_tokens:
        told["cut_tokens"] = list(answered.cut_tokens)
    return told
