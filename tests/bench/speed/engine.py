"""Our engine in a process of its own, built as `wattserve serve` builds it, and nobody listening.

Bare forwards are `Variant.run` on batches that `Variant.prepare` has made (copy to the device, forward pass,
logits to numpy), on the thread where the engine runs its own: the same threads, caches and variant.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.bench.speed.child import reply, whole_set
from wattserve_server.config import ServerConfig
from wattserve_tools import cli

if TYPE_CHECKING:  # torch has to find the variables that `cli.main` sets
    from wattserve_server.engine.engine import Engine
    from wattserve_server.engine.variants.variant import Variant

BATCH = 32
WARMUP_S = 3.0
IN_FLIGHT = 3
"""Requests of a full batch each, so that one is always waiting when another ends."""

Item = NDArray[np.int64]
Result = TypeVar("Result")


class Bench:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arrivals: list[Item] = []

    async def ready(self) -> None:
        """Nothing to do: the engine is ready before it is asked."""

    async def use(self, sequences: list[list[int]]) -> None:
        self._arrivals = [np.array(ids) for ids in sequences]

    async def warm_up(self, variant: str) -> None:
        """Batches that the engine's own warm-up has not seen, the longest first."""
        found = self._variant(variant)
        ordered = sorted(self._arrivals, key=len, reverse=True)

        def run() -> None:
            until = time.perf_counter() + WARMUP_S
            for batch in whole_set(ordered, BATCH) + whole_set(self._arrivals, BATCH):
                found.run(found.prepare(batch))
                if time.perf_counter() > until:
                    break

        await self._on_its_thread(found, run)

    async def sorted(self, variant: str, seconds: float) -> float:
        """Sequences per second."""
        return await self._rate(variant, sorted(self._arrivals, key=len), seconds)

    async def arrival(self, variant: str, seconds: float) -> float:
        return await self._rate(variant, self._arrivals, seconds)

    async def _rate(self, variant: str, items: list[Item], seconds: float) -> float:
        """Of all items in batches, and all again until the time has passed; batches are prepared in it."""
        found = self._variant(variant)

        def run() -> float:
            passes, begun = 0, time.perf_counter()
            while not passes or time.perf_counter() - begun < seconds:
                for batch in whole_set(items, BATCH):
                    found.run(found.prepare(batch))
                passes += 1
            return passes * len(items) / (time.perf_counter() - begun)

        return await self._on_its_thread(found, run)

    async def alone(self, variant: str, sequences: list[list[int]]) -> list[float]:
        """Seconds of the bare forward of each; the first is run once more, before."""
        found = self._variant(variant)
        batches = [found.prepare([np.array(ids)]) for ids in sequences]

        def run() -> list[float]:
            found.run(batches[0])
            taken = []
            for batch in batches:
                begun = time.perf_counter()
                found.run(batch)
                taken.append(time.perf_counter() - begun)
            return taken

        return await self._on_its_thread(found, run)

    async def bare(self, variant: str, batches: list[list[list[int]]], seconds: float) -> float:
        """Seconds of one bare forward, of batches by turns."""
        found = self._variant(variant)
        prepared = [found.prepare([np.array(ids) for ids in batch]) for batch in batches]

        def run() -> float:
            done, begun = 0, time.perf_counter()
            while not done or time.perf_counter() - begun < seconds:
                found.run(prepared[done % len(prepared)])
                done += 1
            return (time.perf_counter() - begun) / done

        return await self._on_its_thread(found, run)

    async def whole(self, variant: str, batches: list[list[list[int]]], seconds: float) -> float:
        """Seconds of one batch on the whole way of the engine: request, batcher, runner, window, result."""
        items = [[np.array(ids) for ids in batch] for batch in batches]
        done, begun = 0, time.perf_counter()

        async def slot() -> None:
            nonlocal done
            for number in count():
                if number and time.perf_counter() - begun >= seconds:
                    break
                mine = items[number % len(items)]
                request = await self._engine.predict(mine, self._engine.hosted(variant))
                sizes = {line.batch_size for line in request.receipt.lines}
                if sizes != {len(mine)}:
                    raise RuntimeError(f"a request of {len(mine)} sequences ran in batches of {sizes}")
                done += 1

        await asyncio.gather(*(slot() for _ in range(IN_FLIGHT)))
        return (time.perf_counter() - begun) / done

    async def threads(self, variant: str) -> int:
        """That compute a batch of it."""
        import torch

        found = self._variant(variant)
        batch = found.prepare([np.arange(5, 15)])

        def run() -> int:
            found.run(batch)
            return torch.get_num_threads()

        return await self._on_its_thread(found, run)

    def _variant(self, name: str) -> Variant:
        found = self._engine.roster.named(name).variant
        if found is None:
            raise RuntimeError(f"variant {name!r} is not in memory")
        return found

    async def _on_its_thread(self, variant: Variant, work: Callable[[], Result]) -> Result:
        done: Future[Result] = Future()

        def chore() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # it belongs to whoever asked
                done.set_exception(error)

        self._engine.lanes[variant.device].batcher.add_chore(chore)
        return await asyncio.wrap_future(done)


async def answer_all(config: ServerConfig) -> None:
    from wattserve_server.service.quota import Quotas
    from wattserve_server.starting import make_plan, start
    from wattserve_server.telemetry.observer import Observer

    plan = make_plan(config)
    async with AsyncExitStack() as undo:
        ready, go_on = await start(config, plan, Observer("bench"), Quotas(), undo)
        await go_on()
        bench = Bench(ready.engine)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            try:
                result = await getattr(bench, asked.pop("what"))(**asked)
            except Exception as error:
                result = error
            print(reply(result), flush=True)


def serve_nobody(config: ServerConfig, arguments: Namespace) -> int:
    asyncio.run(answer_all(config))
    return 0


if __name__ == "__main__":
    cli._serve = serve_nobody
    sys.exit(cli.main())
