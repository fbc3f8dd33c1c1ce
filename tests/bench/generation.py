"""`python -m tests.bench.generation`: output tokens per second of the engine's steps beside other ways.

The same seeded model with the same linear layers, the same prompts (log-normal, 16 to 256 tokens) and the
same numbers of new tokens (uniform), greedily and by turns: one by one and in static batches by
transformers' `generate`, by transformers' continuous batching, and by this engine with so many in flight.
Ratios of one round are of the same minute; the median of the rounds counts. Nothing else should run
meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from wattserve_server.energy.costlaw import LawView
from wattserve_server.energy.receipt import ACCELERATOR, Window
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.builtin.random_weights import build_random_model
from wattserve_server.engine.engine import Engine, EngineLimits, Metering
from wattserve_server.engine.generation.port import Wish
from wattserve_server.engine.lane import RunLog
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import Order
from wattserve_server.engine.roster import LoadingRules
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.tasks.causal import with_linear_layers
from wattserve_server.engine.variants.catalogue import choose
from wattserve_server.engine.variants.port import Materials

CPU = torch.device("cpu")
OURS = "this engine"


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    new: int


def jobs(count: int, longest_new: int, seed: int) -> list[Job]:
    rng = np.random.default_rng(seed)
    lengths = np.clip(64 * np.exp(0.7 * rng.standard_normal(count)), 16, 256).astype(int)
    news = rng.integers(16, longest_new + 1, count)
    return [
        Job(rng.integers(5, 250, length).tolist(), int(new))
        for length, new in zip(lengths, news, strict=True)
    ]


class Theirs:
    """transformers' own ways."""

    def __init__(self, name: str) -> None:
        module: Any = with_linear_layers(build_random_model(name))
        self._module = module
        self._module.generation_config.pad_token_id = 0
        self._module.generation_config.eos_token_id = None

    def one_by_one(self, work: list[Job]) -> None:
        for job in work:
            self._generate([job.prompt], job.new)

    def static(self, work: list[Job], size: int) -> None:
        for begin in range(0, len(work), size):
            batch = work[begin : begin + size]
            self._generate([job.prompt for job in batch], max(job.new for job in batch))

    def continuous(self, work: list[Job]) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        made = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=256)
        config = ContinuousBatchingConfig(num_blocks=128, max_batch_tokens=256)
        with self._module.continuous_batching_context_manager(
            generation_config=made, continuous_batching_config=config
        ) as manager:
            for number, job in enumerate(work):
                manager.add_request(job.prompt, request_id=str(number), max_new_tokens=job.new)
            done = 0
            while done < len(work):
                result = manager.get_result(timeout=600)
                done += result is not None and result.is_finished()

    def _generate(self, prompts: list[list[int]], new: int) -> None:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            self._module.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False)


class Ours:
    def __init__(self, model: LoadedModel, variant: str, members: int, step_tokens: int) -> None:
        self.windows: list[Window] = []
        self.first_ms: list[tuple[float, float]] = []  # of each: until its first step, and its first token
        self._variant = variant
        self._members = members
        limits = {CPU: BatchLimits(members, step_tokens)}
        self.engine = Engine(
            model,
            Materials(model.weights),
            choose(variant, CPU),
            variant,
            LoadingRules(is_verified=False, threads=torch.get_num_threads()),
            EngineLimits(limits, max_queue=4096, max_request=8, cache_bytes=4 << 30),
            ReceiptBook(60.0, 10_000, lambda receipt: None),
            {CPU: Metering(RunLog(), {ACCELERATOR: SimpleNamespace(law=LawView({}))})},
            lambda window, *_: self.windows.append(window),
            lambda error: None,
        )

    async def ready(self) -> None:
        self.engine.start()
        await self.engine.loader.load(self._variant)

    async def run(self, work: list[Job]) -> list[list[float]]:
        """The instants at which each one's tokens came, in seconds."""
        room = asyncio.Semaphore(self._members)

        async def one(job: Job) -> list[float]:
            async with room:
                hosted = self.engine.hosted(self._variant)
                wish = Wish(job.new, ignores_end=True)
                running = await self.engine.generate(np.array(job.prompt), hosted, wish, Order())
                came = []
                async for piece in running:
                    came += [time.monotonic()] * len(piece.token_ids)
                assert len(came) == job.new
                self.first_ms.append((running.ended.queue_ns / 1e6, running.ended.first_token_ns / 1e6))
                return came

        return list(await asyncio.gather(*map(one, work)))


async def compare(args: argparse.Namespace) -> None:
    work = jobs(args.requests, args.longest, args.seed)
    tokens = sum(job.new for job in work)
    theirs = Theirs(args.model)
    model = load_model(f"random:{args.model}", task_named("text-generation"))
    ours = {
        variant: Ours(model, variant, args.in_flight, args.step_tokens)
        for variant in args.variants.split(",")
    }
    for each in ours.values():
        await each.ready()
    ways: dict[str, Callable[[], Any]] = {
        "one by one": lambda: theirs.one_by_one(work),
        f"static batches of {args.in_flight}": lambda: theirs.static(work, args.in_flight),
        "transformers' continuous batching": lambda: theirs.continuous(work),
    }
    print(f"{len(work)} requests, {sum(len(job.prompt) for job in work)} prompt and {tokens} new tokens")
    rates: dict[str, list[float]] = {}
    first = next(iter(ours))
    for _ in range(args.rounds):
        for name, way in ways.items():
            if name in args.without:
                continue
            begun = time.monotonic()
            await asyncio.to_thread(way)
            rates.setdefault(name, []).append(tokens / (time.monotonic() - begun))
        for variant, each in ours.items():
            each.windows.clear()
            each.first_ms.clear()
            cpu, begun = time.process_time(), time.monotonic()
            await each.run(work)
            seconds, cpu_s = time.monotonic() - begun, time.process_time() - cpu
            rates.setdefault(f"{OURS}, {variant}", []).append(tokens / seconds)
            held_s = sum(window.held_ns for window in each.windows) / 1e9
            part, steps = held_s / seconds, len(each.windows)
            print(f"{variant}: {part:.3f} of the time in {steps} steps, {cpu_s:.1f} CPU-s of this process")
            queued_ms, first_ms = np.median(each.first_ms, axis=0)
            print(f"{variant}: first token after {first_ms:.0f} ms, of which {queued_ms:.0f} in the queue")
    own = rates[f"{OURS}, {first}"]
    print("\n| way | output tokens/s | this engine's over it |\n| --- | --- | --- |")
    for name, found in rates.items():
        over = statistics.median(mine / other for mine, other in zip(own, found, strict=True))
        print(f"| {name} | {statistics.median(found):.1f} | {over:.2f} |")
    await beside_long_prompts(ours[first], args)
    for each in ours.values():
        await asyncio.to_thread(each.engine.stop)


async def beside_long_prompts(ours: Ours, args: argparse.Namespace) -> None:
    """How long the tokens of some are apart while prompts of 1,000 come."""
    ours.windows.clear()
    rng = np.random.default_rng(args.seed)
    short = [Job(rng.integers(5, 250, 16).tolist(), 100) for _ in range(4)]
    decoding = asyncio.create_task(ours.run(short))
    await asyncio.sleep(0.5)
    longest = min(1000, ours.engine.model.facts.max_tokens - 2)
    await ours.run([Job(rng.integers(5, 250, longest).tolist(), 2) for _ in range(3)])
    apart = np.concatenate([np.diff(came) for came in await decoding])
    took = [(sum(window.lengths), len(window.lengths), window.held_ns / 1e6) for window in ours.windows]
    part_ms = statistics.median(ms for tokens, _, ms in took if tokens >= args.step_tokens)
    alone_ms = statistics.median(ms for tokens, members, ms in took if tokens == members)
    print(
        f"\nbeside prompts of {longest} tokens: p99 between tokens {1e3 * np.quantile(apart, 0.99):.0f} ms; "
        f"a step with a part of {args.step_tokens} takes {part_ms:.0f} ms, one that only decodes "
        f"{alone_ms:.0f} ms: goal {2 * (part_ms + alone_ms):.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.generation", description=__doc__)
    parser.add_argument("--model", default="gpt2", help="of the random ones (default gpt2)")
    parser.add_argument("--variants", default="fp32,bf16", help="of ours, the first compared")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--longest", type=int, default=256, help="new tokens of a request, at the most")
    parser.add_argument("--step-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", default="", help="ways to leave out, by their names")
    asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
