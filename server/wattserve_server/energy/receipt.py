"""A receipt: what one request is told it cost, with a line for each of its sequences; and what fills it:
the window in which a batch ran, and the charge that a window's settlement gives to a line.

A receipt is provisional until every window of every line is settled; then it is settled, or unknown
with a reason when any of them is unknown. Owned by one thread (the event loop).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum


class State(Enum):
    PROVISIONAL = "provisional"
    SETTLED = "settled"
    UNKNOWN = "unknown"


class Outcome(Enum):
    """How the request ended; OPEN while it has not."""

    OPEN = "open"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


NEVER_RAN = "the request never ran"


@dataclass(slots=True, eq=False)
class Line:
    """One sequence, and what the windows that it runs in charge it: one for a batch of rows, one for each
    step of a sequence that runs in steps. Energies are None while not known, and for good once a window has
    none."""

    receipt: Receipt
    tokens: int
    padded_tokens: int = 0  # of all its windows, as is compute_ns
    batch_size: int = 0  # of the last window that it entered; 0: it never ran
    compute_ns: int = 0
    windows: int = 0  # that it has entered
    ended: int = 0  # of these
    charged: int = 0  # of these
    provisional_uj: int | None = None
    energy_uj: int | None = None
    deviation_uj: float = 0.0
    idle_share_uj: int | None = None

    @property
    def is_settled(self) -> bool:
        """Whether every window that it has entered has charged it."""
        return self.charged == self.windows > 0

    def enter(self, batch_size: int) -> None:
        """It runs in one more window, with so many sequences."""
        self.windows += 1
        self.batch_size = batch_size

    def ran(self, padded_tokens: int, compute_ns: int, provisional_uj: int | None) -> None:
        """A window of it has ended, which is foreseen to cost so much."""
        is_first = self.ended == 0
        self.ended += 1
        self.padded_tokens += padded_tokens
        self.compute_ns += compute_ns
        self.provisional_uj = _plus(self.provisional_uj, provisional_uj, is_first)

    def charge(self, energy_uj: int | None, deviation_uj: float, idle_share_uj: int | None) -> None:
        """One of its windows is settled. Windows are wrong together (one law, one idle draw, one response),
        so their deviations add up: they cannot be further off than that, however they hang together."""
        is_first = self.charged == 0
        self.charged += 1
        self.energy_uj = _plus(self.energy_uj, energy_uj, is_first)
        self.idle_share_uj = _plus(self.idle_share_uj, idle_share_uj, is_first)
        self.deviation_uj += deviation_uj


def _plus(sum_uj: int | None, more_uj: int | None, is_first: bool) -> int | None:
    """None for good once an amount was not known."""
    if is_first:
        return more_uj
    return None if sum_uj is None or more_uj is None else sum_uj + more_uj


@dataclass(slots=True, eq=False)
class Receipt:
    """The receipt of one request. Energies in microjoules, above the device's idle draw."""

    receipt_id: str
    request_id: str
    variant: str
    device: str
    created_unix_ns: int
    lines: list[Line] = field(default_factory=list)
    outcome: Outcome = Outcome.OPEN
    unknown_reason: str = ""
    split_rule: str = "shapley"
    proxy: str = ""  # what really ran, where the variant only stands in for a precision
    is_unverified: bool = False  # nobody has checked that it ran at the precision of its name
    warnings: list[str] = field(default_factory=list)

    def end(self, outcome: Outcome) -> None:
        """Say how the request ended. Raises ValueError the second time."""
        if self.outcome is not Outcome.OPEN:
            raise ValueError(f"receipt {self.receipt_id} has ended already, as {self.outcome.value}")
        self.outcome = outcome

    def charge(
        self, line: Line, energy_uj: int | None, deviation_uj: float, idle_share_uj: int | None, reason: str
    ) -> None:
        """One of a line's windows is settled. Raises ValueError where the line owes none of them."""
        if line.charged >= line.windows:
            raise ValueError(f"a line of receipt {self.receipt_id} was charged twice by one of its windows")
        line.charge(energy_uj, deviation_uj, idle_share_uj)
        if energy_uj is None:
            self.unknown_reason = self.unknown_reason or reason

    @property
    def ran(self) -> list[Line]:
        return [line for line in self.lines if line.windows]

    @property
    def is_final(self) -> bool:
        """The request has ended and nothing of it will be charged any more."""
        if self.outcome is Outcome.OPEN:
            return False
        return all(line.is_settled for line in self.ran)

    @property
    def state(self) -> State:
        if not self.is_final:
            return State.PROVISIONAL
        return State.UNKNOWN if self.reason else State.SETTLED

    @property
    def reason(self) -> str:
        """Why a final receipt has no figure; empty when it has one."""
        if self.unknown_reason or not self.is_final:
            return self.unknown_reason
        return "" if self.ran else NEVER_RAN

    @property
    def provisional_uj(self) -> int | None:
        return _sum([line.provisional_uj for line in self.ran])

    @property
    def energy_uj(self) -> int | None:
        """Settled if settled, else provisional; None when unknown."""
        if self.is_final:
            return _sum([line.energy_uj for line in self.ran])
        if self.unknown_reason:
            return None
        return _sum([line.energy_uj if line.is_settled else line.provisional_uj for line in self.ran])

    @property
    def idle_share_uj(self) -> int | None:
        return _sum([line.idle_share_uj for line in self.ran])

    def interval_uj(self) -> tuple[int, int] | None:
        """The 95 % interval of a settled figure; None for any other state. Lines of one batch are wrong
        together, as are the windows of a line, so their deviations add up."""
        if self.state is not State.SETTLED:
            return None
        energy = self.energy_uj
        assert energy is not None
        half = 1.96 * math.fsum(line.deviation_uj for line in self.ran)
        return max(0, math.floor(energy - half)), math.ceil(energy + half)


def _sum(amounts: list[int | None]) -> int | None:
    """None where nothing is to be summed, or part of it is not known."""
    values = [amount for amount in amounts if amount is not None]
    return sum(values) if amounts and len(values) == len(amounts) else None


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The interval in which one batch ran, by the device's own events where it has some: from its first copy
    to the device to its result. The host's stamps, which hold it, end with the last copy back.

    Instants are on the host's monotonic clock.
    """

    variant: str
    start_ns: int
    end_ns: int
    lengths: tuple[int, ...]  # true tokens of each sequence
    padded_length: int  # tokens of each row that was computed
    lines: tuple[Line, ...] = ()  # the receipt lines to charge, one per sequence; none for a warm-up
    is_first_run: bool = False  # of its shape; it may compile, tune or allocate: nothing is learned from it
    rested_ns: int = 0  # for how long the device had done nothing before
    packed_rows: int = 0  # how many rows its sequences shared; 0: each had a row of its own
    host_ns: tuple[int, int] | None = None  # the host's own start and end; None: they are the above

    @property
    def is_warmup(self) -> bool:
        return not self.lines

    @property
    def computed_tokens(self) -> int:
        return (self.packed_rows or len(self.lengths)) * self.padded_length

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def held_ns(self) -> int:
        """For how long the host was at it."""
        start_ns, end_ns = self.host_ns or (self.start_ns, self.end_ns)
        return end_ns - start_ns


@dataclass(frozen=True, slots=True)
class Charge:
    """What one receipt line is charged."""

    line: Line
    energy_uj: int | None  # None when unknown; then `reason` says why
    deviation_uj: float
    idle_share_uj: int | None
    reason: str = ""
    warning: str = ""  # what else may be in the figure; empty when nothing is known of
