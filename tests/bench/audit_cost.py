"""`python -m tests.bench.audit_cost`: what recording an audit costs, and recomputing it.

What the event loop pays to hand a receipt over, what the writer's thread pays, bytes in the file. First of
receipts of one sequence, in batches of 1 to 16, four batches a reading. Then of generations of 11 to 60
tokens, 1 to 16 at a time in steps of about 10 ms, with 50 readings a second.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.fixtures.audited import recorder
from wattserve_server.audit.recompute import recompute
from wattserve_server.energy.reading import Energy, Reading
from wattserve_server.energy.receipt import ACCELERATOR, Line, Outcome, Receipt, Role, Window, Work
from wattserve_server.engine.book import Run, random_ends

READINGS = 1000
READ_NS = 20_000_000
IDLE_W, BATCH_W = 40.0, 110.0


class Recording:
    """A counter's accountant that is recorded, and what that costs. Times in nanoseconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rng = np.random.default_rng(1)
        self.now_ns = 10**15
        self._keeper = recorder(path)
        self._accountant = self._keeper.accountant_of("accelerator of cpu", ACCELERATOR, "simulated")(IDLE_W)
        self._run, self._ends = Run().instance_id, random_ends()
        self._windows: list[Window] = []
        self._drawn_uj = 0.0
        self._readings = self._receipts = 0
        self._put_s = self._write_s = 0.0

    def receipt(self, roles: tuple[Role | None, ...], tokens: int) -> Receipt:
        receipt = Receipt(f"{self._run}-{next(self._ends)}", "", "fp32", "cpu", 0)
        receipt.lines += [Line(receipt, tokens, role=role) for role in roles]
        return receipt

    def ran(
        self,
        rest_ns: int,
        took_ns: int,
        lengths: tuple[int, ...],
        lines: list[Line],
        work: tuple[Work, ...] = (),
    ) -> None:
        for line in lines:
            line.enter(len(lines))
        start_ns = self.now_ns + rest_ns
        self.now_ns = start_ns + took_ns
        self._windows.append(
            Window(
                "fp32", start_ns, self.now_ns, lengths, max(lengths), tuple(lines), rested_ns=rest_ns,
                cpu_ns=took_ns - int(self.rng.integers(0, 100_000)), work=work,
            )
        )  # fmt: skip
        self._drawn_uj += (IDLE_W * (rest_ns + took_ns) + BATCH_W * took_ns) / 1e3

    def read(self) -> None:
        self._accountant.observe(Reading(self.now_ns, Energy(round(self._drawn_uj))))
        windows, self._windows = self._windows, []
        for charge in self._accountant.advance(windows, self.now_ns):
            receipt = charge.line.receipt
            receipt.charge(charge, ACCELERATOR)
            if receipt.is_final:
                begun = time.perf_counter()
                self._keeper.put(receipt)
                self._put_s += time.perf_counter() - begun
                self._receipts += 1
        self._readings += 1
        if self._readings % 30 == 0:  # about a second's
            begun = time.process_time()
            self._keeper.flush()
            self._write_s += time.process_time() - begun

    def tell(self, what: str) -> None:
        self._keeper.close()
        begun = time.process_time()
        made = recompute(self.path)
        again_s, count = time.process_time() - begun, self._receipts
        print(
            f"{what}: {count:,} receipts, {self.path.stat().st_size / count:.1f} bytes each; "
            f"put {self._put_s / count * 1e6:.2f} us, writer {self._write_s / count * 1e6:.1f} us of CPU; "
            f"recomputed in {again_s:.1f} s of CPU, proved: {made.is_proved}"
        )


def rows(made: Recording) -> None:
    rng = made.rng
    for _ in range(READINGS):
        for _ in range(4):
            lengths = tuple(int(length) for length in rng.integers(3, 60, rng.integers(1, 17)))
            receipts = [made.receipt((None,), length) for length in lengths]
            lines = [receipt.lines[0] for receipt in receipts]
            made.ran(
                int(rng.integers(1_000, 2_000_000)), int(rng.integers(2_000_000, 8_000_000)), lengths, lines
            )
            for receipt in receipts:
                receipt.end(Outcome.COMPLETED)
        made.read()


def generations(at_once: int) -> Callable[[Recording], None]:
    def run(made: Recording) -> None:
        """Each as its receipt, the tokens of its prompt, how many it has chosen and will choose."""
        rng = made.rng
        members: list[list[Any]] = []
        read_ns = made.now_ns
        for _ in range(READINGS * 2):
            while len(members) < at_once:
                prompt, longest = int(rng.integers(8, 60)), int(rng.integers(11, 61))
                members.append([made.receipt((Role.PROMPT, Role.OUTPUT), prompt), prompt, 0, longest])
            lines, work = [], []
            for receipt, prompt, chosen, _ in members:
                lines.append(receipt.lines[min(chosen, 1)])
                begins = Work(prompt, prompt * (prompt + 1) // 2, 1, begins=True)
                work.append(Work(1, logits=1, read=prompt + chosen) if chosen else begins)
            took_ns = int(rng.normal(10e6, 1e6))
            lengths = tuple(each.computed for each in work)
            made.ran(int(rng.normal(3e5, 3e4)), took_ns, lengths, lines, tuple(work))
            for member in members:
                member[2] += 1
                if member[2] == member[3]:
                    member[0].end(Outcome.COMPLETED)
            members = [member for member in members if member[2] < member[3]]
            if made.now_ns - read_ns > READ_NS:
                read_ns = made.now_ns
                made.read()

    return run


SCENES = {"rows": rows} | {f"generations, {count} at a time": generations(count) for count in (1, 4, 16)}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, (what, run) in enumerate(SCENES.items()):
            made = Recording(Path(folder) / f"{number}.audit")
            run(made)
            made.tell(what)


if __name__ == "__main__":
    main()
