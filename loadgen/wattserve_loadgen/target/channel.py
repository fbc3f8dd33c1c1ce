"""The wire of the hot path: calls that take a serialised request and give back a serialised answer.

It knows gRPC's calls, channels and errors; of a message it knows at most the number of the field that an
answer on a stream is matched by. What it costs is stated in `tests/bench/client_ceiling.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio

from wattserve_loadgen.target.stream import Stream

PREDICT = "/wattserve.v1.Inference/Predict"
PREDICT_STREAM = "/wattserve.v1.Inference/PredictStream"
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # otherwise equal channels share one connection
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
# A channel allows so many streams at once and queues the rest inside the client, where it would look like
# latency.
_CALLS_PER_CHANNEL = 32
_MAX_CHANNELS = 8
# A gRPC stream has one write on its way at a time. Measured at 64 slots: 79 us of client CPU a request by one
# stream, 60 by four, 57 by eight, each on a channel of its own.
_CALLS_PER_STREAM = 8
_MAX_STREAMS = 8


class Call(Protocol):
    """One request: its answer, or one of `failures.CALL_ERRORS`."""

    def __call__(self, request: bytes, /, *, timeout: float) -> Awaitable[bytes]: ...


@dataclass(frozen=True)
class Tls:
    """PEM texts; None: the system's roots, or no certificate of the client's own."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


@dataclass(frozen=True)
class Connection:
    """How to reach one method of one server. It can be pickled, so that a worker process can reach it too."""

    address: str
    method: str = PREDICT
    stream: bool = False  # `method` is the native PredictStream
    tls: Tls | None = None  # None: plain


def open_channel(address: str, tls: Tls | None = None) -> grpc.aio.Channel:
    """A channel with a connection of its own, made at its first call."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


def open_calls(connection: Connection, count: int) -> tuple[list[Call], Callable[[], Awaitable[None]]]:
    """A call for each of `count` slots, spread over a few channels, and what closes them all.

    All calls of a stream must be given the same timeout.
    """
    if connection.stream:
        return _open_streams(connection, count)
    channels = [
        open_channel(connection.address, connection.tls)
        for _ in range(min(_MAX_CHANNELS, -(-count // _CALLS_PER_CHANNEL)))
    ]
    methods: list[Call] = [channel.unary_unary(connection.method) for channel in channels]

    async def close() -> None:
        for channel in channels:
            await channel.close()

    return [methods[slot % len(methods)] for slot in range(count)], close


def _open_streams(connection: Connection, count: int) -> tuple[list[Call], Callable[[], Awaitable[None]]]:
    wanted = min(_MAX_STREAMS, -(-count // _CALLS_PER_STREAM))
    channels = [open_channel(connection.address, connection.tls) for _ in range(wanted)]
    streams = [Stream(channel.stream_stream(connection.method)) for channel in channels]

    async def close() -> None:
        for stream in streams:
            await stream.close()
        for channel in channels:
            await channel.close()

    return [streams[slot % wanted] for slot in range(count)], close
