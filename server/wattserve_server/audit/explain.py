"""One receipt, step by step: which intervals of the meter held its batches, by which law and weights a batch
was split, who was in it too, and what it was shown of the idle draw."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wattserve_server.audit.events import Opened
from wattserve_server.audit.file import Header
from wattserve_server.audit.recompute import Recomputed, in_words
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.attribution import BY_TIME
from wattserve_server.energy.calibration import CounterInterval
from wattserve_server.energy.costlaw import LawView, split_weights
from wattserve_server.energy.ledger import Books, Ledger
from wattserve_server.energy.openbatches import Entry
from wattserve_server.energy.receipt import Charge, Figures, Receipt, Window

MOST_EDGES = 5000  # that are looked through for those of a batch
LEAST_PART = 0.001  # of a batch: an interval that holds less is not told
_TERMS = (
    "for the batch",
    "a token",
    "a token and token of length or pair",
    "a row of logits",
    "a token read",
)


@dataclass(frozen=True, slots=True)
class Step:
    """What one counter charged for one batch. held: intervals of the meter, with the part of it in each."""

    ledger: Ledger
    window: Window
    charges: Sequence[Charge]
    law: LawView | None  # None: it has no figure
    held: Sequence[tuple[CounterInterval, float]]


@dataclass(slots=True)
class Trace:
    """What was charged to one receipt. Makes accountants that note it."""

    receipt_id: str
    steps: list[Step] = field(default_factory=list)
    receipt: Receipt | None = None
    told: Figures | None = None  # None: it had not been told

    def make_accountant(self, **settings: Any) -> Accountant:
        return _TracedAccountant(self, **settings)

    def on_receipt(self, receipt: Receipt, told: Sequence[Figures], now: Sequence[Figures]) -> None:
        if receipt.receipt_id == self.receipt_id:
            self.told = told[0]


class _TracedAccountant(Accountant):
    def __init__(self, trace: Trace, **settings: Any) -> None:
        super().__init__(**settings)
        self._trace = trace
        self._passed: deque[CounterInterval] = deque(maxlen=MOST_EDGES)
        self._books = _TracedBooks(self)

    def _pass(self, edge: CounterInterval) -> None:
        self._passed.append(edge)
        super()._pass(edge)

    def _pass_gap(self, edge: CounterInterval) -> None:
        self._passed.append(edge)
        super()._pass_gap(edge)

    def note(self, window: Window, charges: Sequence[Charge], law: LawView | None) -> None:
        own = [charge for charge in charges if charge.line.receipt.receipt_id == self._trace.receipt_id]
        if own:
            self._trace.receipt = own[0].line.receipt
            self._trace.steps.append(Step(self.ledger, window, charges, law, list(self._held(window))))

    def _held(self, window: Window) -> Iterator[tuple[CounterInterval, float]]:
        if self.ledger.since_ns is None:
            return
        edges = np.array([(edge.start_s, edge.end_s) for edge in self._passed]).reshape(-1, 2)
        span = np.array([self._seconds(window.start_ns)]), np.array([self._seconds(window.end_ns)])
        parts = self.response.counted(edges[:, 1], *span) - self.response.counted(edges[:, 0], *span)
        for edge, part in zip(self._passed, parts, strict=True):
            if part >= LEAST_PART:
                yield edge, float(part)


class _TracedBooks(Books):
    def __init__(self, accountant: _TracedAccountant) -> None:
        super().__init__(accountant.ledger)
        self._accountant = accountant

    def charge(self, entry: Entry, joules: float, deviation_j: float, law: LawView) -> float:
        since = len(self._outbox)
        booked_j = super().charge(entry, joules, deviation_j, law)
        for window in [batch.window for batch in entry.batches]:
            self._accountant.note(window, self._outbox[since : since + len(window.lines)], law)
            since += len(window.lines)
        return booked_j

    def no_figure(self, window: Window, reason: str) -> None:
        since = len(self._outbox)
        super().no_figure(window, reason)
        self._accountant.note(window, self._outbox[since:], None)


def explained(trace: Trace, made: Recomputed) -> Iterator[str]:
    """In lines. The receipt has been charged something."""
    receipt = trace.receipt
    assert receipt is not None
    words = "it had not been told" if trace.told is None else f"it was told {in_words(trace.told)}"
    yield f"receipt {receipt.receipt_id}: {receipt.variant}, {receipt.outcome.value}; {words}"
    for counter in made.counters:
        steps = [step for step in trace.steps if step.ledger is counter.ledger]
        if steps:
            yield f"{counter.opened.name}: {counter.opened.origin}; {_settings(counter.opened)}"
        for number, step in enumerate(steps, 1):
            yield from _step(number, step, receipt, made.header)
        if steps and receipt.idle_policy == BY_TIME:
            idle_uj = receipt.of_part(counter.opened.part).idle_share_uj
            idle = "not known" if idle_uj is None else f"{idle_uj:,} uJ"
            yield f"  idle draw, by its time in flight: {idle}"
    yield f"together: {in_words(receipt.whole)}"


def _settings(opened: Opened) -> str:
    return ", ".join(f"{name} {value}" for name, value in opened.settings.items() if value is not None)


def _step(number: int, step: Step, receipt: Receipt, header: Header) -> Iterator[str]:
    window, ledger = step.window, step.ledger
    yield (
        f"  {number}. a batch of {len(window.lines)} in {window.variant}: {window.computed_tokens:,} tokens, "
        f"from {_clock(header.unix_ns(window.start_ns))} for {window.duration_ns / 1e6:.3f} ms"
    )
    if step.law is None:
        yield f"     no figure: {step.charges[0].reason}"
        return
    for edge, part in step.held:
        since, until = (
            _clock(header.unix_ns((ledger.since_ns or 0) + round(at_s * 1e9)))
            for at_s in (edge.start_s, edge.end_s)
        )
        counted = f"the meter counted {edge.energy_uj:,} uJ"
        yield f"     {since} to {until}: {counted}, with {part:.1%} of the batch"
    law = step.law.laws.get(window.variant)
    terms = zip(law.smooth, _TERMS, strict=True) if law else ()
    learned = ", ".join(f"{joules * 1e6:.4g} uJ {of}" for joules, of in terms if joules)
    yield f"     law of {window.variant}: {learned or 'not learned yet; split by tokens'}"
    if step.law.cpu_second_j is not None and window.cpu_ns is not None:
        took = f"{window.cpu_ns / 1e6:.3f} ms at {step.law.cpu_second_j:.4g} W"
        yield f"     law of CPU time, for the batch: it took {took}; the law of its variant says who used it"
    whole_uj = sum(charge.energy_uj or 0 for charge in step.charges)
    idle_uj = sum(charge.idle_share_uj or 0 for charge in step.charges)
    deviation_uj = sum(charge.deviation_uj for charge in step.charges)
    sure = f"standard deviation {deviation_uj:,.0f} uJ"
    yield f"     the batch used {whole_uj:,} uJ ({sure}), beside {idle_uj:,} uJ of idle"
    weights = split_weights(step.law, window)
    for is_own, words in ((True, "its own"), (False, "beside")):
        for charge, weight, tokens in zip(step.charges, weights, window.lengths, strict=True):
            if (charge.line.receipt is receipt) is is_own:
                who = "" if is_own else f" {charge.line.receipt.receipt_id}:"
                share = f"{charge.energy_uj:,} uJ, idle {charge.idle_share_uj or 0:,} uJ"
                again = ", computed again" if charge.line.is_overhead else ""
                split = f"weight {weight / sum(weights):.2%}"
                yield f"     {words}:{who} {tokens} tokens, {split}: {share}{again}"


def _clock(unix_ns: int) -> str:
    seconds, ns = divmod(unix_ns, 10**9)
    return f"{time.strftime('%H:%M:%S', time.gmtime(seconds))}.{ns // 1000:06d}"
