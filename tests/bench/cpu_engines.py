"""Ways to run a model on a CPU, side by side in one run: `python -m tests.bench.cpu_engines`.

padded: as it is built, the whole set sorted by length. packed: several sequences in a row. onednn: linear
layers by oneDNN, padded and sorted. tuned: both, in arrival order, which is what the server does. compiled:
padded and sorted, by torch.compile. openvino: padded and sorted, where openvino is installed. All in batches
of 32.

Every cell of --threads and --spin (GOMP_SPINCOUNT) is a process of its own; they wait while another is
measured. --foreign makes another process take that part of a core meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.bench.speed.sequences import sequences_like_sst2

BATCH = 32
WAYS = ("padded", "packed", "onednn", "tuned", "compiled", "openvino")
Run = Callable[[Sequence[Any]], object]


def child(model_name: str, variant_name: str, ways: list[str], count: int) -> None:
    """Measures a way for each line on standard input: sequences per second, and seconds of 1 x 32 tokens."""
    import torch

    from wattserve_server.engine.device import resolve_device
    from wattserve_server.engine.model import load_model
    from wattserve_server.engine.tasks import task_named
    from wattserve_server.engine.variants import tuning
    from wattserve_server.engine.variants.catalogue import choose
    from wattserve_server.engine.variants.variant import build_variant

    torch.set_num_threads(int(os.environ["THREADS"]))
    model = load_model(model_name, task_named("sequence-classification"))
    items = [np.array(ids) for ids in sequences_like_sst2(count, 0)]
    runs: dict[str, Run] = {}
    for way in ways:
        variant = build_variant(model, choose(variant_name, resolve_device("cpu"))[0])
        if way in ("packed", "onednn"):
            with contextlib.ExitStack() as undo:
                hidden = "takes" if way == "packed" else "find_encoder"
                original = getattr(tuning, hidden)
                undo.callback(setattr, tuning, hidden, original)
                setattr(tuning, hidden, lambda _: None)
                tuning.tune(variant)
        elif way == "tuned":
            tuning.tune(variant)
        elif way == "compiled":
            variant.built.module.forward = torch.compile(variant.built.module.forward, dynamic=True)
        if way == "openvino":
            runs[way] = _openvino(variant.built.module, variant_name, variant.prepare)
        else:
            runs[way] = lambda batch, variant=variant: variant.run(variant.prepare(batch))  # type: ignore[misc]
        for size in (1, BATCH):
            runs[way](items[:size])
    print(json.dumps(list(runs)), flush=True)
    one = [np.full(32, 7)]
    for line in sys.stdin:
        way = line.strip()
        ordered = items if way in ("packed", "tuned") else sorted(items, key=len)
        begun = time.perf_counter()
        for start in range(0, len(ordered), BATCH):
            runs[way](ordered[start : start + BATCH])
        rate = len(ordered) / (time.perf_counter() - begun)
        taken = []
        for _ in range(20):
            begun = time.perf_counter()
            runs[way](one)
            taken.append(time.perf_counter() - begun)
        print(json.dumps([rate, statistics.median(taken)]), flush=True)


def _openvino(module: Any, variant_name: str, prepare: Callable[[Sequence[Any]], Any]) -> Run:
    import openvino
    import torch

    example = prepare([np.full(9, 7), np.full(5, 7)]).inputs
    shapes = [(name, [-1, -1], np.int64) for name in example]
    with torch.no_grad():
        converted = openvino.convert_model(module.float(), example_input=dict(example), input=shapes)
    settings = {
        "INFERENCE_PRECISION_HINT": {"fp32": "f32"}.get(variant_name, variant_name),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(os.environ["THREADS"]),
    }
    request = openvino.Core().compile_model(converted, "CPU", settings).create_infer_request()
    return lambda batch: request.infer({name: each.numpy() for name, each in prepare(batch).inputs.items()})


@contextlib.contextmanager
def foreign(part: float) -> Iterator[None]:
    """Another process that takes a part of a core, in turns of 2 ms."""
    code = (
        "import time\nwhile True:\n t = time.perf_counter()\n"
        f" while time.perf_counter() - t < {0.002 * part}: pass\n time.sleep({0.002 * (1 - part)})"
    )
    other = subprocess.Popen([sys.executable, "-c", code]) if part else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="random:distilbert-base")
    parser.add_argument("--variant", default="fp32", help="fp32 or bf16; others have no openvino")
    parser.add_argument("--ways", default="padded,packed,onednn,tuned", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--spin", default="1000")
    parser.add_argument("--foreign", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=320)
    options = parser.parse_args()
    if "THREADS" in os.environ:
        child(options.model, options.variant, options.ways.split(","), options.sequences)
        return
    cells = [(threads, spin) for threads in options.threads.split(",") for spin in options.spin.split(",")]
    children = {}
    for threads, spin in cells:
        environment = {"THREADS": threads, "GOMP_SPINCOUNT": spin, "OMP_WAIT_POLICY": "PASSIVE"}
        children[threads, spin] = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.cpu_engines", *sys.argv[1:]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment,
        )  # fmt: skip
    figures: dict[tuple[str, str, str], list[list[float]]] = {}
    try:
        for each in children.values():
            if not _line(each):
                raise SystemExit("a child process has failed; its error is above")
        with foreign(options.foreign):
            for _ in range(options.rounds):
                for (threads, spin), each in children.items():
                    for way in options.ways.split(","):
                        assert each.stdin is not None
                        print(way, file=each.stdin, flush=True)
                        figures.setdefault((threads, spin, way), []).append(_line(each))
    finally:
        for each in children.values():
            each.kill()
    first = next(iter(figures.values()))
    print(
        f"{options.model}, {options.variant}, foreign load {options.foreign:g}; medians of {options.rounds}\n"
    )
    print(
        "| threads | spin | way | sequences/s | over the first | 1 x 32 tokens |\n|---|---|---|---|---|---|"
    )
    for (threads, spin, way), found in figures.items():
        rate, alone = (statistics.median(column) for column in zip(*found, strict=True))
        ratio = statistics.median(one[0] / other[0] for one, other in zip(found, first, strict=True))
        print(f"| {threads} | {spin} | {way} | {rate:,.0f} | {ratio:.2f} | {alone * 1e3:.2f} ms |")


def _line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    return json.loads(line) if line else None


if __name__ == "__main__":
    main()
