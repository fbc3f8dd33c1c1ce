"""The book of one `predict_many`: which inputs were sent, which answers are still to come.

Shared by both clients. Pure: no thread, no clock, no I/O. On the stream, an input's request id is its
place in the iterable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattserve_client import _replies
from wattserve_client._channel import Link
from wattserve_client._details import Details
from wattserve_client._requests import with_inputs
from wattserve_client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Unavailable,
    WattserveError,
    error_for_number,
)
from wattserve_client.results import Answer, Prediction
from wattserve_proto.v1 import inference_pb2 as pb


class StreamBook:
    """What one stream has asked and been told."""

    def __init__(self, link: Link, inputs: object, bare: pb.PredictRequest, in_flight: int) -> None:
        """bare: what every request holds beside its inputs and its id."""
        if isinstance(inputs, str | bytes | Mapping):
            raise TypeError(
                f"predict_many takes an iterable of inputs, not one {type(inputs).__name__}: "
                "use predict, or put it in a list"
            )
        if isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1:
            raise ValueError(f"in_flight is {in_flight!r}; it must be a whole number from 1")
        self._link = link
        self._bare = bare
        self.in_flight = in_flight
        self.all_sent = False  # set by the client when the iterable has no more inputs
        self._next_index = 0
        self._unanswered: dict[str, int] = {}  # index by request id

    @property
    def owed(self) -> bool:
        """Whether the server owes something: an answer, or the end of the stream."""
        return bool(self._unanswered) or self.all_sent

    @property
    def has_room(self) -> bool:
        """Whether one more input may be taken and sent."""
        return not self.all_sent and len(self._unanswered) < self.in_flight

    def ask(self, inputs: Any) -> pb.PredictRequest | Answer:
        """The request for the next input; or, when it cannot be sent, its answer."""
        index = self._next_index
        self._next_index += 1
        try:
            self._bare.request_id = str(index)
            request = with_inputs(self._bare, inputs)
        except (TypeError, ValueError) as cause:
            error = InvalidRequest(str(cause), "INVALID_ARGUMENT", self._link.target)
            error.__cause__ = cause
            return Answer(index, error)
        self._unanswered[request.request_id] = index
        return request

    def answer(self, response: pb.PredictStreamResponse) -> Answer:
        """The answer in a response; ServerError when it answers nothing that was asked."""
        index = self._unanswered.pop(response.request_id, None)
        if index is None:
            raise self._link.nonsense(f"it answers the request {response.request_id!r}, which is not open")
        match response.WhichOneof("result"):
            case "response":
                return Answer(index, self._prediction(response.response))
            case "error":
                return Answer(index, self._error(response.error))
            case _:
                raise self._link.nonsense("a stream's answer is neither a prediction nor an error")

    def _prediction(self, message: pb.PredictResponse) -> Prediction | WattserveError:
        try:
            return self._link.read(_replies.prediction, message)
        except WattserveError as error:
            return error

    def _error(self, told: pb.PredictError) -> WattserveError:
        retry_after_s = told.retry_after_ms / 1000 if told.retry_after_ms else None
        details = Details(told.reason, told.field, retry_after_s)
        return error_for_number(told.code, told.message, self._link.target, details)

    def ended(self) -> None:
        """The server ended the stream without an error; Unavailable when it was too early for that.

        A server that is shutting down does so: it answers what it has accepted, and takes no more.
        """
        if self._unanswered or not self.all_sent:
            message = "the server ended the stream before everything was answered; it may be shutting down"
            raise self.broken(Unavailable(message, "UNAVAILABLE", self._link.target))

    def silent(self, timeout_s: float) -> WattserveError:
        """The error to raise when no answer came for so long."""
        message = f"no answer came within {timeout_s:g} s"
        return self.broken(DeadlineExceeded(message, "DEADLINE_EXCEEDED", self._link.target))

    def broken(self, error: WattserveError) -> WattserveError:
        """The error that ends the stream, with a note that names the inputs it leaves unanswered.

        Of a stream that no server took there is none: the fate of its inputs is known.
        """
        if self._unanswered and not (isinstance(error, Unavailable) and error.never_sent):
            indices = ", ".join(map(str, self._unanswered.values()))
            error.add_note(f"sent and not answered, so their fate is not known: inputs {indices}")
        return error
