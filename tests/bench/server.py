"""The server against the bare engine, side by side in one run: `make bench`.

For each model and variant, interleaved over rounds on the same machine:
  (a) the engine alone, in this process: the whole set sorted by length, at its best batch size;
  (b) the server at closed-loop concurrency 32, its client in this process;
  (c) latency at concurrency 1 against the bare forward pass of the same sequences.
Printed are medians over the rounds, and the ratios of what ran in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np
import torch
from numpy.typing import NDArray

from tests.fixtures.server import running_server
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.engine.device import describe_device, resolve_device, usable_cores
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import choose
from wattserve_server.engine.variants.variant import Variant, build_variant

METHOD = "/wattserve.v1.Inference/Predict"
BATCH_SIZES = (8, 16, 32, 64)
Ids = NDArray[np.int64]


@dataclass
class Rounds:
    """One figure per round. Rates in sequences per second, latencies in seconds."""

    engine: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    tail: list[float] = field(default_factory=list)


def sequences_like_sst2(count: int, model: LoadedModel, seed: int = 0) -> list[Ids]:
    """Random ids with lengths like SST-2's: right-skewed, mean about 28, up to 128 tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.round(rng.lognormal(3.15, 0.6, count)), 3, min(128, model.facts.max_tokens)).astype(
        int
    )
    return [rng.integers(5, model.facts.vocabulary_size, size=length) for length in lengths]


def engine_rate(variant: Variant, rows: Sequence[Ids], batch: int) -> float:
    ordered = sorted(rows, key=len)
    begun = time.perf_counter()
    for start in range(0, len(ordered), batch):
        variant.run(variant.prepare(ordered[start : start + batch]))
    return len(ordered) / (time.perf_counter() - begun)


async def server_load(
    address: str, requests: Sequence[bytes], concurrency: int, seconds: float
) -> tuple[float, list[float]]:
    """Sequences per second, and every latency, of a closed loop."""
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(METHOD)
        end = time.perf_counter() + seconds
        upcoming = iter(range(10**9))

        async def slot() -> None:
            while (begun := time.perf_counter()) < end:
                await call(requests[next(upcoming) % len(requests)])
                latencies.append(time.perf_counter() - begun)

        begun = time.perf_counter()
        await asyncio.gather(*(slot() for _ in range(concurrency)))
        return len(latencies) / (time.perf_counter() - begun), latencies


def measure(source: str, names: str, rounds: int, seconds: float, count: int, flags: list[str]) -> None:
    device = resolve_device("cpu")
    model = load_model(source, task_named("sequence-classification"))
    variants = {choice.name: build_variant(model, choice) for choice in choose(names, device)}
    rows = sequences_like_sst2(count, model)
    results = {name: Rounds() for name in variants}
    best = dict.fromkeys(variants, 32)
    flags = ["--model", source, "--variants", names, "--meter", "estimate", *flags]
    with running_server(*flags) as server:
        for name, variant in variants.items():
            rates = {batch: engine_rate(variant, rows, batch) for batch in BATCH_SIZES}
            best[name] = max(rates, key=lambda batch: rates[batch])
        for _ in range(rounds):
            for name, variant in variants.items():
                requests = [
                    pb.PredictRequest(
                        variant=name, tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=ids.tolist())])
                    ).SerializeToString()
                    for ids in rows
                ]
                result = results[name]
                result.engine.append(engine_rate(variant, rows, best[name]))
                rate, loaded = asyncio.run(server_load(server.address, requests, 32, seconds))
                result.server.append(rate)
                result.tail.append(float(np.quantile(loaded, 0.99) / np.quantile(loaded, 0.5)))
                alone = rows[:64]
                _, latencies = asyncio.run(server_load(server.address, requests[:64], 1, seconds / 3))
                forwards = []
                for ids in alone:
                    begun = time.perf_counter()
                    variant.run(variant.prepare([ids]))
                    forwards.append(time.perf_counter() - begun)
                result.forward.append(statistics.median(forwards))
                result.latency.append(statistics.median(latencies))
    for name, result in results.items():
        ratios = [b / a for a, b in zip(result.engine, result.server, strict=True)]
        extra = [late - bare for late, bare in zip(result.latency, result.forward, strict=True)]
        print(
            f"| {source} | {name} | {statistics.median(result.engine):,.0f} (batch {best[name]}) "
            f"| {statistics.median(result.server):,.0f} | {statistics.median(ratios):.2f} "
            f"| {statistics.median(result.forward) * 1e3:.2f} ms | {statistics.median(extra) * 1e3:+.2f} ms "
            f"| {statistics.median(result.tail):.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="random:distilbert-base,demo")
    parser.add_argument("--variants", default="fp32,bf16", help="those that this CPU runs natively")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each server measurement")
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0, help="of the engine, here (default: all cores)")
    parser.add_argument("flags", nargs="*", help="further flags of `wattserve serve`, after --")
    options = parser.parse_args()
    torch.set_num_threads(options.threads or usable_cores())
    device = resolve_device("cpu")
    native = [choice.name for choice in choose(None, device)]
    names = ",".join(name for name in options.variants.split(",") if name in native)
    print(f"{describe_device(device)}, torch {torch.__version__}; {options.rounds} rounds\n")
    print(
        "| model | variant | (a) engine, seq/s | (b) server at 32, seq/s | b/a "
        "| forward | server - forward at 1 | p99/p50 at 32 |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for source in options.models.split(","):
        measure(source, names, options.rounds, options.seconds, options.sequences, options.flags)


if __name__ == "__main__":
    main()
