"""A client that loads a server whether or not it is answered, for the benches of overload and of fairness."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc

from wattserve_client.errors import details_in
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

CONNECTIONS = 4
CLOSED_LOOPS = 32


class Caller:
    """new_tokens: of the answer to each request; 0: it predicts."""

    def __init__(
        self, address: str, tokens: int, connections: int = CONNECTIONS, new_tokens: int = 0
    ) -> None:
        self._channels = [
            grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
            for _ in range(connections)
        ]
        self._stubs: list[Any] = [pb_grpc.InferenceStub(channel) for channel in self._channels]
        ids = pb.TokenIds(ids=[5 + index % 50 for index in range(tokens)])
        self._request = pb.PredictRequest(tokens=pb.TokenInput(sequences=[ids]))
        self._generation = pb.GenerateRequest(tokens=ids, max_new_tokens=new_tokens, ignore_eos=True)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def call(self, number: int, left_s: float | None) -> None:
        stub = self._stubs[number % len(self._stubs)]
        if not self._generation.max_new_tokens:
            await stub.Predict(self._request, timeout=left_s)
            return
        async for _ in stub.Generate(self._generation, timeout=left_s):
            pass

    async def capacity(self, duration_s: float) -> float:
        """Answers per second of closed loops."""
        until_s, answered = time.monotonic() + duration_s, 0

        async def loop(number: int) -> None:
            nonlocal answered
            while time.monotonic() < until_s:
                await self.call(number, None)
                answered += 1

        await asyncio.gather(*(loop(number) for number in range(CLOSED_LOOPS)))
        return answered / duration_s

    async def offer(
        self, rate: float, duration_s: float, deadline_s: float, draws: random.Random | None = None
    ) -> dict[str, Any]:
        """Open loop, evenly spaced, or at random; what is late in being sent has less of its deadline
        left."""
        due_s = 0.0  # of the next, from the beginning
        codes: Counter[str] = Counter()
        took_s: list[float] = []
        told_s: list[float] = []

        async def one(due_s: float, number: int) -> None:
            left_s = due_s + deadline_s - time.monotonic()
            if left_s <= 0:
                codes["not sent in time"] += 1
                return
            try:
                await self.call(number, left_s)
            except grpc.aio.AioRpcError as error:
                codes[error.code().name] += 1
                retry_s = details_in(error.trailing_metadata()).retry_after_s
                told_s.extend([] if retry_s is None else [retry_s])
            else:
                codes["OK"] += 1
                took_s.append(time.monotonic() - due_s)

        begun_s, sent, open_calls = time.monotonic(), 0, set[asyncio.Task[None]]()
        while (passed_s := time.monotonic() - begun_s) < duration_s:
            while due_s < passed_s:
                task = asyncio.create_task(one(begun_s + due_s, sent))
                open_calls.add(task)
                task.add_done_callback(open_calls.discard)
                sent += 1
                due_s += 1 / rate if draws is None else draws.expovariate(rate)
            await asyncio.sleep(0.002)
        await asyncio.gather(*open_calls)
        good = [seconds for seconds in took_s if seconds <= deadline_s]
        return {
            "offered_per_s": sent / duration_s,
            "goodput_per_s": len(good) / duration_s,
            "answered_late": len(took_s) - len(good),
            "codes": dict(codes),
            "p50_s": percentile(took_s, 0.5),
            "p99_s": percentile(took_s, 0.99),
            "retry_after_s": statistics.median(told_s) if told_s else None,
        }


def percentile(values: list[float], part: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else None


def used_s(pid: int) -> float:
    """CPU time of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
