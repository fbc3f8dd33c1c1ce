"""`python -m tests.bench.audit_cost`: what recording an audit costs, and recomputing it.

Receipts of one sequence, in batches of 1 to 16, four batches a reading: what the event loop pays to hand one
over, what the writer's thread pays, bytes in the file.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from tests.fixtures.audited import recorder
from wattserve_server.audit.recompute import recompute
from wattserve_server.energy.reading import Energy, Reading
from wattserve_server.energy.receipt import ACCELERATOR, Line, Outcome, Receipt, Window
from wattserve_server.engine.book import Run, random_ends

READINGS = 1000
IDLE_W, BATCH_W = 40.0, 110.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.audit"
        keeper = recorder(path)
        accountant = keeper.accountant_of("accelerator of cpu", ACCELERATOR, "simulated")(IDLE_W)
        rng, ends, run = np.random.default_rng(1), random_ends(), Run().instance_id
        now_ns, drawn_uj, receipts, put_s, write_s = 10**15, 0.0, 0, 0.0, 0.0
        for number in range(READINGS):
            windows, open_receipts = [], []
            for _ in range(4):
                rest_ns, took_ns = (
                    int(rng.integers(1_000, 2_000_000)),
                    int(rng.integers(2_000_000, 8_000_000)),
                )
                lengths = tuple(int(length) for length in rng.integers(3, 60, rng.integers(1, 17)))
                lines = []
                for length in lengths:
                    receipt = Receipt(f"{run}-{next(ends)}", "", "fp32", "cpu", 0)
                    receipt.lines.append(Line(receipt, length))
                    lines += receipt.lines
                    lines[-1].enter(len(lengths))
                    open_receipts.append(receipt)
                start_ns = now_ns + rest_ns
                windows.append(
                    Window(
                        "fp32", start_ns, start_ns + took_ns, lengths, max(lengths), tuple(lines),
                        rested_ns=rest_ns, cpu_ns=took_ns - int(rng.integers(0, 100_000)),
                    )
                )  # fmt: skip
                now_ns = start_ns + took_ns
                drawn_uj += (IDLE_W * (rest_ns + took_ns) + BATCH_W * took_ns) / 1e3
            accountant.observe(Reading(now_ns, Energy(round(drawn_uj))))
            for charge in accountant.advance(windows, now_ns):
                charge.line.receipt.charge(charge, ACCELERATOR)
                final = charge.line.receipt
                final.end(Outcome.COMPLETED)
                receipts += 1
                begun = time.perf_counter()
                keeper.put(final)
                put_s += time.perf_counter() - begun
            if number % 30 == 29:  # about a second's
                begun = time.process_time()
                keeper.flush()
                write_s += time.process_time() - begun
        keeper.close()
        begun = time.process_time()
        made = recompute(path)
        again_s = time.process_time() - begun
        print(f"{receipts:,} receipts, {path.stat().st_size / receipts:.1f} bytes each")
        print(
            f"put {put_s / receipts * 1e6:.2f} us, writer {write_s / receipts * 1e6:.1f} us of CPU for each"
        )
        print(f"recomputed in {again_s:.1f} s of CPU, proved: {made.is_proved}")


if __name__ == "__main__":
    main()
