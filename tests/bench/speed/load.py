"""The client: closed loops of requests that are bytes already."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc

from tests.bench.speed.figures import BenchError
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as rpc

METHOD = "/wattserve.v1.Inference/Predict"
CALL_LIMIT_S = 60.0
SETTLES_S = 20.0


@dataclass(frozen=True)
class Served:
    """rate: requests per second, from the first that was sent to the last that was answered. latencies: in
    seconds, by order of sending."""

    rate: float
    latencies: list[float]


def closed_loop(address: str, requests: Sequence[bytes], concurrency: int, seconds: float) -> Served:
    """All requests, and all again until `seconds` have passed. Raises BenchError when one fails."""
    return asyncio.run(_closed_loop(address, requests, concurrency, seconds))


def one_by_one(address: str, requests: Sequence[bytes]) -> list[float]:
    """Latencies in seconds, the connection being open already."""
    return closed_loop(address, [requests[0], *requests], 1, 0.0).latencies[1:]


async def _closed_loop(address: str, requests: Sequence[bytes], concurrency: int, seconds: float) -> Served:
    latencies: dict[int, float] = {}
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        begun = time.perf_counter()

        def upcoming() -> Iterator[tuple[int, bytes]]:
            number = 0
            while number == 0 or time.perf_counter() - begun < seconds:
                yield from enumerate(requests, number)
                number += len(requests)

        shared = upcoming()

        async def slot() -> None:
            for number, request in shared:
                sent = time.perf_counter()
                await call(request, timeout=CALL_LIMIT_S)
                latencies[number] = time.perf_counter() - sent

        try:
            await asyncio.wait_for(channel.channel_ready(), CALL_LIMIT_S)
            begun = time.perf_counter()
            await asyncio.gather(*(slot() for _ in range(concurrency)))
        except TimeoutError:
            raise BenchError(f"no connection to {address} within {CALL_LIMIT_S:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"a request failed: {error.code().name}: {error.details()}") from None
        took_s = time.perf_counter() - begun
    return Served(len(latencies) / took_s, [latencies[number] for number in sorted(latencies)])


def settled_tokens(address: str, variant: str) -> tuple[int, int]:
    """(tokens, padded tokens) of everything settled so far, once nothing is pending. Raises BenchError."""
    until = time.monotonic() + SETTLES_S
    with grpc.insecure_channel(address) as channel:
        stub = rpc.InferenceStub(channel)
        while True:
            try:
                report = stub.GetEnergyReport(pb.GetEnergyReportRequest(), timeout=CALL_LIMIT_S)
            except grpc.RpcError as error:
                raise BenchError(f"no energy report: {error}") from None
            if not report.pending_receipts:
                break
            if time.monotonic() > until:
                raise BenchError(f"{report.pending_receipts} receipts did not settle in {SETTLES_S:g} s")
            time.sleep(0.1)
    for account in report.active:
        if account.variant == variant:
            return account.tokens, account.padded_tokens
    return 0, 0
