"""`python -m tests.bench.openai_front`: output tokens per second by HTTP beside native streams, by turns.

One server of a seeded model of GPT-2's size; the same prompts and numbers of new tokens, greedily, so many in
flight. The clients are lean, as they share the server's cores: gRPC's own, a bare HTTP one, and OpenAI's
library beside them. Ratios are of one round; the median of the rounds counts. With --transformers, this
server and `transformers serve` by turns on the same weights, by AIPerf (`peer`). Nothing else should run
meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable

import grpc
from openai import AsyncOpenAI

from tests.bench.client import used_s
from tests.bench.generation import Job, jobs
from tests.bench.openai_front import peer
from tests.fixtures.server import RunningServer, running_server
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1.inference_pb2_grpc import InferenceStub

Ask = Callable[[Job], Awaitable[int]]  # the tokens that came

NATIVE, BARE, LIBRARY = "native stream", "HTTP, bare client", "HTTP, OpenAI's library"


def _body(model: str, job: Job) -> dict[str, object]:
    return {
        "model": model,
        "prompt": job.prompt,
        "max_tokens": job.new,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class Ways:
    def __init__(self, server: RunningServer, model: str) -> None:
        self._model = model
        self._host, self._port = server.openai_url.split("/")[2].rsplit(":", 1)
        self._channel = grpc.aio.insecure_channel(server.address)
        self._library = AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0)

    async def close(self) -> None:
        await self._channel.close()
        await self._library.close()

    async def native(self, job: Job) -> int:
        request = pb.GenerateRequest(
            tokens=pb.TokenIds(ids=job.prompt), max_new_tokens=job.new, ignore_eos=True
        )
        tokens = 0
        async for message in InferenceStub(self._channel).Generate(request):
            tokens = message.end.usage.output_tokens
        return tokens

    async def bare(self, job: Job) -> int:
        body = json.dumps(_body(self._model, job) | {"ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {self._host}\r\ncontent-length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(self._host, int(self._port), limit=1 << 22)
        writer.write(head.encode() + body)
        stream = await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()
        usage = json.loads(stream.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
        tokens: int = usage["completion_tokens"]
        return tokens

    async def library(self, job: Job) -> int:
        tokens = 0
        stream = await self._library.completions.create(
            **_body(self._model, job), extra_body={"ignore_eos": True}
        )  # type: ignore[call-overload]
        async for chunk in stream:
            if chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
        return tokens


async def rate(ask: Ask, work: list[Job], in_flight: int) -> float:
    """Output tokens per second of all."""
    room = asyncio.Semaphore(in_flight)

    async def one(job: Job) -> int:
        async with room:
            return await ask(job)

    begun = time.monotonic()
    tokens = sum(await asyncio.gather(*map(one, work)))
    assert tokens == sum(job.new for job in work)
    return tokens / (time.monotonic() - begun)


async def beside_native(args: argparse.Namespace) -> None:
    work = jobs(args.requests, args.longest, args.seed)
    tokens = sum(job.new for job in work)
    flags = ("--model", f"random:{args.model}", "--variants", args.variant, "--http-port", "0")
    with running_server(*flags, fresh=True) as server:
        ways = Ways(server, args.model)
        asked: dict[str, Ask] = {NATIVE: ways.native, BARE: ways.bare, LIBRARY: ways.library}
        rates: dict[str, list[float]] = {name: [] for name in asked}
        server_us: dict[str, list[float]] = {name: [] for name in asked}
        client_us: dict[str, list[float]] = {name: [] for name in asked}
        await rate(ways.native, work[: args.in_flight], args.in_flight)
        for number in range(args.rounds):
            names = list(asked)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                before, own = used_s(server.process.pid), used_s(os.getpid())
                rates[name].append(await rate(asked[name], work, args.in_flight))
                server_us[name].append((used_s(server.process.pid) - before) / tokens * 1e6)
                client_us[name].append((used_s(os.getpid()) - own) / tokens * 1e6)
        await ways.close()
    print(
        f"random:{args.model} {args.variant}, {len(work)} requests, {tokens} new tokens, {args.rounds} rounds"
    )
    print("\n| way | output tokens/s | over native | server CPU-us a token | client CPU-us a token |")
    print("| --- | --- | --- | --- | --- |")
    for name, found in rates.items():
        over = statistics.median(one / native for one, native in zip(found, rates[NATIVE], strict=True))
        cpu = f"{statistics.median(server_us[name]):.0f} | {statistics.median(client_us[name]):.0f}"
        print(f"| {name} | {statistics.median(found):.1f} | {over:.3f} | {cpu} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.openai_front", description=__doc__)
    parser.add_argument("--model", default="gpt2", help="of the random ones (default gpt2)")
    parser.add_argument("--variant", default="fp32")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--longest", type=int, default=64, help="new tokens of a request, at the most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transformers", help="the program, in an environment of its own: beside its server")
    parser.add_argument("--aiperf", help="the program, which then asks both")
    args = parser.parse_args()
    if args.transformers:
        peer.compare(args)
    else:
        asyncio.run(beside_native(args))


if __name__ == "__main__":
    main()
