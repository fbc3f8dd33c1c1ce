"""Our int8 layers beside those of torchao and bitsandbytes, one linear layer at a time, on the CPU:

    python -m tests.bench.int8_kernels [--rounds N] [--shapes 1024x768x768,8x768x3072]

Everything runs in turns, so that a noisy host disturbs all alike. Peers that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wattserve_server.engine.variants.int8 import Int8Linear, StaticInt8Linear
from wattserve_server.engine.variants.llm_int8 import LLMInt8Linear
from wattserve_server.engine.variants.weight_only import WeightOnlyInt8Linear

REPEATS = 5  # of one contender in its turn, so that its own weights are warm, and not another's


@dataclass(frozen=True)
class Contender:
    """run: [tokens, in] -> [tokens, out]; x: what it is given."""

    name: str
    run: Callable[[torch.Tensor], torch.Tensor]
    x: torch.Tensor


def contenders(linear: nn.Linear, tokens: int) -> list[Contender]:
    plain = torch.randn(tokens, linear.in_features)
    half = plain.bfloat16()
    outliers = plain.clone()
    outliers[::2, 5], outliers[::7, 100] = 20.0, -9.0
    static = StaticInt8Linear.of(linear)
    static.input_scale.fill_(float(plain.abs().flatten().quantile(0.999)) / 127)
    found = [
        Contender("fp32", linear, plain),
        Contender("bf16", copy.deepcopy(linear).bfloat16(), half),
        Contender("int8", Int8Linear.of(linear), plain),
        Contender("int8-static", static, plain),
        Contender("int8-weight-only", WeightOnlyInt8Linear.of(linear), half),
        Contender("llm-int8, no outliers", LLMInt8Linear.of(linear), plain),
        Contender("llm-int8, outliers", LLMInt8Linear.of(linear), outliers),
    ]
    if (torchao := peer("torchao.quantization")) is not None:
        for name, config, dtype, x in (
            ("torchao int8", torchao.Int8DynamicActivationInt8WeightConfig(), torch.float32, plain),
            ("torchao weight-only", torchao.Int8WeightOnlyConfig(), torch.bfloat16, half),
        ):
            module = nn.Sequential(copy.deepcopy(linear)).to(dtype)
            torchao.quantize_(module, config)
            found.append(Contender(name, module, x))
    if (bitsandbytes := peer("bitsandbytes")) is not None:
        layer = bitsandbytes.nn.Linear8bitLt(
            linear.in_features, linear.out_features, has_fp16_weights=False, threshold=6.0
        )
        layer.load_state_dict(linear.state_dict())
        layer = layer.to("cpu").eval()  # in training mode it widens the weights instead
        found.append(Contender("bitsandbytes, no outliers", layer, plain))
        found.append(Contender("bitsandbytes, outliers", layer, outliers))
    return found


def peer(name: str) -> Any:
    """A library, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def times(runs: list[Contender], rounds: int) -> dict[str, float]:
    """Median milliseconds of one call."""
    taken: dict[str, list[float]] = {each.name: [] for each in runs}
    for _ in range(rounds + 1):  # the first round warms up
        for each in runs:
            begun = time.perf_counter()
            for _ in range(REPEATS):
                each.run(each.x)
            taken[each.name].append((time.perf_counter() - begun) / REPEATS * 1e3)
    return {name: statistics.median(all_of_it[1:]) for name, all_of_it in taken.items()}


def error(each: Contender, linear: nn.Linear) -> float:
    """Against float64, relative, in the 2-norm."""
    exact = copy.deepcopy(linear).double()(each.x.double())
    return float((each.run(each.x).double() - exact).norm() / exact.norm())


def dependence(each: Contender) -> float:
    """How far 50 times louder batch mates move a token's answer, relative to the answer's largest part."""
    alone = each.run(each.x[:1]).double()
    among = each.x[:8].clone()
    among[1:] *= 50
    return float((each.run(among)[:1].double() - alone).abs().max() / alone.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", default="1024x768x768,128x768x3072,8x768x768", help="tokens x in x out")
    options = parser.parse_args()
    for name in ("torchao", "bitsandbytes"):
        found = peer(name)
        print(f"{name}: {'not installed, skipped' if found is None else found.__version__}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for shape in options.shapes.split(","):
        tokens, inputs, outputs = map(int, shape.split("x"))
        torch.manual_seed(0)
        linear = nn.Linear(inputs, outputs).eval()
        runs = contenders(linear, tokens)
        taken = times(runs, options.rounds)
        print(f"\n{shape:26}{'ms':>8} {'of fp32':>8} {'error':>9} {'mates':>9}")
        for each in runs:
            print(
                f"{each.name:26}{taken[each.name]:8.3f} {taken[each.name] / taken['fp32']:8.2f}"
                f" {error(each, linear):9.5f} {dependence(each):9.1e}"
            )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")  # the peers deprecate each other's names
    with torch.inference_mode():
        main()
