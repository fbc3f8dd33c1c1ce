"""`python -m tests.bench.metrics_cost`: what the metrics take of a request, in CPU time on the event loop.

Everything that a unary request with one sequence counts, in a batch of its own, so that nothing is shared:
its gRPC call, its answer with the exemplar of its receipt, its batch, its settled receipt. What the server
does anyway (it makes the receipt, it awaits the handler) is not in it; the loop around is measured and taken
off.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt, Window
from wattserve_server.service.gate import Gate
from wattserve_server.service.methods import CountedCall
from wattserve_server.service.quota import Quotas
from wattserve_server.telemetry.observer import Observer, Times

GOAL_US = 10.0
VARIANTS = ("fp32", "bf16", "int8", "fp32@cpu")
REQUESTS = 20_000
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
NO_DEADLINE: Any = SimpleNamespace(time_remaining=lambda: None, code=lambda: 0)
"""All that a call's context is asked for."""


class Work:
    """Requests that have run already, with figures all over the buckets."""

    def __init__(self) -> None:
        self.observer = Observer("bench", "bench")
        keeps_nothing = {"add": bool, "discard": lambda *_: None, "let_go": bool}
        self.open_calls: Any = SimpleNamespace(**keeps_nothing)
        self.call = self.observer.method("unary", "wattserve.v1.Inference", "Predict")
        self.gate = Gate(None, Quotas())
        self.requests = [_request(number) for number in range(512)]

    def nothing(self, variant: str, receipt: Receipt, times: Times) -> None:
        pass

    def grpc(self, variant: str, receipt: Receipt, times: Times) -> None:
        with CountedCall(self.call, self.open_calls, self.gate, "Predict", NO_DEADLINE):
            pass

    def answer(self, variant: str, receipt: Receipt, times: Times) -> None:
        self.observer.answered(variant, 1, times, receipt)

    def batch(self, variant: str, receipt: Receipt, times: Times) -> None:
        self.observer.batch_ran(Window(variant, 0, times.compute_ns, (12,), 16))

    def receipt(self, variant: str, receipt: Receipt, times: Times) -> None:
        self.observer.receipt_final(receipt)

    def refusal(self, variant: str, receipt: Receipt, times: Times) -> None:
        self.observer.failed("", "NOT_FOUND", "NOT_FOUND", "no such variant", times.total_ns)


def _request(number: int) -> tuple[str, Receipt, Times]:
    variant = VARIANTS[number % len(VARIANTS)]
    receipt = Receipt(f"0123456789ab-{number:x}", f"request-{number}", variant, "cpu", 0)
    line = Line(receipt, 12, 16, 1, windows=1)
    line.ran(0, 1, (90 + number * number,))
    receipt.lines.append(line)
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(receipt.lines[0], 100 + number * number, 1.0, 0, ""), ACCELERATOR)
    part_ns = 1000 * (1 + number) ** 2 // 16
    return variant, receipt, Times(part_ns // 8, part_ns // 4, part_ns, part_ns // 16, 2 * part_ns)


def cost_us(work: Work, part: Callable[[str, Receipt, Times], None]) -> float:
    """CPU time of one call, with that of the loop."""
    asked, size = work.requests, len(work.requests)
    begun_ns = time.thread_time_ns()
    for number in range(REQUESTS):
        part(*asked[number % size])
    return (time.thread_time_ns() - begun_ns) / 1000 / REQUESTS


def scrape_ms(work: Work, accept: str) -> float:
    begun_ns = time.thread_time_ns()
    work.observer.page(accept)
    return (time.thread_time_ns() - begun_ns) / 1e6


def measure(rounds: int) -> dict[str, Any]:
    """Medians over rounds in which every part has its turn."""
    work = Work()
    parts = {
        "gRPC call": work.grpc,
        "answered request": work.answer,
        "batch of one": work.batch,
        "settled receipt": work.receipt,
    }
    others = {"refused request, instead": work.refusal}
    found: dict[str, list[float]] = {name: [] for name in (*parts, *others)}
    gc.collect()
    for _ in range(rounds):
        empty = cost_us(work, work.nothing)
        for name, part in {**parts, **others}.items():
            found[name].append(cost_us(work, part) - empty)
    figures: dict[str, Any] = {name: statistics.median(values) for name, values in found.items()}
    figures["all of a request"] = statistics.median(
        map(sum, zip(*(found[name] for name in parts), strict=True))
    )
    for name, accept in (("text", ""), ("OpenMetrics", OPENMETRICS)):
        figures[f"scrape as {name}, ms"] = statistics.median(scrape_ms(work, accept) for _ in range(rounds))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.metrics_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args()
    figures = measure(args.rounds)
    for name, value in figures.items():
        unit = "" if name.endswith("ms") else " us"
        print(f"{name:28}{value:8.2f}{unit}")
    verdict = "met" if figures["all of a request"] < GOAL_US else "MISSED"
    print(f"goal: less than {GOAL_US:g} us of a request: {verdict}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
