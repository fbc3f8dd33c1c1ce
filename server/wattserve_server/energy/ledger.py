"""The ledger: where every microjoule of the meter stands.

Every amount enters as pending when the meter counts it and leaves pending once, into one account,
so measured = active + warm-up + idle + unattributed + gap + pending holds by construction.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

RECENT_GAPS = 32
"""How many gaps are kept in full; older ones only count."""


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

    def meter(self, amount_uj: int) -> None:
        """The meter counted this much more."""
        self.measured_uj += amount_uj
        self.pending_uj += amount_uj

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

    def begin_gap(self, start_ns: int, reason: str) -> None:
        self.gap_count += 1
        self.open_gap = Gap(start_ns, None, reason)

    def end_gap(self, end_ns: int) -> None:
        if self.open_gap is None:
            raise ValueError("there is no open gap to end")
        self.gap_ns += end_ns - self.open_gap.start_ns
        self.recent_gaps.append(replace(self.open_gap, end_ns=end_ns))
        self.open_gap = None

    def copy(self) -> Ledger:
        """A copy that later bookings do not change, for readers on other threads."""
        return replace(
            self,
            active={name: replace(totals) for name, totals in self.active.items()},
            recent_gaps=deque(self.recent_gaps, maxlen=RECENT_GAPS),
        )

    def residual_uj(self) -> int:
        """Measured minus the sum of the accounts: 0, always."""
        active = sum(totals.active_uj for totals in self.active.values())
        accounts = (
            active + self.warmup_uj + self.idle_uj + self.unattributed_uj + self.gap_uj + self.pending_uj
        )
        return self.measured_uj - accounts

    def _leave_pending(self, amount_uj: int) -> None:
        if not 0 <= amount_uj <= self.pending_uj:
            raise ValueError(f"cannot book {amount_uj} uJ: {self.pending_uj} uJ are pending")
        self.pending_uj -= amount_uj
