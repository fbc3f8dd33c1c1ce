"""The limit, in a process of its own: torch and transformers as a script without a server would use them.

Padded batches with their masks, made beforehand; every core as a thread, OpenMP as it comes; the module's
default attention. Nothing of our engine but the seeded weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from tests.bench.speed.child import answer_turns, whole_set
from tests.bench.speed.machine import usable_cores
from wattserve_server.engine.builtin.random_weights import build_random_model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BATCH = 32
WARMUP_S = 3.0

Inputs = dict[str, torch.Tensor]


def padded(sequences: Sequence[Sequence[int]]) -> Inputs:
    longest = max(map(len, sequences))
    ids = torch.zeros((len(sequences), longest), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    return {"input_ids": ids, "attention_mask": mask}


class Plain:
    def __init__(self, model: str, variants: Sequence[str]) -> None:
        name = model.removeprefix("random:")
        self._modules: dict[str, Any] = {
            variant: build_random_model(name).to(DTYPES[variant]) for variant in variants
        }
        self._batches: list[Inputs] = []
        self._count = 0

    def ready(self) -> None:
        """Nothing to do: it has loaded what it needs."""

    def use(self, sequences: list[list[int]]) -> None:
        self._batches = [padded(batch) for batch in whole_set(sorted(sequences, key=len), BATCH)]
        self._count = len(sequences)

    def sorted(self, variant: str, seconds: float) -> float:
        """Sequences per second."""
        passes, begun = 0, time.perf_counter()
        while not passes or time.perf_counter() - begun < seconds:
            for batch in self._batches:
                self._run(variant, batch)
            passes += 1
        return passes * self._count / (time.perf_counter() - begun)

    def warm_up(self, variant: str) -> None:
        until = time.perf_counter() + WARMUP_S
        for batch in reversed(self._batches):
            self._run(variant, batch)
            if time.perf_counter() > until:
                break

    def alone(self, variant: str, sequences: list[list[int]]) -> list[float]:
        """Seconds for each; the first is run once more, before."""
        inputs = [padded([sequence]) for sequence in sequences]
        self._run(variant, inputs[0])
        taken = []
        for one in inputs:
            begun = time.perf_counter()
            self._run(variant, one)
            taken.append(time.perf_counter() - begun)
        return taken

    def _run(self, variant: str, batch: Inputs) -> None:
        with torch.inference_mode():
            self._modules[variant](**batch)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speed.plain")
    parser.add_argument("model")
    parser.add_argument("variants")
    options = parser.parse_args()
    torch.set_num_threads(usable_cores())
    answer_turns(Plain(options.model, options.variants.split(",")))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
