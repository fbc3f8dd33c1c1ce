"""One `predict_many`: the book of what was asked and answered, and the loops of both clients around it.

On the stream, an input's request id is its place in the iterable, after the caller's own id if there is one.
A server ends a stream that brings it a larger message than it takes. So each input that may be too large
goes by a stream of its own.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
)
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio

from wattserve_client._channel import Link
from wattserve_client._requests import Inputs, with_inputs
from wattserve_client.errors import (
    DeadlineExceeded,
    Details,
    InvalidRequest,
    Unavailable,
    WattserveError,
    error_for_number,
)
from wattserve_client.results import Answer, Prediction
from wattserve_proto.v1 import inference_pb2 as pb

T = TypeVar("T")

SHARED_BYTES = 4 * 1024 * 1024  # the least that a server takes unless it is told otherwise
_SHARED = ""  # in place of a request id, for the stream that all others share
_MASK = "Internal error from Core"


class End(NamedTuple):
    """A stream is over: the shared one, or that of one request."""

    request_id: str
    error: WattserveError | None


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
        self._begins = f"{bare.request_id}/" if bare.request_id else ""  # each request id
        self.in_flight = in_flight
        self.all_sent = False  # set by the client when the iterable has no more inputs
        self._has_ended = False  # the shared stream
        self._alone: set[str] = set()  # request ids
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

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._has_ended and not self._unanswered

    def goes_alone(self, request: pb.PredictRequest) -> bool:
        """Whether a request needs a stream of its own."""
        return request.request_id in self._alone

    def ask(self, inputs: Any) -> pb.PredictRequest | Answer:
        """The request for the next input; or, when it cannot be sent, its answer."""
        index = self._next_index
        self._next_index += 1
        try:
            self._bare.request_id = f"{self._begins}{index}"
            request = with_inputs(self._bare, inputs)
        except (TypeError, ValueError) as cause:
            error = InvalidRequest(str(cause), "INVALID_ARGUMENT", self._link.target)
            error.__cause__ = cause
            return Answer(index, error)
        self._unanswered[request.request_id] = index
        if request.ByteSize() > SHARED_BYTES:
            self._alone.add(request.request_id)
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
            return self._link.read(Prediction, message)
        except WattserveError as error:
            return error

    def _error(self, error: pb.PredictError) -> WattserveError:
        retry_after_s = error.retry_after_ms / 1000 if error.retry_after_ms else None
        details = Details(error.reason, error.field, retry_after_s, error.receipt_id)
        return error_for_number(error.code, error.message, self._link.target, details)

    def end(self, end: End) -> Answer | None:
        """The answer that the end of a request's own stream makes; raises what the shared one ended with.

        Unavailable when an end without an error was too early. A server that is shutting down does so: it
        answers what it has accepted, and takes no more.
        """
        early = "the server ended the stream before everything was answered; it may be shutting down"
        error = end.error or Unavailable(early, "UNAVAILABLE", self._link.target)
        if end.request_id != _SHARED:
            self._alone.remove(end.request_id)
            index = self._unanswered.pop(end.request_id, None)
            return None if index is None else Answer(index, error)
        if end.error or self._unanswered.keys() - self._alone or not self.all_sent:
            raise self.broken(error)
        self._has_ended = True
        return None

    def silent(self, timeout_s: float) -> WattserveError:
        """The error to raise when no answer came for so long."""
        message = f"no answer within {timeout_s:.3g} s (timeout_s)"
        return self.broken(DeadlineExceeded(message, "DEADLINE_EXCEEDED", self._link.target))

    def broken(self, error: WattserveError) -> WattserveError:
        """The error that ends the stream, with a note that names the inputs it leaves unanswered.

        A stream that no server took gets no note: the fate of its inputs is known.
        """
        if self._unanswered and not (isinstance(error, Unavailable) and error.never_sent):
            indices = ", ".join(map(str, self._unanswered.values()))
            error.add_note(f"sent and not answered, so their fate is not known: inputs {indices}")
        return error


def answers(
    link: Link,
    start: Callable[[Iterator[pb.PredictRequest]], Any],
    inputs: Iterator[Inputs],
    book: StreamBook,
    timeout_s: float,
) -> Generator[Answer, None, None]:
    """The answers to `inputs`; `start` opens a stream, given its requests."""
    # grpc takes requests on a thread of its own, and waits for responses; a thread that forwards
    # responses leaves the caller's thread free to look for an answer without waiting for one.
    requests: queue.SimpleQueue[pb.PredictRequest | None] = queue.SimpleQueue()
    events: queue.SimpleQueue[pb.PredictStreamResponse | End] = queue.SimpleQueue()
    calls: dict[str, Any] = {}

    def begin(name: str, sent: Iterator[pb.PredictRequest]) -> None:
        calls[name] = start(sent)
        forwarding = (link, calls[name], name, events)
        threading.Thread(target=_forward, args=forwarding, daemon=True, name="wattserve-answers").start()

    begin(_SHARED, iter(requests.get, None))
    try:
        while not book.is_over:
            if book.has_room and events.empty():
                try:
                    asked = book.ask(next(inputs))
                except StopIteration:
                    book.all_sent = True
                    requests.put(None)
                    continue
                if isinstance(asked, Answer):
                    yield asked
                elif book.goes_alone(asked):
                    begin(asked.request_id, iter([asked]))
                else:
                    requests.put(asked)
                continue
            try:
                event = events.get(timeout=timeout_s)
            except queue.Empty:
                raise book.silent(timeout_s) from None
            if not isinstance(event, End):
                yield book.answer(event)
                continue
            del calls[event.request_id]
            if (answer := book.end(event)) is not None:
                yield answer
    finally:
        requests.put(None)
        for call in calls.values():
            call.cancel()


def _forward(link: Link, call: Any, name: str, events: queue.SimpleQueue[Any]) -> None:
    """Put each response of a stream into `events`, then its end."""
    try:
        for response in call:
            events.put(response)
    except grpc.RpcError as error:
        events.put(End(name, link.failure(error, may_have_run=True)))
    else:
        events.put(End(name, None))


async def answers_async(
    link: Link,
    start: Callable[[Iterator[pb.PredictRequest] | None], Any],
    inputs: AsyncIterator[Inputs],
    book: StreamBook,
    timeout_s: float,
) -> AsyncGenerator[Answer, None]:
    """The answers to `inputs`; `start` opens a stream, given its requests, or None to write them."""
    room = asyncio.Semaphore(book.in_flight)
    events: asyncio.Queue[Any] = asyncio.Queue()
    calls: dict[str, tuple[Any, asyncio.Task[None]]] = {}

    def begin(name: str, sent: Iterator[pb.PredictRequest] | None) -> Any:
        call = start(sent)
        calls[name] = call, asyncio.create_task(_forward_async(link, call, name, events))
        return call

    sending = asyncio.create_task(_send(inputs, book, room, begin(_SHARED, None), begin, events))
    try:
        while not book.is_over:
            match await _next_event(events, book, timeout_s):
                case pb.PredictStreamResponse() as response:
                    answer: Answer | None = book.answer(response)
                case Answer() as answer:
                    pass
                case End() as end:
                    del calls[end.request_id]
                    answer = book.end(end)
                case error:
                    raise error
            if answer is not None:
                yield answer
                room.release()
    finally:
        sending.cancel()
        for call, forwarding in calls.values():
            forwarding.cancel()
            call.cancel()
        tasks = [forwarding for _, forwarding in calls.values()]
        await asyncio.gather(sending, *tasks, return_exceptions=True)


async def _forward_async(link: Link, call: Any, name: str, events: asyncio.Queue[Any]) -> None:
    """Put each response of a stream into `events`, then its end."""
    notes = StatusNotes(call)
    try:
        async for response in call:
            events.put_nowait(response)
    except grpc.RpcError as raised:
        error = notes.unmask(raised)
        events.put_nowait(End(name, None if error is None else link.failure(error, may_have_run=True)))
    except asyncio.CancelledError:
        events.put_nowait(End(name, link.closed()))
        raise
    else:
        events.put_nowait(End(name, None))


async def _send(
    inputs: AsyncIterator[Inputs],
    book: StreamBook,
    room: asyncio.Semaphore,
    shared: Any,
    begin: Callable[[str, Iterator[pb.PredictRequest]], Any],
    events: asyncio.Queue[Any],
) -> None:
    """Send the inputs as there is room for them; `events` gets what cannot be sent, and what they raise."""
    try:
        while True:
            await room.acquire()
            try:
                asked = book.ask(await anext(inputs))
            except StopAsyncIteration:
                break
            if isinstance(asked, Answer):
                events.put_nowait(asked)
                continue
            if book.goes_alone(asked):
                begin(asked.request_id, iter([asked]))
                continue
            try:
                await shared.write(asked)
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # the call is over, and `_forward_async` says why
        book.all_sent = True
        await shared.done_writing()
    except BaseException as error:
        events.put_nowait(error)
        raise


async def _next_event(events: asyncio.Queue[Any], book: StreamBook, timeout_s: float) -> Any:
    """The next event; DeadlineExceeded when the server owed something all through `timeout_s`."""
    while events.empty():
        owed = book.owed
        try:
            async with asyncio.timeout(timeout_s):
                return await events.get()
        except TimeoutError:
            if owed:
                raise book.silent(timeout_s) from None
    return events.get_nowait()


async def each_of(inputs: Iterator[Inputs]) -> AsyncGenerator[Inputs, None]:
    """A plain iterator, taken from without waiting."""
    for item in inputs:
        yield item


class StatusNotes:
    """Every status that one call of grpc.aio has been given, for the one that truly ended it.

    A server may end a stream while the client is still writing to it. The write that fails then replaces the
    call's status by INTERNAL, "Internal error from Core", often after the true one has come
    (https://github.com/grpc/grpc/issues/36066). Each replacement is announced to the call's done callbacks,
    so the true status can be noted when it passes.
    """

    def __init__(self, call: Any) -> None:
        self._seen: list[tuple[grpc.StatusCode, str, grpc.aio.Metadata]] = []
        call.add_done_callback(self._note)

    def unmask(self, error: grpc.RpcError) -> grpc.RpcError | None:
        """The error that ended the call, given the one that was raised; None when it ended well."""
        if error.details() != _MASK:
            return error
        for code, details, trailing in self._seen:
            if details != _MASK:
                if code is grpc.StatusCode.OK:
                    return None
                return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)
        return error

    def _note(self, call: Any) -> None:
        self._seen.append(
            (_at_once(call.code()), _at_once(call.details()), _at_once(call.trailing_metadata()))
        )


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing left to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("the status of a finished call had to be waited for")
