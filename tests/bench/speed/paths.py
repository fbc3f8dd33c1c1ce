"""What this CPU computes by, and how fast: why ratios of one machine do not hold on another.

`python -m tests.bench.speed.paths` prints one JSON object. Plain torch multiplies in fp32 by MKL, which seems
to leave AVX-512 alone on CPUs of AMD; our engine by oneDNN, which does not. Speeds are of one thread's CPU
time, the best of some, so that a busy machine spoils them little; the clocks are in them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.bench.speed.child import plain
from tests.bench.speed.figures import BenchError

ROWS, INPUTS, OUTPUTS = 512, 768, 3072
"""A batch of DistilBERT-base and its largest layer."""

TIMES = 12
ISA = re.compile(r"onednn_verbose.*\bisa:(.+)")
WORDS = "{"
"""How the line begins that is ours, beside oneDNN's."""


def describe() -> dict[str, Any]:
    """In a process that has torch and oneDNN's talk. Raises BenchError."""
    command = [sys.executable, "-m", "tests.bench.speed.paths"]
    environment = plain(os.environ) | {"ONEDNN_VERBOSE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise BenchError(f"the CPU's paths could not be told: {done.stderr.strip()}")
    return parsed(done.stdout)


def parsed(said: str) -> dict[str, Any]:
    """Of the process's words: its own line, and the instruction set that oneDNN names."""
    found: dict[str, Any] = {}
    for line in said.splitlines():
        if isa := ISA.search(line):
            found["oneDNN's instructions"] = isa[1]
        elif line.startswith(WORDS):
            found |= json.loads(line)
    return found


def speeds() -> dict[str, float]:
    """GFLOPS of one thread, by way."""
    import torch

    torch.set_num_threads(1)
    flops = 2 * ROWS * INPUTS * OUTPUTS
    found: dict[str, float] = {}

    def measure(name: str, product: Callable[[], object]) -> None:
        took_s = []
        for _ in range(TIMES):
            begun = time.thread_time()
            product()
            took_s.append(time.thread_time() - begun)
        found[name] = round(flops / min(took_s) / 1e9)

    with torch.inference_mode():
        rows, weight, bias = torch.randn(ROWS, INPUTS), torch.randn(OUTPUTS, INPUTS), torch.zeros(OUTPUTS)
        measure("fp32, plain torch's", lambda: torch.nn.functional.linear(rows, weight, bias))
        if torch.backends.mkldnn.is_available():
            ordered = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
            linear = torch.ops.mkldnn._linear_pointwise
            measure("fp32, oneDNN's", lambda: linear(rows, ordered, bias, "none", [], ""))
        rows_16, weight_16, bias_16 = rows.bfloat16(), weight.bfloat16(), bias.bfloat16()
        measure("bf16, plain torch's", lambda: torch.nn.functional.linear(rows_16, weight_16, bias_16))
    return found


def main() -> None:
    import torch

    found = {
        "torch's instructions": torch.backends.cpu.get_cpu_capability(),
        "threads that torch would take": torch.get_num_threads(),
        "GFLOPS of one thread": speeds(),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
