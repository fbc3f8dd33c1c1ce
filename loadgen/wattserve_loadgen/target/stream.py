"""Requests over one gRPC stream, `PredictStream`, each looking like a call of its own.

A unary call costs the client a task, a set of metadata and six operations; a message on a stream costs two
operations and the future that its answer is put into. Of the protocol this room knows the numbers of the
fields that it matches by; what an answer says is read elsewhere, later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from wattserve_loadgen.drive.outcome import Failure
from wattserve_loadgen.target.failures import Unanswered, failure_of, one_line
from wattserve_proto.v1 import inference_pb2 as pb

_REQUEST_ID, _RESPONSE = 0x0A, 0x12  # on the wire: fields 1 and 2, with a length before their bytes
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class Stream:
    """Opened by its first request, and again by the first one after it broke."""

    def __init__(self, method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]) -> None:
        self._method = method
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._waiting: dict[
            bytes, tuple[asyncio.Future[bytes], float]
        ] = {}  # with its deadline; oldest first
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
        end = Failure("CANCELLED", "the stream was closed")
        try:
            while isinstance(reply := await call.read(), bytes):
                self._take(reply)
            end = Failure("UNAVAILABLE", "the server ended the stream")
        except grpc.aio.AioRpcError as error:
            end = failure_of(error)
        except DecodeError:
            end = Failure("INTERNAL", "an answer on the stream is no PredictStreamResponse")
        finally:
            writing.cancel()
            call.cancel()
            self._break(end)

    async def _write(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        with suppress(
            grpc.aio.AioRpcError, asyncio.InvalidStateError
        ):  # of a stream that broke: read says why
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
            _fail(future, Failure("DEADLINE_EXCEEDED", "no answer within the deadline"))

    def _break(self, end: Failure) -> None:
        waiting, self._waiting = self._waiting, {}
        self._unsent.clear()
        self._serving = None
        for future, _ in waiting.values():
            _fail(future, end)


def split_reply(reply: bytes) -> tuple[bytes, bytes, Failure | None]:
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


def _parse_reply(reply: bytes) -> tuple[bytes, bytes, Failure | None]:
    parsed = pb.PredictStreamResponse.FromString(reply)
    key = parsed.request_id.encode()
    if parsed.WhichOneof("result") == "response":
        return key, parsed.response.SerializeToString(), None
    if parsed.WhichOneof("result") == "error":
        error = parsed.error
        return key, b"", Failure(_CODES.get(error.code, f"CODE_{error.code}"), one_line(error.message))
    return key, b"", Failure("INTERNAL", "an answer that holds neither a response nor an error")


def _fail(future: asyncio.Future[bytes], failure: Failure) -> None:
    if not future.done():
        future.set_exception(Unanswered(failure))
