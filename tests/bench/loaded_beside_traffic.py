"""`python -m tests.bench.loaded_beside_traffic`: receipts of a variant that is loaded while another serves.

A server with the demo model and `--lazy-variants`, in a process of its own; four callers of fp32, and after a
while two of bf16 (int8, where the CPU has no bf16), send one sequence of 32 tokens after the other by the
client library. Of each run is printed what a stranger could work out from the receipts alone: how the
newcomer's first ones compare with its later ones, its neighbour's with those from before, and joules of both
with the time that was computed. Then (in brackets) the same over what was really used, by the windows of an
audit that is recorded meanwhile: CPU time where joules are estimated from it, else the time computed. For a
neighbour's requests do get cheaper: batches grow while another's keep them waiting. And how long its
neighbour's callers waited before, while it was built and verified, while it was calibrated, and after.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.fixtures.audited import events_of
from tests.fixtures.server import running_server
from wattserve_client import Client, Receipt, VariantState, WattserveError
from wattserve_server.audit.events import Heard
from wattserve_server.engine.device import cpu_has

RESIDENT = "fp32"
NEWCOMER = "bf16" if cpu_has("avx512_bf16") or cpu_has("amx_bf16") else "int8"
CALLERS = {RESIDENT: 4, NEWCOMER: 2}
TOKENS = 32
METERS = ("estimate", "simulated")
FIRST = 30  # receipts
POLL_S = 0.05
PATIENCE_S = 120.0  # for receipts, on a machine that others keep busy
SETTLING_S = 3.0  # after the last answer, for the receipts still to come
# What a run is held to, over what was used.
BOUNDS = {"newcomer": (0.7, 1.4), "neighbour": (0.8, 1.25), "split": (1 / 1.4, 1.4)}


@dataclass(frozen=True)
class Bill:
    """One request of one sequence. compute_s: its share of its batch's time."""

    receipt_id: str
    at_s: float
    joules: float
    compute_s: float


def bill_of(receipt: Receipt) -> Bill | None:
    """None where it has no figure."""
    (line,) = receipt.lines
    if receipt.energy_uj is None or not line.batch_size:
        return None
    share_s = line.compute_ns / 1e9 / line.batch_size
    return Bill(receipt.receipt_id, receipt.created_unix_ns / 1e9, receipt.energy_uj / 1e6, share_s)


class Run:
    """One server's life. Times are those of the clock that receipts carry."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ends = threading.Event()
        self.bills: dict[str, list[Bill]] = {RESIDENT: [], NEWCOMER: []}
        self.withheld = dict.fromkeys(CALLERS, 0)
        self.begun_s = self.loaded_s = 0.0
        self.calibrating_s = self.ready_s = math.inf  # since when the newcomer was
        self.waits: list[tuple[float, float]] = []  # of the resident's callers: since when, and how long

    def drive(self, alone_s: float, together_s: float) -> None:
        with Client(self._address) as client:
            watching = threading.Thread(target=self._watch, args=(client.watch_receipts(),), daemon=True)
            watching.start()
            try:
                callers = self._call(RESIDENT)
                self._wait_for(1, RESIDENT)  # it is loaded by its first callers
                self.begun_s = time.time()
                time.sleep(alone_s)
                self._wait_for(FIRST, RESIDENT)
                self.loaded_s = time.time()
                callers += self._call(NEWCOMER)
                self._follow(client)
                time.sleep(together_s)
                self._wait_for(4 * FIRST, NEWCOMER)
            finally:
                self._ends.set()
            for caller in callers:
                caller.join()
            time.sleep(SETTLING_S)
        watching.join()

    def _wait_for(self, count: int, variant: str) -> None:
        """Until so many receipts of it have a figure."""
        until_s = time.time() + PATIENCE_S
        while len(self.bills[variant]) < count:
            if time.time() > until_s:
                found = len(self.bills[variant])
                raise SystemExit(f"{variant} has {found} receipts with a figure, not {count}: measure longer")
            time.sleep(POLL_S)

    def _call(self, variant: str) -> list[threading.Thread]:
        def send(seed: int) -> None:
            ids = np.random.default_rng(seed).integers(5, 500, size=TOKENS).tolist()
            with Client(self._address) as client:
                while not self._ends.is_set():
                    sent_s = time.time()
                    client.predict(ids, variant=variant, timeout_s=60)
                    if variant == RESIDENT:
                        self.waits.append((sent_s, time.time() - sent_s))

        threads = [threading.Thread(target=send, args=(index,)) for index in range(CALLERS[variant])]
        for thread in threads:
            thread.start()
        return threads

    def _follow(self, client: Client) -> None:
        """Until the newcomer is ready."""
        while self.ready_s == math.inf:
            (newcomer,) = [found for found in client.server_info().variants if found.name == NEWCOMER]
            if newcomer.state is VariantState.CALIBRATING:
                self.calibrating_s = min(self.calibrating_s, time.time())
            elif newcomer.state is VariantState.READY:
                self.ready_s = time.time()
            elif newcomer.state is VariantState.FAILED:
                raise SystemExit(f"{NEWCOMER} could not be loaded: {newcomer.state_reason}")
            time.sleep(POLL_S)

    def _watch(self, receipts: Iterator[Receipt]) -> None:
        try:
            for receipt in receipts:
                bill = bill_of(receipt)
                if bill is None:
                    self.withheld[receipt.variant] += 1
                else:
                    self.bills[receipt.variant].append(bill)
        except WattserveError as error:
            if not self._ends.is_set():  # else the client was closed
                print(f"the watch ended: {error}", file=sys.stderr)


@dataclass(frozen=True)
class Compared:
    newcomer: float  # its first receipts over its later ones
    neighbour: float  # its receipts beside the newcomer over those before
    split: float  # joules of the newcomer over its neighbour's, for a second that was computed


@dataclass(frozen=True)
class Found:
    told: Compared
    used: Compared  # the same of what was used
    withheld: float  # part of the newcomer's receipts
    p99_ms: tuple[float, ...]  # of the neighbour: before, loading, calibrating, after; nan where none came

    def over_used(self, name: str) -> float:
        told: float = getattr(self.told, name)
        return told / float(getattr(self.used, name))

    def misses(self) -> list[str]:
        return [name for name, (low, high) in BOUNDS.items() if not low <= self.over_used(name) <= high]


def p99_ms(run: Run) -> tuple[float, ...]:
    """A call is of the phase in which it was sent."""
    since = (run.begun_s, run.loaded_s, min(run.calibrating_s, run.ready_s), run.ready_s, math.inf)
    phases = [[wait for at_s, wait in run.waits if low <= at_s < high] for low, high in pairwise(since)]
    return tuple(1e3 * float(np.percentile(waits, 99)) if waits else math.nan for waits in phases)


def used_s(path: Path, meter: str) -> dict[str, float]:
    """Of each request, by its receipt's id: its share of what its batch used, whose sequences are alike."""
    found = {}
    for event in events_of(path):
        if isinstance(event, Heard) and event.method == "advance":
            for window in event.arguments[0]:
                used_ns = window.cpu_ns if meter == "estimate" else window.duration_ns
                for line in window.lines:
                    found[line.receipt.receipt_id] = used_ns / len(window.lines) / 1e9
    return found


def found_in(run: Run, used: dict[str, float]) -> Found:
    new = sorted(run.bills[NEWCOMER], key=lambda bill: bill.at_s)
    old = run.bills[RESIDENT]
    before = [bill for bill in old if run.begun_s <= bill.at_s < run.loaded_s]
    beside = [bill for bill in old if bill.at_s >= new[0].at_s]

    def compared(amount: Callable[[Bill], float]) -> Compared:
        def mean(bills: Sequence[Bill]) -> float:
            return statistics.fmean(map(amount, bills))

        def per_second(bills: Sequence[Bill]) -> float:
            return sum(map(amount, bills)) / sum(bill.compute_s for bill in bills)

        return Compared(
            newcomer=mean(new[:FIRST]) / mean(new[len(new) // 2 :]),
            neighbour=mean(beside) / mean(before),
            split=per_second(new) / per_second(beside),
        )

    return Found(
        told=compared(lambda bill: bill.joules),
        used=compared(lambda bill: used[bill.receipt_id]),
        withheld=run.withheld[NEWCOMER] / (run.withheld[NEWCOMER] + len(new)),
        p99_ms=p99_ms(run),
    )


def found_by(meter: str, alone_s: float, together_s: float, threads: int) -> Found:
    """In one run."""
    with tempfile.TemporaryDirectory() as folder:
        audit = Path(folder) / "run.audit"
        flags = (
            "--model",
            "demo",
            "--variants",
            f"{RESIDENT},{NEWCOMER}",
            "--lazy-variants",
            "--meter",
            meter,
            "--threads",
            str(threads),
        )
        with running_server(*flags, fresh=True, command=("audit", "record", str(audit))) as server:
            run = Run(server.address)
            run.drive(alone_s, together_s)
            server.terminate()
        return found_in(run, used_s(audit, meter))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.loaded_beside_traffic", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--meters", default=",".join(METERS), help="with commas (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="of each meter (default: %(default)s)")
    parser.add_argument("--alone", type=float, default=10.0, help=f"seconds of {RESIDENT} alone")
    parser.add_argument("--together", type=float, default=40.0, help="seconds of both")
    parser.add_argument("--threads", type=int, default=0, help="of the server, that compute; 0: as it does")
    asked = parser.parse_args(arguments)
    missed = 0
    print(
        "| meter | newcomer, first / later (over used) | neighbour, beside / before | split | withheld "
        "| neighbour's p99, ms: before, loading, calibrating, after | missed |"
    )
    print("|---|---|---|---|---|---|---|")
    for meter in asked.meters.split(","):
        for _ in range(asked.runs):
            found = found_by(meter, asked.alone, asked.together, asked.threads)
            missed += bool(found.misses())
            compared = " | ".join(
                f"{getattr(found.told, each):.2f} ({found.over_used(each):.2f})" for each in BOUNDS
            )
            waits = ", ".join(f"{wait:.1f}" for wait in found.p99_ms)
            words = ", ".join(found.misses()) or "-"
            print(f"| {meter} | {compared} | {found.withheld:.1%} | {waits} | {words} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
