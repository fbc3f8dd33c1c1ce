"""From a service's descriptor and an object with its methods to what grpc registers.

Messages are parsed here rather than by grpc, so that bytes which are no message end with INVALID_ARGUMENT
like any other bad request, and every error passes the one table in `status`. Every call is counted, however
it ends, and one that is refused leaves nothing behind. The path under which a service is found need not be
its descriptor's.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from wattserve_server.errors import (
    CutError,
    InvalidRequest,
    OverdueError,
    UnauthenticatedError,
    WattserveError,
)
from wattserve_server.service.caller import CALLER
from wattserve_server.service.gate import Gate
from wattserve_server.service.status import failure_of, forget_way, when_cut
from wattserve_server.service.weight import SMALL_BYTES, check_weight
from wattserve_server.telemetry.observer import MethodCalls, Observer

Begin = Callable[[Any], "CountedCall"]  # of a call, with its context

# By what a context says its code is: in some versions of grpc the code, in others its number.
_CODES = {key: code.name for code in grpc.StatusCode for key in (code, code.value[0])}

# Of memory, which is more than any message needs that `check_weight` lets pass, beside its own bytes.
PARSED_BYTES = 32 * 1024 * 1024

SHUT_DOWN = "the server has shut down before this was done; what ran of it is charged"
CUT_S = 1.0  # for which a call that was cut may take to tell its caller

_GRPC_LOG = logging.getLogger("grpc._cython.cygrpc")


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of grpc's log tells more than that a caller left while grpc sent it a reply. Replies are
    sent behind the handlers below, so nothing here can catch that; the call is counted as CANCELLED."""
    return record.exc_info is None or not isinstance(record.exc_info[1], grpc.aio.InternalError)


def handlers(
    path: str,
    service: ServiceDescriptor,
    servicer: object,
    observer: Observer,
    gate: Gate,
    calls: OpenCalls | None = None,
) -> grpc.GenericRpcHandler:
    """servicer: has async methods of the names of the service's. gate: which every call passes first. calls:
    where those in progress are kept."""
    _GRPC_LOG.addFilter(_is_news)
    registered = {}
    for method in service.methods:
        if not hasattr(servicer, method.name):  # of a newer version of the service: grpc says UNIMPLEMENTED
            continue
        counted = observer.method(_kind(method), path, method.name)
        kept = OpenCalls() if calls is None else calls
        begin = functools.partial(CountedCall, counted, kept, gate, method.name)
        registered[method.name] = _handler(method, getattr(servicer, method.name), begin)
    return grpc.method_handlers_generic_handler(path, registered)


def _kind(method: MethodDescriptor) -> str:
    """As go-grpc-prometheus calls it."""
    if method.client_streaming:
        return "bidi_stream" if method.server_streaming else "client_stream"
    return "server_stream" if method.server_streaming else "unary"


def _handler(method: MethodDescriptor, behaviour: Callable[..., Any], begin: Begin) -> Any:
    parse = _parser(method.input_type)
    write = GetMessageClass(method.output_type).SerializeToString
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(
            _streaming(behaviour, lambda requests: _parsed(requests, parse), begin), None, write
        )
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_streaming(behaviour, parse, begin), None, write)
    return grpc.unary_unary_rpc_method_handler(_unary(behaviour, parse, begin), None, write)


def _parser(kind: Descriptor) -> Callable[[bytes], Message]:
    message = GetMessageClass(kind)

    def parse(data: bytes) -> Message:
        if len(data) > SMALL_BYTES:
            check_weight(data, kind)
        try:
            return message.FromString(data)
        except DecodeError as error:  # it says the same of bytes that are wrong and of memory that is short
            bytearray(PARSED_BYTES)
            raise InvalidRequest(f"these {len(data)} bytes are not a message {kind.name}: {error}") from error

    return parse


async def _parsed(
    requests: AsyncIterator[bytes], parse: Callable[[bytes], Message]
) -> AsyncIterator[Message]:
    async for data in requests:
        yield parse(data)


def _unary(
    behaviour: Callable[[Any, Any], Awaitable[Message]],
    parse: Callable[[bytes], Message],
    begin: Begin,
) -> Callable[[bytes, Any], Awaitable[Message | None]]:
    async def handle(data: bytes, context: Any) -> Message | None:
        with begin(context) as call:
            try:
                call.admit()
                call.limit()
                return await behaviour(parse(data), context)
            except asyncio.CancelledError:
                ended: Exception = call.why_cut()
            except Exception as error:
                ended = error
            await call.refuse(ended)
            return None

    return handle


def _streaming(
    behaviour: Callable[[Any, Any], AsyncGenerator[Message, None]],
    parse: Callable[[Any], Any],
    begin: Begin,
) -> Callable[[Any, Any], AsyncIterator[Message]]:
    async def handle(data: Any, context: Any) -> AsyncIterator[Message]:
        with begin(context) as call:
            try:
                call.admit()
                async with aclosing(behaviour(parse(data), context)) as replies:
                    async for reply in replies:
                        yield reply
                    return
            except asyncio.CancelledError:
                ended: Exception = call.why_cut()
            except Exception as error:
                ended = error
            await call.refuse(ended)

    return handle


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How much time the server gives any call, whatever its caller does. 0: as much as he likes."""

    default_s: float = 0.0  # to a call that brings no deadline
    most_s: float = 0.0

    def own_s(self, left_s: float | None) -> float | None:
        """Where the server's own deadline comes before the caller's, or he has none: the time until it.
        left_s: until his."""
        if left_s is None:
            return min(filter(None, (self.default_s, self.most_s)), default=None)
        return self.most_s if 0 < self.most_s < left_s else None


NO_DEADLINES = Deadlines()


class OpenCalls:
    """The calls in progress, and how much time each has."""

    def __init__(self, deadlines: Deadlines = NO_DEADLINES) -> None:
        self._deadlines = deadlines
        self._calls: dict[CountedCall, asyncio.Task[Any] | None] = {}
        self._none = asyncio.Event()

    def add(self, call: CountedCall) -> None:
        self._calls[call] = asyncio.current_task()

    def discard(self, call: CountedCall) -> None:
        self._calls.pop(call, None)
        if not self._calls:
            self._none.set()

    def limit(self, call: CountedCall, left_s: float | None) -> asyncio.TimerHandle | None:
        """Tell it OverdueError once the server's own deadline has passed, if that is before its caller's."""
        own_s = self._deadlines.own_s(left_s)
        if own_s is None:
            return None
        why = OverdueError(
            f"this was not done within {own_s:g} s, which is what the server gives a call"
            + ("" if left_s is None else " at the most")
            + ("; a caller may bring a deadline of his own" if left_s is None else "")
        )
        return asyncio.get_running_loop().call_later(own_s, self._cut, (call,), why)

    async def end(self, within_s: float) -> None:
        """Wait for so long until there is none, then tell the others UNAVAILABLE; and until they know."""
        await self._until_none(within_s)
        self._cut(tuple(self._calls), CutError(SHUT_DOWN))
        await self._until_none(CUT_S)

    def revoke(self, key_ids: frozenset[str]) -> None:
        """End the calls that showed one of these keys."""
        theirs = [call for call in self._calls if call.key_id in key_ids]
        self._cut(theirs, UnauthenticatedError("the API key of this call was revoked or changed meanwhile"))

    def _cut(self, calls: Iterable[CountedCall], why: WattserveError) -> None:
        for call in calls:
            task = self._calls[call]
            if task is not None:
                call.cut_by = why
                task.cancel()

    async def _until_none(self, within_s: float) -> None:
        self._none.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._calls:
                    self._none.clear()
                    await self._none.wait()


class CountedCall:
    """A call in progress: counted when the block ends, by how it does."""

    __slots__ = (
        "_begun_ns",
        "_calls",
        "_context",
        "_gate",
        "_method",
        "_open",
        "_overdue",
        "_total_s",
        "cut_by",
        "key_id",
    )

    def __init__(
        self, calls: MethodCalls, open_calls: OpenCalls, gate: Gate, method: str, context: Any
    ) -> None:
        self._calls = calls
        self._open = open_calls
        self._gate = gate
        self._method = method
        self._context = context
        self._total_s = context.time_remaining()
        self._overdue: asyncio.TimerHandle | None = None
        self.key_id = ""  # of the API key that it showed
        self.cut_by: WattserveError | None = None  # if its task has not ended when it is next at work

    def __enter__(self) -> CountedCall:
        self._begun_ns = self._calls.start()
        self._open.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
        self._open.discard(self)
        self._calls.end(self._begun_ns, self._code(kind))

    def admit(self) -> None:
        """Raises what the gate refuses it with."""
        gate = self._gate
        if self._method in gate.unguarded:
            CALLER.set(gate.of_peer(self._context.peer()))
            return
        caller = gate.admit(self._method, self._context)
        CALLER.set(caller)
        if caller.key is not None:
            self.key_id = caller.key.id

    def limit(self) -> None:
        """It is no stream, and has to end within what the server gives it."""
        self._overdue = self._open.limit(self, self._total_s)

    def why_cut(self) -> WattserveError:
        """Of a call that was cancelled: by its caller, or its deadline, raises CancelledError again."""
        if self.cut_by is None:
            raise asyncio.CancelledError
        return self.cut_by

    async def refuse(self, error: Exception) -> None:
        """Tell the caller, and let the handler return: then grpc ends the call.

        grpc keeps its own AbortError with the call. Were that to pass through our frames, they would stand
        in its traceback and hold the call and the message: a cycle, until Python looks for garbage.
        """
        if isinstance(error, grpc.aio.AbortError):  # the method has told the caller
            forget_way(error)
            return
        failure, left_s = failure_of(error), self._context.time_remaining()
        try:
            await self._context.abort(failure.reaction.code, failure.message, failure.metadata(left_s))
        except grpc.aio.AbortError as aborted:
            forget_way(aborted)
        except grpc.aio.InternalError as gone:  # the call ended meanwhile: nobody is there to be told
            raise asyncio.CancelledError from gone

    def _code(self, kind: type[BaseException] | None) -> str:
        if kind is not None and issubclass(
            kind, (asyncio.CancelledError, GeneratorExit)
        ):  # so gRPC ends a late call, too
            reaction, _ = when_cut(self._context.time_remaining(), self._total_s)
            return reaction.code.name
        return _CODES.get(self._context.code() or 0, "UNKNOWN")
