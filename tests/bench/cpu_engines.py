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
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.bench.speed.child import running_child
from tests.bench.speed.figures import BenchError

WAYS = ("padded", "packed", "onednn", "tuned", "compiled", "openvino")


@contextmanager
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


def main() -> int:
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
    ways = options.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"--ways: {', '.join(sorted(unknown))}: known are {', '.join(WAYS)}")
    try:
        figures = measure(options, ways)
    except BenchError as error:
        print(f"bench-engines: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    first = next(iter(figures.values()))
    print(f"{options.model}, {options.variant}, foreign load {options.foreign:g}; {options.rounds} rounds\n")
    print("| threads | spin | way | sequences/s | over the first | 1 x 32 tokens |")
    print("|---|---|---|---|---|---|")
    for (threads, spin, way), found in figures.items():
        rate, alone = (statistics.median(column) for column in zip(*found, strict=True))
        ratio = statistics.median(one[0] / other[0] for one, other in zip(found, first, strict=True))
        print(f"| {threads} | {spin} | {way} | {rate:,.0f} | {ratio:.2f} | {alone * 1e3:.2f} ms |")
    return 0


def measure(options: argparse.Namespace, ways: list[str]) -> dict[tuple[str, str, str], list[list[float]]]:
    """By threads, spin and way: of each round, what `cpu_ways` tells. Raises BenchError."""
    figures: dict[tuple[str, str, str], list[list[float]]] = {}
    with ExitStack() as undo:
        children = {
            (threads, spin): undo.enter_context(
                running_child(
                    f"the process of {threads} threads that spin {spin} turns",
                    "tests.bench.cpu_ways",
                    options.model, options.variant, options.ways, str(options.sequences), threads,
                    variables={"GOMP_SPINCOUNT": spin, "OMP_WAIT_POLICY": "PASSIVE"},
                )
            )
            for threads in options.threads.split(",")
            for spin in options.spin.split(",")
        }  # fmt: skip
        undo.enter_context(foreign(options.foreign))
        for _ in range(options.rounds):
            for (threads, spin), child in children.items():
                for way in ways:
                    figures.setdefault((threads, spin, way), []).append(child.ask("turn", way=way))
    return figures


if __name__ == "__main__":
    sys.exit(main())
