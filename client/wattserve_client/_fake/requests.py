"""What the fake server of `testing` was asked, and how it refuses: as the real one does, by the limits that
it announces. Pure: no grpc."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from wattserve_client import errors
from wattserve_client.wire import array
from wattserve_proto.v1 import inference_pb2 as pb

# One sequence as it was asked: a text, token ids, or the pixels of an image [channels, height, width].
Given: TypeAlias = str | tuple[int, ...] | npt.NDArray[np.float32]

MAX_TOKENS = 512
MAX_SEQUENCES = 256
VOCABULARY_SIZE = 2**31 - 1
OVERLOADED_RETRY_AFTER_S = 0.1
_MAX_REQUEST_ID = 256
_MAX_TEXT_CHARACTERS = 200_000
_LAST_PRIORITY = 3
_MAX_MESSAGE = 600  # characters; metadata has a hard limit, and an error may repeat what the caller sent

# The real server's reason (ErrorInfo.reason) for each status code that it ends a call with.
REASONS = {
    "INVALID_ARGUMENT": "INVALID_REQUEST",
    "NOT_FOUND": "NOT_FOUND",
    "FAILED_PRECONDITION": "NOT_POSSIBLE_HERE",
    "UNAUTHENTICATED": "NO_VALID_KEY",
    "PERMISSION_DENIED": "NOT_ALLOWED",
    "RESOURCE_EXHAUSTED": "OVERLOADED",
    "UNAVAILABLE": "STARTING_OR_STOPPING",
    "DEADLINE_EXCEEDED": "EXPIRED_IN_QUEUE",
    "UNIMPLEMENTED": "NOT_OFFERED",
    "INTERNAL": "INFERENCE_FAILED",
}
# The code of what a client raises; of several, the first.
_CODES = {error: code for code, error in reversed(errors.BY_CODE.items())} | {errors.ServerError: "INTERNAL"}


@dataclass(frozen=True, eq=False)
class FakeRequest:
    """One prediction that the server was asked for, refused ones included."""

    inputs: tuple[Given, ...]  # one per sequence
    variant: str  # as the caller sent it: "" for the default one
    request_id: str  # on a stream, the client's own number
    wait_for_settled_energy: bool
    priority: int
    streamed: bool  # by predict_many
    truncate: bool = False

    @property
    def text(self) -> str:
        """The one text; ValueError when it was not one text."""
        if len(self.inputs) != 1 or not isinstance(self.inputs[0], str):
            raise ValueError(
                f"this request holds {len(self.inputs)} sequences, so `text` says nothing: use `inputs`"
            )
        return self.inputs[0]


@dataclass(eq=False)
class Refusal(Exception):
    """Ends a call. code: a gRPC status code's name. field: the path of what is wrong, or empty."""

    code: str
    message: str
    field: str = ""
    reason: str = ""
    retry_after_s: float | None = None
    receipt_id: str = ""

    @property
    def text(self) -> str:
        whole = f"{self.field}: {self.message}" if self.field else self.message
        if len(whole) > _MAX_MESSAGE:
            whole = f"{whole[: _MAX_MESSAGE // 2]} ... {whole[-_MAX_MESSAGE // 2 :]}"
        return f"{whole}; what ran is charged: receipt {self.receipt_id}" if self.receipt_id else whole

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The trailing metadata: Google's rich details, and gRPC's own push-back."""
        from google.rpc import error_details_pb2, status_pb2

        if not self.reason:
            return ()
        status = status_pb2.Status(code=errors.CODE_NAMES.index(self.code), message=self.text)
        about = {"receipt_id": self.receipt_id} if self.receipt_id else {}
        status.details.add().Pack(
            error_details_pb2.ErrorInfo(reason=self.reason, domain=errors.DOMAIN, metadata=about)
        )
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.message[:_MAX_MESSAGE]
            )
            status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
        push_back: tuple[tuple[str, str | bytes], ...] = ()
        if self._retry_after_ms:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(self._retry_after_ms)
            status.details.add().Pack(retry)
            push_back = (("grpc-retry-pushback-ms", str(self._retry_after_ms)),)
        return ((errors.DETAILS_KEY, status.SerializeToString()), *push_back)

    def on_a_stream(self, request_id: str) -> pb.PredictStreamResponse:
        """The same as one of a stream's answers."""
        error = pb.PredictError(
            code=errors.CODE_NAMES.index(self.code),
            message=self.text,
            reason=self.reason,
            field=self.field,
            retry_after_ms=self._retry_after_ms,
            receipt_id=self.receipt_id,
        )
        return pb.PredictStreamResponse(request_id=request_id, error=error)

    @property
    def _retry_after_ms(self) -> int:
        return round((self.retry_after_s or 0) * 1000)


def refusal(
    error: str | type[errors.WattserveError],
    message: str,
    *,
    field: str = "",
    reason: str = "",
    retry_after_s: float | None = None,
    receipt_id: str = "",
) -> Refusal:
    """error: a status code's name, or the class that the client raises. What is left out is as the real
    server has it for that code."""
    code = error if isinstance(error, str) else _CODES.get(error, "")
    if code not in errors.CODE_NAMES or code == "OK":
        raise ValueError(
            f"{error!r} is no error: give a class such as NotFound, or a gRPC status code's name"
        )
    if retry_after_s is None and code == "RESOURCE_EXHAUSTED":
        retry_after_s = OVERLOADED_RETRY_AFTER_S
    return Refusal(code, message, field, reason or REASONS.get(code, ""), retry_after_s, receipt_id)


def request_of(message: pb.PredictRequest, *, streamed: bool) -> FakeRequest:
    """`Refusal` for tensors that make no sense."""
    try:
        inputs = _inputs(message)
    except ValueError as error:
        raise refusal("INVALID_ARGUMENT", str(error), field="tensors.tensors") from error
    return FakeRequest(
        inputs=inputs,
        variant=message.variant,
        request_id=message.request_id,
        wait_for_settled_energy=message.wait_for_settled_energy,
        priority=message.priority,
        streamed=streamed,
        truncate=message.truncate,
    )


def _inputs(message: pb.PredictRequest) -> tuple[Given, ...]:
    match message.WhichOneof("input"):
        case "text":
            return tuple(message.text.texts)
        case "tokens":
            return tuple(tuple(sequence.ids) for sequence in message.tokens.sequences)
        case "tensors":
            return _of_tensors({tensor.name: array(tensor) for tensor in message.tensors.tensors})
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


def check_request_id(request_id: str) -> None:
    """`Refusal` for one that is longer than what is kept."""
    if len(request_id) > _MAX_REQUEST_ID:
        raise _wrong(
            "request_id", f"{len(request_id)} characters; at most {_MAX_REQUEST_ID} are kept and echoed"
        )


def check(message: pb.PredictRequest, inputs: Sequence[Given]) -> None:
    """`Refusal` that names the field in the message. inputs: what it holds."""
    check_request_id(message.request_id)
    if message.priority > _LAST_PRIORITY:
        raise _wrong("priority", f"priority {message.priority}; 1 goes first, 2 is the default, 3 goes last")
    kind = message.WhichOneof("input")
    if message.HasField("max_energy_uj"):
        raise refusal("FAILED_PRECONDITION", "max_energy_uj: this fake server predicts no joules")
    if message.truncate and kind != "text":
        raise _wrong("truncate", "only texts are cut: leave truncate out, and send what the model takes")
    if kind is None:
        raise _wrong("input", "a request needs one of text, tokens or tensors")
    whole, one_field = _fields(message)
    if not inputs:
        raise _wrong(whole, f"a request needs at least one {'text' if kind == 'text' else 'sequence'}")
    if len(inputs) > MAX_SEQUENCES:
        raise _wrong(
            whole, f"a request may hold at most {MAX_SEQUENCES} sequences, this one has {len(inputs)}"
        )
    for index, given in enumerate(inputs):
        field, where = one_field.format(index), f"row {index}: " if kind == "tensors" else ""
        for fault in _faults(given, message.truncate):
            raise _wrong(field, where + fault)
    characters = sum(len(given) for given in inputs if isinstance(given, str))
    if characters > _MAX_TEXT_CHARACTERS:
        raise _wrong(
            whole, f"{characters} characters; at most {_MAX_TEXT_CHARACTERS} of a request are tokenised"
        )


def tokens_of(given: Given) -> int:
    """As the protocol counts them; of a text the words, since a fake has no tokenizer."""
    if isinstance(given, str):
        return len(given.split()) or 1
    return len(given) if isinstance(given, tuple) else 1


def _faults(given: Given, truncate: bool) -> Iterator[str]:
    if isinstance(given, np.ndarray):
        return
    if isinstance(given, str):
        if not given.strip():
            yield "the text is empty"
        if "\0" in given:
            yield "the text holds a null character"
    elif not given:
        yield "the sequence is empty"
    length = tokens_of(given)
    if length > MAX_TOKENS and not truncate:
        remedy = "; shorten it, or ask for truncate" if isinstance(given, str) else ""
        yield f"the sequence has {length} tokens; this model takes at most {MAX_TOKENS}{remedy}"
    if isinstance(given, tuple) and given:
        for token in (min(given), max(given)):
            if not 0 <= token < VOCABULARY_SIZE:
                yield f"token id {token} is outside the vocabulary, 0 to {VOCABULARY_SIZE - 1}"


def _fields(message: pb.PredictRequest) -> tuple[str, str]:
    """Where all sequences are in the message, and where each is, to be formatted with its index."""
    match message.WhichOneof("input"):
        case "text":
            return "text.texts", "text.texts[{}]"
        case "tokens":
            return "tokens.sequences", "tokens.sequences[{}]"
        case _:
            names = [tensor.name for tensor in message.tensors.tensors]
            place = next((names.index(name) for name in ("pixel_values", "input_ids") if name in names), 0)
            return f"tensors.tensors[{place}].shape", f"tensors.tensors[{place}].data"


def _wrong(field: str, message: str) -> Refusal:
    return refusal("INVALID_ARGUMENT", message, field=field)
