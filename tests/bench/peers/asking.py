"""The client of every server: closed loops of requests that are bytes already, over gRPC or over HTTP.

Open Inference goes through grpc.aio with bytes for messages, JSON through bare sockets that stay open:
neither is a client of any server's own, and what the client itself takes of the cores is told beside each
figure.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import grpc
import numpy as np
from numpy.typing import NDArray

from tests.bench.peers.settings import LONGEST, MODEL_NAME, PAD
from tests.bench.speed.figures import BenchError
from tests.bench.speed.sequences import Ids
from wattserve_proto.oip import open_inference_pb2 as oip

METHOD = "/inference.GRPCInferenceService/ModelInfer"
CALL_LIMIT_S = 60.0
HEAD_END = b"\r\n\r\n"
OK_LINE = b"HTTP/1.1 200 "

Ask = Callable[[bytes], Awaitable[bytes]]
"""Sends a request; its answer. Raises BenchError."""

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Taken:
    """A turn. rate: answers per second, from the first request that was sent to the last answer. latencies:
    in seconds. client_s: CPU time of the client. answers: bytes, the latest to each request."""

    rate: float
    latencies: list[float]
    client_s: float
    answers: list[bytes]


class OpenInference:
    """Open Inference Protocol over gRPC. is_padded: rows come as LONGEST ids, for servers that want equal
    shapes."""

    words = "Open Inference over gRPC"

    def __init__(self, is_padded: bool) -> None:
        self._is_padded = is_padded

    def request(self, ids: Ids) -> bytes:
        row = np.full(LONGEST if self._is_padded else len(ids), PAD, dtype="<i8")
        row[: len(ids)] = ids
        return oip.ModelInferRequest(
            model_name=MODEL_NAME,
            inputs=[
                oip.ModelInferRequest.InferInputTensor(
                    name="input_ids", datatype="INT64", shape=[1, len(row)]
                )
            ],
            raw_input_contents=[row.tobytes()],
        ).SerializeToString()

    def logits(self, answer: bytes) -> Logits:
        """Of one sequence; raw or typed, as the server likes."""
        found = oip.ModelInferResponse.FromString(answer)
        if found.raw_output_contents:
            return np.frombuffer(found.raw_output_contents[0], dtype="<f4")
        return np.array(found.outputs[0].contents.fp32_contents, dtype=np.float32)

    @asynccontextmanager
    async def connect(self, port: int, slots: int) -> AsyncIterator[list[Ask]]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)

            async def ask(request: bytes) -> bytes:
                try:
                    return await call(request, timeout=CALL_LIMIT_S)
                except grpc.aio.AioRpcError as error:
                    raise BenchError(f"a request failed: {error.code().name}: {error.details()}") from None

            yield [ask] * slots


class Json:
    """JSON over HTTP/1.1, a connection for each request in flight."""

    words = "JSON over HTTP"

    def request(self, ids: Ids) -> bytes:
        body = json.dumps({"input_ids": ids}, separators=(",", ":")).encode()
        head = (
            "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def logits(self, answer: bytes) -> Logits:
        return np.array(json.loads(answer)["logits"], dtype=np.float32)

    @asynccontextmanager
    async def connect(self, port: int, slots: int) -> AsyncIterator[list[Ask]]:
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(_connection(port)) for _ in range(slots)]


@asynccontextmanager
async def _connection(port: int) -> AsyncIterator[Ask]:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        raise BenchError(f"no connection to port {port}: {error}") from None

    async def ask(request: bytes) -> bytes:
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                writer.write(request)
                return await _answer(reader)
        except TimeoutError:
            raise BenchError(f"no answer within {CALL_LIMIT_S:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            raise BenchError("the server closed a connection") from None

    try:
        yield ask
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """The body. Raises BenchError for another status than 200."""
    head = await reader.readuntil(HEAD_END)
    body = await reader.readexactly(int(_field(head, b"content-length")))
    if not head.startswith(OK_LINE):
        raise BenchError(f"a request failed: {head.splitlines()[0].decode()}: {body[:200].decode()}")
    return body


def _field(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.lower() == name:
            return value
    raise BenchError(f"an answer without {name.decode()}")


Wire = OpenInference | Json


def closed_loop(wire: Wire, port: int, requests: Sequence[bytes], concurrency: int, seconds: float) -> Taken:
    """All requests, and all again until `seconds` have passed. Raises BenchError when one fails."""
    return asyncio.run(_closed_loop(wire, port, requests, concurrency, seconds))


async def _closed_loop(
    wire: Wire, port: int, requests: Sequence[bytes], concurrency: int, seconds: float
) -> Taken:
    latencies: list[float] = []
    answers = [b""] * len(requests)
    async with wire.connect(port, concurrency) as slots:
        await slots[0](requests[0])  # connects
        client_s, begun = time.process_time(), time.perf_counter()

        def upcoming() -> Iterator[int]:
            yield from range(len(requests))
            while time.perf_counter() - begun < seconds:
                yield from range(len(requests))

        shared = upcoming()

        async def slot(ask: Ask) -> None:
            for number in shared:
                sent = time.perf_counter()
                answers[number] = await ask(requests[number])
                latencies.append(time.perf_counter() - sent)

        await asyncio.gather(*map(slot, slots))
        took_s = time.perf_counter() - begun
        client_s = time.process_time() - client_s
    return Taken(len(latencies) / took_s, latencies, client_s, answers)
