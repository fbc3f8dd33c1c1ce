"""The child of `cpu_engines`: one model, run in several ways, with one setting of threads."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from tests.bench.speed.child import answer_turns, whole_set
from tests.bench.speed.sequences import sequences_like_sst2
from wattserve_server.engine.device import resolve_device
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants import tuning
from wattserve_server.engine.variants.catalogue import choose
from wattserve_server.engine.variants.variant import build_variant

BATCH = 32
IN_ARRIVAL_ORDER = ("packed", "tuned")
Run = Callable[[Sequence[Any]], object]


class Ways:
    def __init__(self, model_name: str, variant_name: str, ways: Sequence[str], count: int) -> None:
        model = load_model(model_name, task_named("sequence-classification"))
        self._items = [np.array(ids) for ids in sequences_like_sst2(count, 0)]
        self._runs = {way: _run_of(model, variant_name, way) for way in ways}

    def ready(self) -> None:
        """Each way has met a batch and a single sequence."""
        for run in self._runs.values():
            for size in (1, BATCH):
                run(self._items[:size])

    def turn(self, way: str) -> list[float]:
        """Sequences per second of the whole set, and seconds of one sequence of 32 tokens."""
        run = self._runs[way]
        ordered = self._items if way in IN_ARRIVAL_ORDER else sorted(self._items, key=len)
        begun = time.perf_counter()
        for batch in whole_set(ordered, BATCH):
            run(batch)
        rate = len(ordered) / (time.perf_counter() - begun)
        one = [np.full(32, 7)]
        taken = []
        for _ in range(20):
            begun = time.perf_counter()
            run(one)
            taken.append(time.perf_counter() - begun)
        return [rate, statistics.median(taken)]


def _run_of(model: LoadedModel, variant_name: str, way: str) -> Run:
    variant = build_variant(model, choose(variant_name, resolve_device("cpu"))[0])
    if way == "openvino":
        return _openvino(variant.built.module, variant_name, variant.prepare)
    if way == "packed":
        with patch.object(tuning, "takes", lambda layer: False):
            tuning.tune(variant)
    elif way == "onednn":
        with patch.object(tuning, "_is_packable", lambda model: False):
            tuning.tune(variant)
    elif way == "tuned":
        tuning.tune(variant)
    elif way == "compiled":
        variant.built.module.forward = torch.compile(variant.built.module.forward, dynamic=True)
    return lambda batch: variant.run(variant.prepare(batch))


def _openvino(module: Any, variant_name: str, prepare: Callable[[Sequence[Any]], Any]) -> Run:
    import openvino

    example = prepare([np.full(9, 7), np.full(5, 7)]).inputs
    shapes = [(name, [-1, -1], np.int64) for name in example]
    with torch.no_grad():
        converted = openvino.convert_model(module.float(), example_input=dict(example), input=shapes)
    settings = {
        "INFERENCE_PRECISION_HINT": {"fp32": "f32"}.get(variant_name, variant_name),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    request = openvino.Core().compile_model(converted, "CPU", settings).create_infer_request()
    return lambda batch: request.infer({name: each.numpy() for name, each in prepare(batch).inputs.items()})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cpu_ways")
    parser.add_argument("model")
    parser.add_argument("variant")
    parser.add_argument("ways")
    parser.add_argument("count", type=int)
    parser.add_argument("threads", type=int)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    answer_turns(Ways(options.model, options.variant, options.ways.split(","), options.count))


if __name__ == "__main__":
    main()
