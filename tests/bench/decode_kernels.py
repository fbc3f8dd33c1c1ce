"""Linear layers of a GPT-2's size in every precision of a CPU, at few rows and at many:

    python -m tests.bench.decode_kernels [--rounds N] [--rows 1,4,16,128,512] [--threads 1]

All 12 blocks are run, one layer after the other, so that weights come from memory as they do in a model;
precisions run in turns. CPU time of the process, of which other processes on the machine take nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from wattserve_server.engine.variants.int8 import Int8Linear
from wattserve_server.engine.variants.phase import decoding
from wattserve_server.engine.variants.tuning import OneDnnLinear
from wattserve_server.engine.variants.weight_only import WeightOnlyInt4Linear, WeightOnlyInt8Linear

SHAPES = ((768, 2304), (768, 768), (768, 3072), (3072, 768))  # of one block, in x out
BLOCKS = 12
BASELINE = "fp32"


@dataclass(frozen=True)
class Contender:
    name: str
    dtype: torch.dtype  # of the activations
    layers: Sequence[nn.Module]
    decodes: bool = False  # whether its rows are those of a decoding phase


def contenders(linears: Sequence[nn.Linear]) -> list[Contender]:
    def made(of: Callable[[nn.Linear], nn.Module]) -> list[nn.Module]:
        return [of(linear) for linear in linears]

    def halved(linear: nn.Linear) -> nn.Module:
        half = nn.Linear(linear.in_features, linear.out_features, dtype=torch.bfloat16)
        half.load_state_dict(linear.state_dict())
        return OneDnnLinear(half)

    weight_only = made(WeightOnlyInt8Linear.of)
    return [
        Contender("fp32, plain torch", torch.float32, linears),
        Contender(BASELINE, torch.float32, made(OneDnnLinear)),
        Contender("bf16", torch.bfloat16, made(halved)),
        Contender("int8", torch.float32, made(Int8Linear.of)),
        Contender("int8-weight-only, prompts", torch.bfloat16, weight_only),
        Contender("int8-weight-only, decoding", torch.bfloat16, weight_only, decodes=True),
        Contender("int4-weight-only", torch.bfloat16, made(WeightOnlyInt4Linear.of)),
    ]


def run(each: Contender, inputs: dict[int, torch.Tensor], rows: int) -> float:
    """CPU milliseconds of all blocks."""
    phase: AbstractContextManager[None] = decoding(rows) if each.decodes else nullcontext()
    with phase:
        begun = time.process_time()
        for index, layer in enumerate(each.layers):
            layer(inputs[SHAPES[index % len(SHAPES)][0]])
        return (time.process_time() - begun) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", default="1,4,16,128,512")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    runs = contenders([nn.Linear(*shape) for _ in range(BLOCKS) for shape in SHAPES])
    counts = [int(rows) for rows in options.rows.split(",")]
    medians: dict[str, list[float]] = {each.name: [] for each in runs}
    for rows in counts:
        wide = {inputs: torch.randn(rows, inputs) for inputs, _ in SHAPES}
        given = {
            dtype: {inputs: x.to(dtype) for inputs, x in wide.items()}
            for dtype in (torch.float32, torch.bfloat16)
        }
        taken: dict[str, list[float]] = {each.name: [] for each in runs}
        for _ in range(options.rounds + 1):  # the first round warms up
            for each in runs:
                taken[each.name].append(run(each, given[each.dtype], rows))
        for name, times in taken.items():
            medians[name].append(statistics.median(times[1:]))
    print(
        f"torch {torch.__version__}, {options.threads} threads; CPU ms of {BLOCKS} blocks (of {BASELINE}'s)"
    )
    print("| precision | " + " | ".join(f"{rows} rows" for rows in counts) + " |")
    print("|---" * (len(counts) + 1) + "|")
    for name, times in medians.items():
        cells = [f"{ms:.1f} ({ms / of:.2f})" for ms, of in zip(times, medians[BASELINE], strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
