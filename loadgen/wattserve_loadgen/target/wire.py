"""The wire of the hot path: serialised requests out, serialised answers back.

Loadgen asks a server as any user does, through `wattserve_client`, except here. The requests of a load are
serialised before it begins, and its answers and receipts are parsed after it has ended, so that neither is in
a latency; and an answer stays a message of the protocol, because the client's values would cost a cell of a
million requests a minute.

Of a message this module knows at most the numbers of the fields that an answer on a stream is matched by.
What it costs is stated by `tests/bench/client_ceiling.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from wattserve_client import Tls
from wattserve_client.keys import IN_CLEAR, Metadata
from wattserve_common.words import wrong_port
from wattserve_proto.limits import message_sizes
from wattserve_proto.v1 import inference_pb2 as pb

PREDICT = "/wattserve.v1.Inference/Predict"
PREDICT_STREAM = "/wattserve.v1.Inference/PredictStream"
GENERATE = "/wattserve.v1.Inference/Generate"
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
# Otherwise equal channels share one connection. What is too large, the server says.
_OPTIONS = [("grpc.use_local_subchannel_pool", 1), *message_sizes(received=-1, sent=-1)]
# (calls of each, the most of them). A channel allows so many streams at once and queues the rest inside the
# client, where it would look like latency.
_PER_CHANNEL = 32, 8
# A gRPC stream has one write on its way at a time. Measured at 64 slots: 79 us of client CPU a request by one
# stream, 60 by four, 57 by eight, each on a channel of its own.
_PER_STREAM = 8, 8
# To a server on the same machine each channel is a caller, and several callers who hold many places
# leave some of them empty. So many streams at once any server of HTTP/2 should allow.
_PER_GENERATING = 100, 8
_MESSAGE_CHARACTERS = 200
_REQUEST_ID, _RESPONSE = 0x0A, 0x12  # in a PredictStreamResponse: fields 1 and 2, each before its length
_STAMP = struct.Struct("<qI")  # nanoseconds, and the length of the message that came then
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


@dataclass(frozen=True)
class CallFailure:
    """A request without an answer: a gRPC status code and what the server said."""

    code: str
    message: str
    server: str = ""  # of a fleet: which one did not answer


class Unanswered(Exception):
    """A request on a stream that got an error, or nothing at all. Never leaves the drive."""

    def __init__(self, failure: CallFailure) -> None:
        super().__init__(f"{failure.code} {failure.message}")
        self.failure = failure


CallError = grpc.aio.AioRpcError | Unanswered
CALL_ERRORS = (grpc.aio.AioRpcError, Unanswered)


def failure_of(error: CallError) -> CallFailure:
    """What a result keeps of it."""
    if isinstance(error, Unanswered):
        return error.failure
    return CallFailure(error.code().name, cause(error))


def cause(error: grpc.RpcError) -> str:
    """What went wrong, in one short line."""
    if wrong := wrong_port(error.details() or ""):
        return wrong
    details = _in_one_line(error.details() or "")
    if error.code() == grpc.StatusCode.UNAVAILABLE:  # grpc nests the cause at the end: "Connection refused"
        details = details.rpartition(": ")[2].rstrip("]")
    return details


def _in_one_line(message: str) -> str:
    return " ".join(message.split())[:_MESSAGE_CHARACTERS]


class Sender(Protocol):
    """Sends one request: its answer, or one of CALL_ERRORS."""

    def __call__(self, request: bytes, /, *, timeout: float) -> Awaitable[bytes]: ...


@dataclass(frozen=True)
class Connection:
    """How to reach one method of one server. It can be pickled, so that a worker process can reach it too."""

    address: str
    method: str = PREDICT
    stream: bool = False  # `method` is the native PredictStream
    tls: Tls | None = None  # None: plain
    metadata: Metadata = field(default=(), repr=False)  # of every call: it holds the API key, if any
    others: tuple[str, ...] = ()  # of a fleet: the addresses beside it, which calls go to in turns


def open_channel(address: str, tls: Tls | None = None) -> grpc.aio.Channel:
    """A channel with a connection of its own, made at its first call."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=[*_OPTIONS, *IN_CLEAR])
    credentials = grpc.ssl_channel_credentials(*tls.read())
    name = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else []
    return grpc.aio.secure_channel(address, credentials, options=[*_OPTIONS, *name])


def open_calls(connection: Connection, count: int) -> tuple[list[Sender], Callable[[], Awaitable[None]]]:
    """A call for each of `count` slots, spread over a few channels, and what closes them all. Those of a
    fleet go to its servers in turns, whichever slot they are of.

    All calls of a stream must be given the same timeout.
    """
    if connection.others:
        return _open_in_turns(connection, count)
    of_each, most = _PER_CHANNEL
    if connection.stream:
        of_each, most = _PER_STREAM
    elif connection.method == GENERATE:
        of_each, most = _PER_GENERATING
    channels = [
        open_channel(connection.address, connection.tls) for _ in range(min(most, -(-count // of_each)))
    ]
    streams: list[Stream] = []
    calls: list[Sender] = []
    for channel in channels:
        if connection.method == GENERATE:
            calls.append(Generations(channel.unary_stream(GENERATE), connection.metadata))
        elif connection.stream:
            streams.append(Stream(channel.stream_stream(connection.method), connection.metadata))
        else:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(connection.method)
            calls.append(partial(method, metadata=connection.metadata) if connection.metadata else method)
    calls += streams

    async def close() -> None:
        for stream in streams:
            await stream.close()
        for channel in channels:
            await channel.close()

    return [calls[slot % len(calls)] for slot in range(count)], close


def _open_in_turns(connection: Connection, count: int) -> tuple[list[Sender], Callable[[], Awaitable[None]]]:
    addresses = (connection.address, *connection.others)
    opened = [open_calls(replace(connection, address=address, others=()), count) for address in addresses]
    turns = itertools.count()
    calls: list[Sender] = [
        InTurns(addresses, [senders[slot] for senders, _ in opened], turns) for slot in range(count)
    ]

    async def close() -> None:
        for _, close_one in opened:
            await close_one()

    return calls, close


class InTurns:
    """A slot's call of each server of a fleet. Before an answer stands a byte: the number of the server."""

    def __init__(self, addresses: Sequence[str], calls: Sequence[Sender], turns: Iterator[int]) -> None:
        self._addresses, self._calls, self._turns = addresses, calls, turns

    def __call__(self, request: bytes, /, *, timeout: float) -> Awaitable[bytes]:
        number = next(self._turns) % len(self._calls)
        return self._numbered(number, self._calls[number](request, timeout=timeout))

    async def _numbered(self, number: int, answer: Awaitable[bytes]) -> bytes:
        try:
            return b"%c%b" % (number, await answer)
        except CALL_ERRORS as error:
            raise Unanswered(replace(failure_of(error), server=self._addresses[number])) from None


class Generations:
    """Calls of `Generate`: the answer to each is all its messages, with the instants at which they came."""

    def __init__(self, method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes], metadata: Metadata) -> None:
        self._method = partial(method, metadata=metadata)

    def __call__(self, request: bytes, /, *, timeout: float) -> Awaitable[bytes]:
        return self._collect(self._method(request, timeout=timeout))

    async def _collect(self, messages: AsyncIterable[bytes]) -> bytes:
        parts: list[bytes] = []
        async for message in messages:
            parts += (_STAMP.pack(time.perf_counter_ns(), len(message)), message)
        return b"".join(parts)


def stamped_messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """What `Generations` made an answer of: (instant by `time.perf_counter_ns`, message)."""
    place = 0
    while place < len(answer):
        stamp_ns, size = _STAMP.unpack_from(answer, place)
        place += _STAMP.size
        yield stamp_ns, answer[place : place + size]
        place += size


class Stream:
    """Requests over one gRPC stream, `PredictStream`, each looking like a call of its own.

    It is opened by its first request, and again by the first one after it broke. A unary call costs the
    client a task, a set of metadata and six operations; a message on a stream costs two operations and the
    future that its answer is put into.
    """

    def __init__(self, method: grpc.aio.StreamStreamMultiCallable[bytes, bytes], metadata: Metadata) -> None:
        self._method = partial(method, metadata=metadata)
        self._loop = asyncio.get_running_loop()
        self._number = 0
        # Each with its deadline, the oldest first.
        self._waiting: dict[bytes, tuple[asyncio.Future[bytes], float]] = {}
        self._unsent: deque[bytes] = deque()
        self._something_to_send = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def __call__(self, request: bytes, /, *, timeout: float) -> asyncio.Future[bytes]:
        """`request` has no request_id. Every call must have the same timeout: the oldest expires first."""
        key = b"%x" % self._number
        self._number += 1
        future = self._loop.create_future()
        deadline = self._loop.time() + timeout
        self._waiting[key] = (future, deadline)
        self._unsent.append(b"%c%c%b%b" % (_REQUEST_ID, len(key), key, request))
        self._something_to_send.set()
        if self._serving is None:
            self._serving = self._loop.create_task(self._serve())
        if self._expiry is None:
            self._expiry = self._loop.call_at(deadline, self._expire)
        return future

    async def close(self) -> None:
        """What is still in flight fails."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self._serving is not None:
            self._serving.cancel()
            with suppress(asyncio.CancelledError):
                await self._serving

    async def _serve(self) -> None:
        """One gRPC stream from its opening to its end."""
        call = self._method()
        writing = self._loop.create_task(self._write(call))
        end = CallFailure("CANCELLED", "the stream was closed")
        try:
            while isinstance(reply := await call.read(), bytes):
                self._take(reply)
            end = CallFailure("UNAVAILABLE", "the server ended the stream")
        except grpc.aio.AioRpcError as error:
            end = failure_of(error)
        except DecodeError:
            end = CallFailure("INTERNAL", "an answer on the stream is no PredictStreamResponse")
        finally:
            writing.cancel()
            call.cancel()
            self._break(end)

    async def _write(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        # A stream that broke raises one of these here; why it broke, reading says.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                while self._unsent:
                    await call.write(self._unsent.popleft())
                self._something_to_send.clear()
                await self._something_to_send.wait()

    def _take(self, reply: bytes) -> None:
        key, response, failure = split_reply(reply)
        future, _ = self._waiting.pop(key, (None, 0.0))
        if future is None or future.done():
            return  # it came after its deadline
        if failure is None:
            future.set_result(response)
        else:
            future.set_exception(Unanswered(failure))

    def _expire(self) -> None:
        """Fail what is overdue, and look again when the oldest of the rest is."""
        self._expiry = None
        now = self._loop.time()
        while self._waiting:
            key, (future, deadline) = next(iter(self._waiting.items()))
            if deadline > now:
                self._expiry = self._loop.call_at(deadline, self._expire)
                return
            del self._waiting[key]
            _fail(future, CallFailure("DEADLINE_EXCEEDED", "no answer within the deadline"))

    def _break(self, end: CallFailure) -> None:
        waiting, self._waiting = self._waiting, {}
        self._unsent.clear()
        self._serving = None
        for future, _ in waiting.values():
            _fail(future, end)


def split_reply(reply: bytes) -> tuple[bytes, bytes, CallFailure | None]:
    """(request_id, PredictResponse, what went wrong) of a PredictStreamResponse.

    The answer is taken out without parsing when the fields stand as every protobuf library writes them: the
    id, then the response, then nothing.
    """
    if len(reply) > 2 and reply[0] == _REQUEST_ID and reply[1] < 0x80:
        at = 2 + reply[1]
        if at < len(reply) and reply[at] == _RESPONSE:
            size = shift = 0
            for place in range(at + 1, min(at + 6, len(reply))):
                byte = reply[place]
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    if place + 1 + size == len(reply):
                        return reply[2:at], reply[place + 1 :], None
                    break
    return _parse_reply(reply)


def _parse_reply(reply: bytes) -> tuple[bytes, bytes, CallFailure | None]:
    parsed = pb.PredictStreamResponse.FromString(reply)
    key = parsed.request_id.encode()
    if parsed.WhichOneof("result") == "response":
        return key, parsed.response.SerializeToString(), None
    if parsed.WhichOneof("result") == "error":
        error = parsed.error
        return (
            key,
            b"",
            CallFailure(_CODES.get(error.code, f"CODE_{error.code}"), _in_one_line(error.message)),
        )
    return key, b"", CallFailure("INTERNAL", "an answer that holds neither a response nor an error")


def _fail(future: asyncio.Future[bytes], failure: CallFailure) -> None:
    if not future.done():
        future.set_exception(Unanswered(failure))
