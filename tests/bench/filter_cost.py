"""`python -m tests.bench.filter_cost`: what one edge of the counter costs the filter.

CPU time of all that the accountant asks of it, by variants and batches an edge, and as a part of a core.
"""

from __future__ import annotations

import time

import numpy as np

from wattserve_server.energy.costlaw import CLASSES, of_rows
from wattserve_server.energy.filter import EnergyFilter

EDGES, FIRST = 200, 20
BATCH_J, TOKENS, LENGTH = 0.2, 80, 20


def main() -> None:
    print("| variants | batches an edge | ms an edge | state | % of a core at 100 ms | at 20 ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for variants in (1, 4, 12):
        for batches in (4, 12, 60):
            edge_ms, state = _cost(variants, batches)
            print(f"| {variants} | {batches} | {edge_ms:.2f} | {state} | {edge_ms:.2f} | {5 * edge_ms:.1f} |")


def _cost(variants: int, batches: int) -> tuple[float, int]:
    """Milliseconds of CPU an edge, and the size of the filter's state."""
    rng = np.random.default_rng(1)
    energy = EnergyFilter()
    energy.hear_idle(50.0)
    estimate = energy.estimate
    names = [f"v{index}" for index in range(variants)]
    row = np.array(of_rows(TOKENS, LENGTH))
    alone = np.divide(BATCH_J, row, out=np.zeros(len(row)), where=row > 0)
    for name in names:
        estimate.add_variant(name, np.array([0.5, 0.5, 0.0, 0.0, 0.0]) * alone, alone)
    rest_s = np.zeros(CLASSES)
    rest_s[0] = 0.1
    features, zeros = np.tile(row, (batches, 1)), np.zeros(batches)
    begun_s = 0.0
    for edge in range(FIRST + EDGES):
        if edge == FIRST:
            begun_s = time.process_time()
        energy.pass_time(rest_s)
        chosen = [names[index] for index in rng.integers(variants, size=batches)]
        estimate.admit(chosen, features, zeros.astype(np.int64), np.ones(batches), zeros)
        count = len(estimate.counts)
        energy.update(5.0 + BATCH_J * count, np.ones(count), rest_s, 0.05, BATCH_J * count)
        if count >= 2 * batches:
            ripe = np.arange(count) < batches
            estimate.settle(ripe, float(estimate.batches_j[ripe].sum()))
        estimate.book_draw(rest_s, 5.0)
        estimate.laws()
    return 1e3 * (time.process_time() - begun_s) / EDGES, len(estimate.x)


if __name__ == "__main__":
    main()
