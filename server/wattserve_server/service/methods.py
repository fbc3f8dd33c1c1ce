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
import mmap
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc._cython import cygrpc

from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.alarms import Alarms
from wattserve_server.errors import (
    CutError,
    InvalidRequest,
    OverdueError,
    OverloadedError,
    UnauthenticatedError,
    WattserveError,
)
from wattserve_server.service.caller import CALLER, Caller
from wattserve_server.service.gate import SHORT_BYTES, Gate
from wattserve_server.service.status import Failure, failure_of, forget_way, reaction_of, when_cut
from wattserve_server.service.weight import PACKED, SMALL_BYTES, check_weight, unpacked
from wattserve_server.telemetry.observer import MethodCalls, Observer

T = TypeVar("T")

Begin = Callable[[Any], "CountedCall"]  # of a call, with its context
Parse = Callable[[bytes], Message]

# By what a context says its code is: in some versions of grpc the code, in others its number.
_CODES = {key: code.name for code in grpc.StatusCode for key in (code, code.value[0])}

# Of memory, which is more than any message needs that `check_weight` lets pass, beside its own bytes.
PARSED_BYTES = 32 * 1024 * 1024

SHUT_DOWN = "the server has shut down before this was done"
CUT_S = 1.0  # for which a call that was cut may take to tell its caller
UNREAD_S = 60.0  # for which a long reply, or a generation with its place, waits for who does not read

_GRPC_LOG = logging.getLogger("grpc._cython.cygrpc")


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of grpc's log tells more than that a caller left while grpc sent it a reply, or sent
    metadata that are no UTF-8: grpc would write them down, keys among them. Nothing here can catch either:
    replies are sent behind the handlers below, and metadata are read before them."""
    error = None if record.exc_info is None else record.exc_info[1]
    return not isinstance(error, grpc.aio.InternalError | UnicodeDecodeError)


def _log_error() -> None:
    """In place of `traceback.print_exc` in grpc, which would write past the log, and as often as a stranger
    likes."""
    _GRPC_LOG.error("grpc met an error", exc_info=True)


def handlers(
    path: str,
    service: ServiceDescriptor,
    servicer: object,
    observer: Observer,
    gate: Gate,
    calls: OpenCalls,
) -> grpc.GenericRpcHandler:
    """As of `method_handlers`, under that path."""
    _GRPC_LOG.addFilter(_is_news)
    cygrpc.traceback = SimpleNamespace(**vars(traceback) | {"print_exc": _log_error})
    named = method_handlers(path, service, servicer, observer, gate, calls)
    return grpc.method_handlers_generic_handler(path, named)


def method_handlers(
    path: str,
    service: ServiceDescriptor,
    servicer: object,
    observer: Observer,
    gate: Gate,
    calls: OpenCalls,
) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """By their methods' names. servicer: has async methods of the names of the service's. gate: which every
    call passes first. calls: where those in progress are kept."""
    registered = {}
    for method in service.methods:
        if not hasattr(servicer, method.name):  # of a newer version of the service: grpc says UNIMPLEMENTED
            continue
        counted = observer.method(_kind(method), path, method.name)
        begin = functools.partial(CountedCall, counted, calls, gate, method.name)
        parse = _parser(method.input_type, gate.most_bytes(method.name))
        registered[method.name] = _handler(method, getattr(servicer, method.name), parse, begin)
    return registered


def _kind(method: MethodDescriptor) -> str:
    """As go-grpc-prometheus calls it."""
    if method.client_streaming:
        return "bidi_stream" if method.server_streaming else "client_stream"
    return "server_stream" if method.server_streaming else "unary"


def _handler(method: MethodDescriptor, behaviour: Callable[..., Any], parse: Parse, begin: Begin) -> Any:
    write = GetMessageClass(method.output_type).SerializeToString
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(
            _streaming(behaviour, functools.partial(_read_all, parse), begin), None, write
        )
    if method.server_streaming:
        one = functools.partial(_read_one, parse)
        return grpc.unary_stream_rpc_method_handler(_streaming(behaviour, one, begin), None, write)
    return grpc.unary_unary_rpc_method_handler(_unary(behaviour, parse, write, begin))


def _check_memory() -> None:
    """Raises MemoryError where a message could not be parsed for want of it. Asks for addresses alone: to
    fill them took 15 ms, and whoever sent rubbish had them of the event loop for ten bytes."""
    try:
        mmap.mmap(-1, PARSED_BYTES).close()
    except OSError as error:
        raise MemoryError(f"no {PARSED_BYTES >> 20} MiB are left for a message") from error


def _parser(kind: Descriptor, most_bytes: float) -> Parse:
    message = GetMessageClass(kind)

    def parse(data: bytes) -> Message:
        if len(data) > most_bytes:
            raise InvalidRequest(f"a message {kind.name} has at most {most_bytes} bytes, this {len(data)}")
        if len(data) > SMALL_BYTES:
            check_weight(data, kind)
        try:
            return message.FromString(data)
        except DecodeError as error:  # it says the same of bytes that are wrong and of memory that is short
            _check_memory()
            raise InvalidRequest(f"these {len(data)} bytes are not a message {kind.name}: {error}") from error

    return parse


def _read_one(parse: Parse, call: CountedCall, data: bytes) -> Message:
    return call.read(parse, call.unpack(data))


async def _read_all(
    parse: Parse, call: CountedCall, requests: AsyncIterator[bytes]
) -> AsyncIterator[Message]:
    async for packed in requests:
        data = call.unpack(packed)
        await call.turn(data)
        yield call.read(parse, data)


def _unary(
    behaviour: Callable[[Any, Any], Awaitable[Message]],
    parse: Parse,
    write: Callable[[Message], bytes],
    begin: Begin,
) -> Callable[[bytes, Any], Awaitable[bytes | None]]:
    async def handle(data: bytes, context: Any) -> bytes | None:
        with begin(context) as call:
            CALL.set(call)
            try:
                call.admit()
                call.limit()
                reply = write(await behaviour(_read_one(parse, call, data), context))
                if len(reply) > SHORT_BYTES:
                    call.will_reply(len(reply))
                    _end_unread(context)
                return reply
            except asyncio.CancelledError:
                ended: Exception = call.why_cut()
            except Exception as error:
                ended = error
            await call.refuse(ended)
            return None

    return handle


def _end_unread(context: Any) -> None:
    """grpc would wait for ever for who does not read the reply of this call."""
    task = asyncio.current_task()
    assert task is not None
    ending = asyncio.get_running_loop().call_later(UNREAD_S, task.cancel)
    context.add_done_callback(lambda _: ending.cancel())


def _streaming(
    behaviour: Callable[[Any, Any], AsyncGenerator[Message, None]],
    read: Callable[[CountedCall, Any], Any],
    begin: Begin,
) -> Callable[[Any, Any], AsyncIterator[Message]]:
    async def handle(data: Any, context: Any) -> AsyncIterator[Message]:
        with begin(context) as call:
            CALL.set(call)
            try:
                call.admit()
                call.hold()
                async with aclosing(behaviour(read(call, data), context)) as replies:
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
    without_s: float | None = field(init=False)  # what such a call has of both

    def __post_init__(self) -> None:
        object.__setattr__(self, "without_s", min(filter(None, (self.default_s, self.most_s)), default=None))

    def own_s(self, left_s: float | None) -> float | None:
        """Where the server's own deadline comes before the caller's, or he has none: the time until it.
        left_s: until his."""
        if left_s is None:
            return self.without_s
        return self.most_s if 0 < self.most_s < left_s else None


NO_DEADLINES = Deadlines()


class OpenCalls:
    """The calls in progress, and how much time each has."""

    def __init__(self, deadlines: Deadlines = NO_DEADLINES, most_streams: float = float("inf")) -> None:
        """most_streams: of one caller."""
        self._deadlines = deadlines
        self._most_streams = most_streams
        self._streams: Counter[str] = Counter()  # by caller
        self._overdue = Alarms(self._tell_overdue)
        self._calls: dict[CountedCall, asyncio.Task[Any] | None] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._none = asyncio.Event()

    def add(self, call: CountedCall) -> None:
        self._calls[call] = asyncio.current_task()

    def discard(self, call: CountedCall, alarm: int | None) -> None:
        if alarm is not None:
            self._overdue.clear(call, alarm)
        self._calls.pop(call, None)
        if not self._calls:
            self._none.set()

    def hold(self, name: str) -> None:
        """One more stream of that caller, until it lets go. Raises OverloadedError."""
        if self._streams[name] >= self._most_streams:
            raise OverloadedError(
                f"{name} has {self._streams[name]} streams open, and no caller may have more "
                "(--max-connection-calls)"
            )
        self._streams[name] += 1

    def let_go(self, name: str) -> None:
        self._streams[name] -= 1
        if not self._streams[name]:
            del self._streams[name]

    def limit(self, call: CountedCall) -> int | None:
        """Tell it OverdueError once the server's own deadline has passed, if that is before its caller's: the
        alarm, for `discard`."""
        own_s = self._deadlines.own_s(call.total_s)
        return None if own_s is None else self._overdue.set(call, call.begun_ns + int(own_s * 1e9))

    def _tell_overdue(self, call: CountedCall) -> None:
        own_s, is_his = self._deadlines.own_s(call.total_s), call.total_s is not None
        why = OverdueError(
            f"this was not done within {own_s:g} s, which is what the server gives a call"
            + (" at the most" if is_his else "; a caller may bring a deadline of his own")
        )
        self.cut((call,), why)

    async def end(self, within_s: float) -> None:
        """Wait for so long until there is none, then tell the others UNAVAILABLE; and until they know."""
        await self._until_none(within_s)
        self.cut(tuple(self._calls), CutError(SHUT_DOWN))
        await self._until_none(CUT_S)

    def revoke(self, key_ids: frozenset[str]) -> None:
        """End the calls that showed one of these keys."""
        theirs = [call for call in self._calls if call.key_id in key_ids]
        self.cut(theirs, UnauthenticatedError("the API key of this call was revoked or changed meanwhile"))

    def tell(self, telling: Coroutine[Any, Any, None]) -> None:
        """Tell a caller why his call was cut, whose task is no more; it takes until he reads."""
        task = asyncio.create_task(telling)
        self._telling.add(task)
        task.add_done_callback(self._told)

    def _told(self, telling: asyncio.Task[None]) -> None:
        self._telling.discard(telling)
        if not telling.cancelled():
            telling.exception()  # he has left

    def cut(self, calls: Iterable[CountedCall], why: WattserveError) -> None:
        """End these calls."""
        for call in calls:
            task = self._calls.get(call)
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
        "_alarm",
        "_caller",
        "_calls",
        "_context",
        "_gate",
        "_has_read",
        "_held_bytes",
        "_held_last",
        "_holder",
        "_holds_for",
        "_method",
        "_open",
        "_unread_bytes",
        "begun_ns",
        "cut_by",
        "key_id",
        "receipt",
        "total_s",
    )

    def __init__(
        self, calls: MethodCalls, open_calls: OpenCalls, gate: Gate, method: str, context: Any
    ) -> None:
        self._calls = calls
        self._open = open_calls
        self._gate = gate
        self._method = method
        self._context = context
        self.total_s: float | None = context.time_remaining()  # that its caller gives it
        self._alarm: int | None = None
        self._caller: Caller | None = None  # of a guarded method, once he is let in
        self._holder = ""  # of the stream that it is, once there was room for that
        self._has_read = False  # a message of its
        self._held_bytes = 0  # of its messages
        self._held_last = 0  # of those, of the message that was read last
        self._unread_bytes = 0  # of a stream's replies
        self._holds_for = ""  # whose they are
        self.key_id = ""  # of the API key that it showed
        self.cut_by: WattserveError | None = None  # if its task has not ended when it is next at work
        self.receipt: Receipt | None = None  # of the one request of a stream, which an error then names

    def __enter__(self) -> CountedCall:
        self.begun_ns = self._calls.start()
        self._open.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._open.discard(self, self._alarm)
        if self._holder:
            self._open.let_go(self._holder)
            self._gate.messages.add_reply(self._holder, -self._unread_bytes)
            self._holder = ""
        if self._held_bytes:
            self._gate.messages.give_back(self._holds_for, self._held_bytes)
        if kind is GeneratorExit and self.cut_by is not None:  # grpc was at writing to who does not read
            self._open.tell(self.refuse(self.cut_by))
        self._calls.end(self.begun_ns, self._code(kind))

    def cut(self, why: WattserveError) -> None:
        """End it, from outside of its task, and tell its caller that."""
        self._open.cut((self,), why)

    def admit(self) -> None:
        """Raises what the gate refuses it with. One that its tenant has no requests left for is counted as
        a request that was refused."""
        gate = self._gate
        if self._method in gate.unguarded:
            CALLER.set(gate.of_peer(self._context.peer()))
            return
        caller = gate.admit(self._method, self._context)
        CALLER.set(caller)
        if caller.key is not None:
            self.key_id = caller.key.id
            self._caller = caller
            try:
                gate.check_rate(self._method, caller)
            except OverloadedError as error:
                self._count_refused(error)
                raise

    def _count_refused(self, error: OverloadedError) -> None:
        reaction = reaction_of(error)
        self._calls.refused(CALLER.get().tenant, reaction.code_name, reaction.reason, error)

    def hold(self) -> None:
        """It is a stream, which takes a place however long nothing comes. Raises OverloadedError."""
        name = CALLER.get().name
        self._open.hold(name)
        self._holder = name

    async def turn(self, data: bytes) -> None:
        """Wait until a message of this stream may be read."""
        if self._caller is not None:
            await self._gate.turn(self._method, self._caller, len(data))
        if len(data) > SHORT_BYTES:
            await self._gate.messages.until_room(CALLER.get().name, len(data))
        if self._gate.messages.unread:
            await self._gate.messages.until_read(CALLER.get().name)

    def hold_bytes(self, size: int) -> None:
        """A message of its is so much longer, and held until the call ends. Raises OverloadedError."""
        self._holds_for = CALLER.get().name
        try:
            self._gate.messages.take(self._holds_for, size)
        except OverloadedError as error:
            self._count_refused(error)
            raise
        self._held_bytes += size

    def check_unread(self) -> None:
        """As the function of that name."""
        try:
            self._gate.messages.check_unread(CALLER.get().name)
        except OverloadedError as error:
            self._count_refused(error)
            raise

    def hand_over(self) -> Callable[[object], None] | None:
        """The message of this stream that was read last is held until what this returns is called. None: it
        is short."""
        size, self._held_last = self._held_last, 0
        if not size:
            return None
        self._held_bytes -= size
        messages, name = self._gate.messages, self._holds_for
        return lambda _: messages.give_back(name, size)

    def read(self, parse: Callable[[bytes], T], data: bytes, is_held: bool = False) -> T:
        """A message of its. is_held: its bytes are counted already. Raises InvalidRequest; OverloadedError as
        `hold_bytes`, and as `admit` for each but the first."""
        is_refused = True
        try:
            if self._gate.messages.unread:
                self.check_unread()
            if len(data) > SHORT_BYTES and not is_held:
                self.hold_bytes(len(data))
                self._held_last = len(data)
            message = parse(data)
            is_refused = False
        finally:
            self._count(is_refused)
        return message

    def unpack(self, data: bytes) -> bytes:
        """A message of its, for `read`. Raises InvalidRequest."""
        if not data.startswith(PACKED):
            return data
        try:
            return unpacked(data, self._gate.most_bytes(self._method))
        except InvalidRequest:
            self._count(is_refused=True)
            raise

    def refused_unread(self) -> None:
        """Its message was refused before it had come: it counts as `read` has it."""
        self._count(is_refused=True)

    def _count(self, is_refused: bool) -> None:
        """A message of its."""
        is_first, self._has_read = not self._has_read, True
        if self._caller is not None:
            self._gate.count_message(self._method, self._caller, is_refused, is_first)

    def limit(self) -> None:
        """It is no stream of others' requests or receipts, and has to end within what the server gives it."""
        self._alarm = self._open.limit(self)

    def why_cut(self) -> WattserveError:
        """Of a call that was cancelled: by its caller, or its deadline, raises CancelledError again."""
        if self.cut_by is None:
            raise asyncio.CancelledError
        return self.cut_by

    async def begin_replies(self) -> None:
        """Of this stream. Where grpc sends its beginning with a first reply, and that is not read, no error
        gets out behind it."""
        await self._context.send_initial_metadata(())

    def hold_reply(self, size: int) -> None:
        """A reply of this stream, of so many bytes, is there; as many fewer once it is read."""
        if self._holder:  # else the stream has ended meanwhile
            self._unread_bytes += size
            self._gate.messages.add_reply(self._holder, size)

    def will_reply(self, size: int) -> None:
        """Its reply, of so many bytes, waits in its transport until its caller reads it."""
        name, messages = CALLER.get().name, self._gate.messages
        messages.add_reply(name, size)
        self._context.add_done_callback(lambda _: messages.add_reply(name, -size))

    def warn(self, name: str, text: str) -> None:
        """Tell the caller something beside the answer."""
        self._context.set_trailing_metadata(((name, text),))

    async def refuse(self, error: Exception) -> None:
        """Tell the caller, and let the handler return: then grpc ends the call.

        grpc keeps its own AbortError with the call. Were that to pass through our frames, they would stand
        in its traceback and hold the call and the message: a cycle, until Python looks for garbage.
        """
        if isinstance(error, grpc.aio.AbortError):  # the method has told the caller
            forget_way(error)
            return
        if isinstance(error, grpc.aio.InternalError):  # the call ended before the method could send: as below
            raise asyncio.CancelledError from error
        failure, left_s = self.failure(error), self._context.time_remaining()
        try:
            await self._context.abort(failure.reaction.code, failure.message, failure.metadata(left_s))
        except grpc.aio.AbortError as aborted:
            forget_way(aborted)
        except grpc.aio.InternalError as gone:  # the call ended meanwhile: nobody is there to be told
            raise asyncio.CancelledError from gone

    def failure(self, error: Exception) -> Failure:
        """What the caller is told of it, with the receipt of what has run."""
        if self.receipt is not None and self.receipt.ran and isinstance(error, WattserveError):
            error = copy(error)  # which may end many calls
            error.receipt_id = self.receipt.receipt_id
        return failure_of(error)

    def _code(self, kind: type[BaseException] | None) -> str:
        if kind is not None and issubclass(
            kind, (asyncio.CancelledError, GeneratorExit)
        ):  # so gRPC ends a late call, too
            if self.cut_by is not None:
                return reaction_of(self.cut_by).code_name
            reaction, _ = when_cut(self._context.time_remaining(), self.total_s)
            return reaction.code_name
        return _CODES.get(self._context.code() or 0, "UNKNOWN")


class Desk(NamedTuple):
    """What the calls of another transport share with gRPC's."""

    observer: Observer
    gate: Gate
    calls: OpenCalls
    most_bytes: int  # of a message


CALL: ContextVar[CountedCall] = ContextVar("call")  # the stream that runs


def check_unread() -> None:
    """Of the call that runs, which has waited for its turn: others of its caller may have been answered
    meanwhile. Raises OverloadedError where he does not read what he was told."""
    if (call := CALL.get(None)) is not None:
        call.check_unread()
