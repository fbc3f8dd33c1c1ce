"""`python -m tests.bench.filter_cost`: what an edge of the counter costs the filter, and a look at the past.

CPU time of all that the accountant asks of the filter, by variants and batches an edge, and as a part of a
core; and of `Calibrator.listen_again`, which holds up the accountant once in 20 s. The least of several
tries: others may use the machine.
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np

from wattserve_server.energy.calibration import CounterInterval
from wattserve_server.energy.calibrator import LISTEN_AGAIN, Calibrator
from wattserve_server.energy.costlaw import CLASSES, Array, of_rows
from wattserve_server.energy.device import rest_times
from wattserve_server.energy.filter import EnergyFilter
from wattserve_server.energy.openbatches import TimedWindow
from wattserve_server.energy.receipt import Window

EDGES, FIRST = 200, 20
TRIES = 5
PERIOD_S, SHORT_S = 0.1, 0.02  # of counters
IDLE_W, BATCH_J, TOKENS, LENGTH = 50.0, 0.2, 80, 20


def main() -> None:
    print(
        "| variants | batches an edge | state | ms an edge at 100 ms | % of a core | at 20 ms | % of a core |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for variants in (1, 4, 12):
        for batches in (4, 12, 60):
            costs = []
            for period_s in (PERIOD_S, SHORT_S):
                edge_ms, state = min(_cost(variants, batches, period_s) for _ in range(TRIES))
                costs += [f"{edge_ms:.2f}", f"{edge_ms / period_s / 10:.2f}"]
            print(f"| {variants} | {batches} | {state} | {' | '.join(costs)} |")
    print("\n| variants | batches an edge | ms a look at the response |")
    print("| --- | --- | --- |")
    for batches in (2, 8, 60):
        print(f"| 12 | {batches} | {_look_ms(12, batches):.1f} |")


def _cost(variants: int, batches: int, period_s: float) -> tuple[float, int]:
    """Milliseconds of CPU an edge, and the size of the filter's state."""
    rng = np.random.default_rng(1)
    row = np.array(of_rows(TOKENS, LENGTH))
    energy, names = _with_laws(variants, row)
    estimate = energy.estimate
    rest_s = np.zeros(CLASSES)
    rest_s[0] = period_s
    idle_j = IDLE_W * period_s
    features, rests = np.tile(row, (batches, 1)), np.zeros(batches, dtype=np.int64)
    ones, excess = np.ones(batches), rng.normal(0.0, 0.05, batches)
    chosen = rng.choice(names, size=(FIRST + EDGES, batches)).tolist()
    begun_s = 0.0
    for edge, laws in enumerate(chosen):
        if edge == FIRST:
            begun_s = time.process_time()
        energy.pass_time(rest_s)
        estimate.admit(laws, features, rests, ones, excess)
        count = len(estimate.counts)
        energy.update(idle_j + BATCH_J * count, np.ones(count), rest_s, 0.05, BATCH_J * count)
        if count >= 2 * batches:
            ripe = np.arange(count) < batches
            estimate.settle(ripe, float(estimate.batches_j[ripe].sum()))
        estimate.book_draw(rest_s, idle_j)
        estimate.laws()
    return 1e3 * (time.process_time() - begun_s) / EDGES, len(estimate.x)


def _with_laws(variants: int, row: Array) -> tuple[EnergyFilter, list[str]]:
    """A filter that has an idea of so many laws, all by a batch with these features; and their names."""
    energy = EnergyFilter()
    energy.hear_idle(IDLE_W)
    names = [f"v{index}" for index in range(variants)]
    alone = np.divide(BATCH_J, row, out=np.zeros(len(row)), where=row > 0)
    for name in names:
        energy.estimate.add_variant(name, np.array([0.5, 0.5, 0.0, 0.0, 0.0]) * alone, alone)
    return energy, names


def _look_ms(variants: int, batches: int) -> float:
    """Milliseconds of CPU of a look at a history that is full."""
    rng = np.random.default_rng(1)
    energy, names = _with_laws(variants, np.array(of_rows(TOKENS, LENGTH)))
    calibrator = Calibrator(is_model=False)
    took_ms = []
    for interval in range((2 + TRIES) * LISTEN_AGAIN):
        start_s, end_s = PERIOD_S * interval, PERIOD_S * (interval + 1)
        bounds_s = np.linspace(start_s, end_s, batches + 1).tolist()
        spans = [(since_s, until_s) for since_s, until_s in pairwise(bounds_s)]
        for since_s, until_s in spans:
            lengths = (LENGTH,) * int(rng.integers(1, 9))
            window = Window(names[rng.integers(variants)], 0, 0, lengths, LENGTH)
            calibrator.hear_batch(TimedWindow(window, since_s, until_s))
        joules = IDLE_W * PERIOD_S + BATCH_J * batches * rng.normal(1.0, 0.05)
        edge = CounterInterval(start_s, end_s, round(1e6 * joules), 1e-3)
        calibrator.hear(edge, rest_times(start_s, end_s, spans, start_s), is_busy=True)
        begun_s = time.thread_time()
        calibrator.listen_again(energy.estimate)
        took_ms.append(1e3 * (time.thread_time() - begun_s))
    looks_ms = np.reshape(took_ms, (-1, LISTEN_AGAIN)).max(axis=1)  # one in so many intervals
    return float(looks_ms[2:].min())


if __name__ == "__main__":
    main()
