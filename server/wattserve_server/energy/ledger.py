"""The ledger: where every microjoule of the meter stands.

Every amount enters as pending when the meter counts it and leaves pending once, into one account,
so measured = active + warm-up + idle + unattributed + gap + pending holds by construction.

The books move what was counted into these accounts and onto receipts. What has been counted and given to
nobody is the pool. Nothing is ever booked that is not in it, so that the accounts cannot exceed the meter.
Charges lie in the books until they are taken, and windows until they are charged: an error elsewhere loses
neither. Neither decides anything: the accountant says what is booked where.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from wattserve_server.energy.attribution import split_exact
from wattserve_server.energy.costlaw import LawView, split_weights
from wattserve_server.energy.openbatches import Entry
from wattserve_server.energy.reading import where_all_known
from wattserve_server.energy.receipt import Charge, Window

RECENT_GAPS = 32  # how many gaps are kept in full; older ones are only counted


@dataclass(slots=True)
class VariantTotals:
    """What was settled for one variant; sequences of unknown energy are not in it."""

    active_uj: int = 0
    sequences: int = 0
    tokens: int = 0
    padded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """An interval over which the meter said nothing usable; `end_ns` is None while it lasts."""

    start_ns: int
    end_ns: int | None
    reason: str


@dataclass(slots=True)
class Ledger:
    """Accounts in whole microjoules, since the first reading at `since_ns` (monotonic)."""

    since_ns: int | None = None
    until_ns: int | None = None
    measured_uj: int = 0
    pending_uj: int = 0
    active: dict[str, VariantTotals] = field(default_factory=dict)
    warmup_uj: int = 0
    idle_uj: int = 0
    idle_shared_uj: int = 0
    unattributed_uj: int = 0
    gap_uj: int = 0
    unknown_lines: int = 0
    gap_count: int = 0
    gap_ns: int = 0
    recent_gaps: deque[Gap] = field(default_factory=lambda: deque(maxlen=RECENT_GAPS))
    open_gap: Gap | None = None
    changes: int = field(default=0, compare=False)  # how often it was written to

    @property
    def active_uj(self) -> int:
        """Of all variants."""
        return sum(totals.active_uj for totals in self.active.values())

    def begin(self, at_ns: int) -> None:
        """The meter was read for the first time."""
        self.since_ns = self.until_ns = at_ns
        self.changes += 1

    def meter(self, amount_uj: int) -> None:
        """The meter counted this much more."""
        self.measured_uj += amount_uj
        self.pending_uj += amount_uj
        self.changes += 1

    def to_idle(self, amount_uj: int) -> None:
        self._leave_pending(amount_uj)
        self.idle_uj += amount_uj

    def to_unattributed(self, amount_uj: int) -> None:
        self._leave_pending(amount_uj)
        self.unattributed_uj += amount_uj

    def to_gap(self, amount_uj: int) -> None:
        self._leave_pending(amount_uj)
        self.gap_uj += amount_uj

    def to_warmup(self, amount_uj: int) -> None:
        self._leave_pending(amount_uj)
        self.warmup_uj += amount_uj

    def show_idle(self, amount_uj: int) -> None:
        """This part of the idle account is shown on receipts."""
        self.idle_shared_uj += amount_uj
        self.changes += 1

    def to_active(self, variant: str, amount_uj: int, sequences: int, tokens: int, padded: int) -> None:
        self._leave_pending(amount_uj)
        totals = self.active.setdefault(variant, VariantTotals())
        totals.active_uj += amount_uj
        totals.sequences += sequences
        totals.tokens += tokens
        totals.padded_tokens += padded

    def to_unknown(self, lines: int) -> None:
        """These receipt lines have no figure."""
        self.unknown_lines += lines
        self.changes += 1

    def begin_gap(self, start_ns: int, reason: str) -> None:
        self.gap_count += 1
        self.open_gap = Gap(start_ns, None, reason)
        self.changes += 1

    def end_gap(self, end_ns: int) -> None:
        if self.open_gap is None:
            raise ValueError("there is no open gap to end")
        self.gap_ns += end_ns - self.open_gap.start_ns
        self.recent_gaps.append(replace(self.open_gap, end_ns=end_ns))
        self.open_gap = None
        self.changes += 1

    def copy(self) -> Ledger:
        """A copy that later bookings do not change, for readers on other threads."""
        return replace(
            self,
            active={name: replace(totals) for name, totals in self.active.items()},
            recent_gaps=deque(self.recent_gaps, maxlen=RECENT_GAPS),
        )

    def residual_uj(self) -> int:
        """Measured minus the sum of the accounts: 0, always."""
        booked_uj = self.active_uj + self.warmup_uj + self.idle_uj + self.unattributed_uj + self.gap_uj
        return self.measured_uj - booked_uj - self.pending_uj

    def _leave_pending(self, amount_uj: int) -> None:
        if not 0 <= amount_uj <= self.pending_uj:
            raise ValueError(f"cannot book {amount_uj} uJ: {self.pending_uj} uJ are pending")
        self.pending_uj -= amount_uj
        self.changes += 1


class Counted(NamedTuple):
    """The ledger of one counter, and where its joules come from, in words: they may come from elsewhere
    tomorrow."""

    source: str
    ledger: Ledger


def total(ledgers: Sequence[Ledger]) -> Ledger:
    """The accounts of several counters together, which closes as each of them does. It has begun once all
    have. A sequence is settled where all have settled it, and unknown for each that does not know it."""
    if len(ledgers) == 1:
        return ledgers[0]
    sums = {name: sum(getattr(ledger, name) for ledger in ledgers) for name in _SUMMED}
    gaps = sorted((gap for ledger in ledgers for gap in ledger.recent_gaps), key=lambda gap: gap.start_ns)
    return Ledger(
        since_ns=where_all_known(min, [ledger.since_ns for ledger in ledgers]),
        until_ns=where_all_known(min, [ledger.until_ns for ledger in ledgers]),
        active={
            name: _together([ledger.active.get(name, VariantTotals()) for ledger in ledgers])
            for name in dict.fromkeys(name for ledger in ledgers for name in ledger.active)
        },
        recent_gaps=deque(gaps, maxlen=RECENT_GAPS),
        open_gap=next((ledger.open_gap for ledger in ledgers if ledger.open_gap is not None), None),
        **sums,
    )


ACCOUNTS_UJ = (
    *("measured_uj", "active_uj", "warmup_uj", "idle_uj", "idle_shared_uj", "unattributed_uj", "gap_uj"),
    "pending_uj",
)
_SUMMED = (  # the active energy is by variant
    *(name for name in ACCOUNTS_UJ if name != "active_uj"),
    *("unknown_lines", "gap_count", "gap_ns", "changes"),
)


def _together(parts: Sequence[VariantTotals]) -> VariantTotals:
    return VariantTotals(
        sum(part.active_uj for part in parts),
        min(part.sequences for part in parts),
        min(part.tokens for part in parts),
        min(part.padded_tokens for part in parts),
    )


class Books:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._pool_uj = 0
        self._outbox: list[Charge] = []
        self._unsettled: dict[Window, None] = {}  # in the order in which they were handed over

    @property
    def pool_j(self) -> float:
        return self._pool_uj / 1e6

    @property
    def unsettled(self) -> Collection[Window]:
        """The windows that were handed over and are not charged yet."""
        return self._unsettled.keys()

    def hand_over(self, window: Window) -> None:
        """From now on somebody waits for this window to be charged, or to get no figure."""
        self._unsettled[window] = None

    def take_charges(self) -> list[Charge]:
        """What was charged since the last call."""
        charges, self._outbox = self._outbox, []
        return charges

    def count(self, amount_uj: int) -> None:
        """The meter has counted this much more, and its edge has been reached."""
        self._pool_uj += amount_uj

    def to_idle(self, joules: float) -> float:
        """Return the joules booked: what the pool holds of them. So with the next two."""
        return self._book(joules, self._ledger.to_idle)

    def to_unattributed(self, joules: float) -> float:
        return self._book(joules, self._ledger.to_unattributed)

    def to_warmup(self, joules: float) -> float:
        return self._book(joules, self._ledger.to_warmup)

    def to_gap(self, amount_uj: int) -> None:
        """What was counted over a gap; what was left from before it explains nothing any more."""
        self._ledger.to_gap(amount_uj)
        self._ledger.to_unattributed(self._pool_uj - amount_uj)
        self._pool_uj = 0

    def give_up(self, unreached_uj: int) -> float:
        """Nobody can tell any more what the pool was drawn for. Returns the joules given up: all that pends
        but what edges to come hold, also after a booking that was broken off."""
        amount_uj = self._ledger.pending_uj - unreached_uj
        self._ledger.to_unattributed(amount_uj)
        self._pool_uj = 0
        return amount_uj / 1e6

    def charge(self, entry: Entry, joules: float, deviation_j: float, law: LawView) -> float:
        """Book the energy of an entry's batches and charge their receipt lines; the joules booked.

        `deviation_j` is the standard deviation of one of its batches' energy.
        """
        if not math.isfinite(deviation_j):
            raise ArithmeticError(f"the deviation of a batch's energy is {deviation_j} J")
        amount_uj = self._take(joules)
        if entry.kind.is_warmup:
            self._ledger.to_warmup(amount_uj)
            for batch in entry.batches:
                self._unsettled.pop(batch.window, None)
            return amount_uj / 1e6
        shares = split_exact(amount_uj, [1.0] * len(entry.batches))
        for batch, share_uj, idle_j in zip(entry.batches, shares, entry.idle_share_j, strict=True):
            self._charge(batch.window, share_uj, deviation_j * 1e6, idle_j, law, entry.warning)
        return amount_uj / 1e6

    def no_figure(self, window: Window, reason: str) -> None:
        self._ledger.to_unknown(len(window.lines))
        self._settled(window, [Charge(line, None, 0.0, None, reason) for line in window.lines])

    def _charge(
        self,
        window: Window,
        amount_uj: int,
        deviation_uj: float,
        idle_j: float,
        law: LawView,
        warning: str,
    ) -> None:
        """Everything is computed before anything is booked: an error leaves the window as it was."""
        weights = split_weights(law, window)
        whole = math.fsum(weights)
        own = [
            0.0 if line.is_overhead else weight for line, weight in zip(window.lines, weights, strict=True)
        ]
        # What is shown has been booked: never more than the idle account holds.
        idle_uj = min(int(idle_j * 1e6), self._ledger.idle_uj - self._ledger.idle_shared_uj)
        if not any(own):
            idle_uj = 0
        charges = [
            Charge(line, energy_uj, deviation_uj * weight / whole, idle_share_uj, warning=warning)
            for line, weight, energy_uj, idle_share_uj in zip(
                window.lines,
                weights,
                split_exact(amount_uj, weights),
                split_exact(idle_uj, own),
                strict=True,
            )
        ]
        again = [charge.line.is_overhead for charge in charges]
        again_uj = sum(charge.energy_uj or 0 for charge in charges if charge.line.is_overhead)
        tokens_again = sum(itertools.compress(window.lengths, again))
        self._ledger.to_warmup(again_uj)
        self._ledger.to_active(
            window.variant, amount_uj - again_uj, window.sequences,
            sum(window.lengths) - tokens_again, window.computed_tokens - tokens_again,
        )  # fmt: skip
        self._ledger.show_idle(idle_uj)
        self._settled(window, charges)

    def _settled(self, window: Window, charges: list[Charge]) -> None:
        self._unsettled.pop(window, None)
        self._outbox += charges

    def _book(self, joules: float, account: Callable[[int], None]) -> float:
        amount_uj = self._take(joules)
        account(amount_uj)
        return amount_uj / 1e6

    def _take(self, joules: float) -> int:
        """Microjoules taken from the pool: what it holds of this."""
        amount_uj = min(max(round(joules * 1e6), 0), self._pool_uj)
        self._pool_uj -= amount_uj
        return amount_uj
