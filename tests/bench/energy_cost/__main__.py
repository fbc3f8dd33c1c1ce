"""`python -m tests.bench.energy_cost`: what the accounting costs."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command `wattserve` does, before torch and numpy
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import gc
import json
from pathlib import Path

from tests.bench.energy_cost import cpu, memory, throughput

PARTS = {"a": cpu, "b": throughput, "c": memory}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.energy_cost", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="a: CPU per request, b: throughput, c: memory")
    parser.add_argument("--quick", action="store_true", help="a look in half a minute; noisier")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args()
    figures = {}
    for name, part in PARTS.items():
        if args.only in (None, name):
            gc.collect()  # what the part before has left
            figures[name] = part.measure(args.quick)
            print(f"({name}) {part.render(figures[name])}\n", flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
