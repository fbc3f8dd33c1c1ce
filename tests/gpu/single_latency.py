"""How long the engine takes for one sequence alone, beside the bare forward pass of that sequence.

    python -m tests.gpu.single_latency --model random:distilbert-base --variant fp16 --device cuda

Prints medians of interleaved pairs. The goal on a GPU: no more than 0.3 ms over the bare forward pass.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from types import SimpleNamespace

import torch

from wattserve_server.energy.costlaw import LawView
from wattserve_server.energy.receipt import ACCELERATOR
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.device import resolve_device
from wattserve_server.engine.engine import Engine, EngineLimits, Metering
from wattserve_server.engine.lane import RunLog
from wattserve_server.engine.model import load_model
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.roster import LoadingRules
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.port import Materials


async def measure(
    source: str, variant: str, device: torch.device, tokens: int, pairs: int
) -> dict[str, object]:
    model = load_model(source, task_named("sequence-classification"))
    engine = Engine(
        model,
        Materials(model.weights),
        [Choice(variant, KINDS[variant], device)],
        variant,
        LoadingRules(is_verified=False),
        EngineLimits({device: BatchLimits(8, 8 * tokens)}, max_queue=8, max_request=8),
        ReceiptBook(60.0, 1000, lambda receipt: None),
        {device: Metering(RunLog(), {ACCELERATOR: SimpleNamespace(law=LawView({}))})},
        lambda *result: None,
        lambda error: None,
    )
    engine.start()
    built = (await engine.loader.load(variant)).variant
    item = model.task.example(model.facts, model.tokenizer, tokens, 1)
    inputs = {name: tensor.to(device) for name, tensor in built.prepare([item]).inputs.items()}

    def bare() -> float:
        """On the engine's thread, where the variant is warm; its milliseconds."""
        begun = time.perf_counter()
        with torch.inference_mode(), built.kind.running(device):
            model.task.forward(built.built.module, inputs).float().cpu()
        return (time.perf_counter() - begun) * 1e3

    bare_ms: list[float] = []
    engine_ms: list[float] = []
    for _ in range(pairs):
        bare_ms.append(await engine.lanes[device].do(bare))
        begun = time.perf_counter()
        await engine.predict([item], engine.hosted(variant))
        engine_ms.append((time.perf_counter() - begun) * 1e3)
    await asyncio.to_thread(engine.stop)
    alone, served = (statistics.median(each[pairs // 5 :]) for each in (bare_ms, engine_ms))
    return {
        "model": source, "variant": variant, "device": str(device), "tokens": tokens,
        "bare_ms": round(alone, 4), "engine_ms": round(served, 4), "over_ms": round(served - alone, 4),
        "ratio": round(served / alone, 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="random:distilbert-base")
    parser.add_argument("--variant", default="fp16", choices=list(KINDS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=500)
    asked = parser.parse_args()
    device = resolve_device(asked.device)
    print(json.dumps(asyncio.run(measure(asked.model, asked.variant, device, asked.tokens, asked.pairs))))


if __name__ == "__main__":
    main()
