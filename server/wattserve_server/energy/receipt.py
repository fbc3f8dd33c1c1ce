"""A receipt: what one request is told it cost, with a line for each of its sequences; and what fills it:
the window in which a batch ran, and the charge that a window's settlement gives to a line.

Its figures are the sums of named parts of the machine, each with a counter of its own. A receipt is
provisional until every part has settled every window of every line; then it is settled, or unknown with a
reason when any of them is unknown. Owned by one thread (the event loop).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from wattserve_server.energy.attribution import BUSY_TIME, BY_TIME, split_exact


class State(StrEnum):
    PROVISIONAL = "provisional"
    SETTLED = "settled"
    UNKNOWN = "unknown"


class Role(StrEnum):
    """What a line of a generation stands for."""

    PROMPT = "prompt"  # the steps that read the prompt, and choose the first token
    OUTPUT = "output"  # those that choose the others
    RECOMPUTED = "recomputed"  # those that read again what a preemption had lost


class Outcome(StrEnum):
    """How the request ended; OPEN while it has not."""

    OPEN = "open"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


NEVER_RAN = "the request never ran"
NO_REASONS: Mapping[str, str] = MappingProxyType({})

# The parts of the machine that draw a request's joules, each with a counter of its own.
ACCELERATOR = "accelerator"  # the device that runs the batches
HOST = "host"  # the CPU that feeds it, or that is the device itself


@dataclass(slots=True, eq=False)
class Tally:
    """What one part of the machine has charged a line so far, and what its law foresees. Energies are None
    while not known, and for good once a window has none."""

    ended: int = 0  # windows
    charged: int = 0  # windows
    provisional_uj: int | None = None
    energy_uj: int | None = None
    deviation_uj: float = 0.0
    idle_share_uj: int | None = None
    # What is in the counter's accounts for it, also where one window more has made the sums unknown.
    booked_uj: int = 0
    booked_idle_uj: int = 0

    def now_uj(self, windows: int) -> int | None:
        """Settled where so many windows have charged it, else provisional."""
        return self.energy_uj if self.charged == windows else self.provisional_uj

    def foresee(self, provisional_uj: int | None) -> None:
        """One more window has ended."""
        if self.ended:
            provisional_uj = _plus(self.provisional_uj, provisional_uj)
        self.provisional_uj = provisional_uj
        self.ended += 1

    def charge(self, energy_uj: int | None, deviation_uj: float, idle_share_uj: int | None) -> None:
        """One more window is settled. Windows are wrong together (one law, one idle draw, one response), so
        their deviations add up: they cannot be further off than that, however they hang together."""
        self.booked_uj += energy_uj or 0
        self.booked_idle_uj += idle_share_uj or 0
        if self.charged:
            energy_uj = _plus(self.energy_uj, energy_uj)
        if self.charged or self.idle_share_uj is not None:
            idle_share_uj = _plus(self.idle_share_uj, idle_share_uj)
        self.charged += 1
        self.energy_uj, self.idle_share_uj = energy_uj, idle_share_uj
        self.deviation_uj += deviation_uj

    def share_idle(self, amount_uj: int | None) -> None:
        """What is its by the time that its request was in flight."""
        self.booked_idle_uj += amount_uj or 0
        self.idle_share_uj = _plus(self.idle_share_uj, amount_uj) if self.charged else amount_uj


def _plus(sum_uj: int | None, more_uj: int | None) -> int | None:
    """None for good once an amount was not known."""
    return None if sum_uj is None or more_uj is None else sum_uj + more_uj


@dataclass(slots=True, eq=False)
class Line:
    """One sequence, and what the windows that it runs in charge it: one for a batch of rows, one for each
    step of a sequence that runs in steps. Each charges it once for every part of the machine."""

    receipt: Receipt
    tokens: int  # of the sequence; where it runs in steps, those that have run
    padded_tokens: int = 0  # of all its windows, as is compute_ns
    batch_size: int = 0  # of the last window that it entered; 0: it never ran
    compute_ns: int = 0
    windows: int = 0  # that it has entered
    tallies: tuple[Tally, ...] = ()  # one for each of the receipt's parts
    role: Role | None = None  # of a generation's lines
    chosen: int = 0  # next tokens that its windows have chosen

    def __post_init__(self) -> None:
        self.tallies = tuple([Tally() for _ in self.receipt.parts])

    @property
    def is_overhead(self) -> bool:
        """Whether its joules are the server's, not its request's: they are in the warm-up account, and in no
        figure of the receipt but `overhead_uj`."""
        return self.role is Role.RECOMPUTED

    @property
    def is_settled(self) -> bool:
        """Whether every part has charged every window that it has entered."""
        for tally in self.tallies:
            if tally.charged != self.windows:
                return False
        return self.windows > 0

    @property
    def energy_uj(self) -> int | None:
        """Of all parts, each settled or else provisional; None where one does not know its own."""
        return _sum([tally.now_uj(self.windows) for tally in self.tallies])

    @property
    def provisional_uj(self) -> int | None:
        return _sum([tally.provisional_uj for tally in self.tallies])

    @property
    def idle_share_uj(self) -> int | None:
        return _sum([tally.idle_share_uj for tally in self.tallies])

    def enter(self, batch_size: int) -> None:
        """It runs in one more window, with so many sequences."""
        self.windows += 1
        self.batch_size = batch_size

    def left(self) -> None:
        """The window that it entered last did not run."""
        self.windows -= 1

    def ran(self, padded_tokens: int, compute_ns: int, provisional_uj: Sequence[int | None]) -> None:
        """A window of it has ended, which is foreseen to cost each part so much."""
        self.padded_tokens += padded_tokens
        self.compute_ns += compute_ns
        for tally, foreseen_uj in zip(self.tallies, provisional_uj, strict=True):
            tally.foresee(foreseen_uj)


class Figures(NamedTuple):
    """A receipt's figures of one part, or of all; energies in microjoules, None while not known."""

    state: State
    energy_uj: int | None  # settled if settled, else provisional
    interval_uj: tuple[int, int] | None  # 95 %, of a settled figure
    idle_share_uj: int | None
    provisional_uj: int | None
    reason: str  # why a final receipt has no figure; empty when it has one


@dataclass(slots=True, eq=False)
class Receipt:
    """The receipt of one request. Energies in microjoules, above the device's idle draw, and the sums of
    those of its parts."""

    receipt_id: str
    request_id: str
    variant: str
    device: str
    created_unix_ns: int
    parts: tuple[str, ...] = (ACCELERATOR,)  # whose joules are in its figures
    lines: list[Line] = field(default_factory=list)
    outcome: Outcome = Outcome.OPEN
    split_rule: str = "shapley"
    idle_policy: str = BUSY_TIME
    proxy: str = ""  # what really ran, where the variant only stands in for a precision
    is_unverified: bool = False  # nobody has checked that it ran at the precision of its name
    warnings: list[str] = field(default_factory=list)
    tenant: str = ""  # whose it is; empty: whoever may read receipts may read it
    _reasons: Mapping[str, str] = field(default_factory=lambda: NO_REASONS)  # by part: why it has no figure
    _idle_told: int = 0  # parts that have told what is its by time

    def end(self, outcome: Outcome) -> None:
        """Say how the request ended. Raises ValueError the second time."""
        if self.outcome is not Outcome.OPEN:
            raise ValueError(f"receipt {self.receipt_id} has ended already, as {self.outcome.value}")
        self.outcome = outcome

    def charge(self, charge: Charge, part: str) -> None:
        """A part of the machine charges a line for one of its windows. Raises ValueError where the line owes
        it none."""
        line = charge.line
        tally = line.tallies[self.parts.index(part)]
        if tally.charged >= line.windows:
            raise ValueError(f"a line of receipt {self.receipt_id} was charged twice by one of its windows")
        tally.charge(charge.energy_uj, charge.deviation_uj, charge.idle_share_uj)
        if charge.energy_uj is None and not line.is_overhead:
            self._reasons = {part: charge.reason} | {**self._reasons}
        if charge.warning:
            warning = self._named(part, charge.warning)
            if warning not in self.warnings:
                self.warnings.append(warning)

    def share_idle(self, amount_uj: int | None, part: str) -> None:
        """A part of the machine says what of its idle draw is this request's by its time in flight; None
        where that is not known. Its sequences were there equally long."""
        lines = [line for line in self.ran if not line.is_overhead] or self.ran
        shares_uj: list[int | None] = [None] * len(lines)
        if amount_uj is not None:
            shares_uj = list(split_exact(amount_uj, [1.0] * len(lines)))
        for line, share_uj in zip(lines, shares_uj, strict=True):
            line.tallies[self.parts.index(part)].share_idle(share_uj)
        self._idle_told += 1

    @property
    def _has_ended(self) -> bool:
        if self.idle_policy == BY_TIME and self._idle_told < len(self.parts):
            for line in self.lines:
                if line.windows:
                    return False
        return self.outcome is not Outcome.OPEN

    @property
    def ran(self) -> list[Line]:
        return [line for line in self.lines if line.windows]

    def of_role(self, role: Role) -> list[Line]:
        """Those that ran."""
        return [line for line in self.lines if line.role is role and line.windows]

    @property
    def overhead_uj(self) -> int | None:
        """What was computed again for it, in no other figure; None where that is not known."""
        lines = self.of_role(Role.RECOMPUTED)
        return _sum([line.energy_uj for line in lines]) if lines else 0

    @property
    def is_final(self) -> bool:
        """The request has ended and nothing of it will be charged any more."""
        for line in self.lines:
            if line.windows and not line.is_settled:
                return False
        return self._has_ended

    @property
    def state(self) -> State:
        return self.whole.state

    @property
    def is_unknown(self) -> bool:
        """Of one that is final: its `state` says so too, at ten times the cost."""
        return bool(self._reasons) or all(line.is_overhead or not line.windows for line in self.lines)

    @property
    def reason(self) -> str:
        """Why a final receipt has no figure; empty when it has one."""
        return self.whole.reason

    @property
    def energy_uj(self) -> int | None:
        """Settled if settled, else provisional; None when unknown."""
        return self.whole.energy_uj

    @property
    def provisional_uj(self) -> int | None:
        return self.whole.provisional_uj

    @property
    def idle_share_uj(self) -> int | None:
        return self.whole.idle_share_uj

    def interval_uj(self) -> tuple[int, int] | None:
        """The 95 % interval of a settled figure; None for any other state."""
        return self.whole.interval_uj

    @property
    def whole(self) -> Figures:
        """The sum of its parts: unknown with the reason where one of them is."""
        reason = ""
        if self._reasons:
            reason = "; ".join([self._named(part, words) for part, words in self._reasons.items()])
        return self._figures(range(len(self.parts)), reason)

    def of_part(self, part: str) -> Figures:
        return self._figures([self.parts.index(part)], self._reasons.get(part, ""))

    def _named(self, part: str, words: str) -> str:
        return f"{part}: {words}" if len(self.parts) > 1 else words

    def _figures(self, parts: Sequence[int], reason: str) -> Figures:
        """In one pass: every request asks for them, and so does everybody who is told of it."""
        is_final, lines = self._has_ended, []
        for line in self.lines:
            if not line.is_overhead:
                if line.windows:
                    lines.append(line)
            elif is_final and line.windows:
                is_final = line.is_settled
        energy_uj: int | None = 0
        provisional_uj: int | None = 0
        idle_share_uj: int | None = 0
        for line in lines:
            for part in parts:
                tally = line.tallies[part]
                now_uj, foreseen_uj, idle_uj = tally.energy_uj, tally.provisional_uj, tally.idle_share_uj
                if tally.charged != line.windows:
                    is_final, now_uj = False, foreseen_uj
                energy_uj = None if energy_uj is None or now_uj is None else energy_uj + now_uj
                if provisional_uj is not None:
                    provisional_uj = None if foreseen_uj is None else provisional_uj + foreseen_uj
                if idle_share_uj is not None:
                    idle_share_uj = None if idle_uj is None else idle_share_uj + idle_uj
        if not lines:
            energy_uj = provisional_uj = idle_share_uj = None
            reason = NEVER_RAN if is_final else reason
        if reason:
            energy_uj = None
        state = State.PROVISIONAL if not is_final else State.UNKNOWN if reason else State.SETTLED
        if not is_final:  # the share of some windows alone would look like that of all
            idle_share_uj = None
        interval_uj = None
        if state is State.SETTLED and energy_uj is not None:
            # Lines of one batch are wrong together, as are the windows of a line; two counters are not.
            deviations_uj = [math.fsum([line.tallies[part].deviation_uj for line in lines]) for part in parts]
            half_uj = 1.96 * math.hypot(*deviations_uj)
            interval_uj = max(0, math.floor(energy_uj - half_uj)), math.ceil(energy_uj + half_uj)
        return Figures(state, energy_uj, interval_uj, idle_share_uj, provisional_uj, reason)


def _sum(amounts: list[int | None]) -> int | None:
    """None where nothing is to be summed, or part of it is not known."""
    if len(amounts) == 1:
        return amounts[0]
    values = [amount for amount in amounts if amount is not None]
    return sum(values) if values and len(values) == len(amounts) else None


class Work(NamedTuple):
    """What a step of a language model computed for one of its sequences."""

    computed: int  # tokens that went through its layers
    pairs: int = 0  # of a token of a prompt and one that it attended to, itself among them
    logits: int = 0  # rows of them: one for each next token that was chosen, or scored
    read: int = 0  # tokens in the cache that a sequence attended to whose prompt had been read
    begins: bool = False  # whether it is the first of its sequence, which is counted here


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The interval in which one batch ran, by the device's own events where it has some: from its first copy
    to the device to its result. The host's stamps, which hold it, end with the last copy back.

    Instants are on the host's monotonic clock.
    """

    variant: str
    start_ns: int
    end_ns: int
    lengths: tuple[int, ...]  # true tokens of each sequence; of a step those that it computed
    padded_length: int  # tokens of each row that was computed; of a step, which pads nothing, the most of one
    lines: tuple[Line, ...] = ()  # the receipt lines to charge, one per sequence; none for a warm-up
    is_first_run: bool = False  # of its shape; it may compile, tune or allocate: nothing is learned from it
    rested_ns: int = 0  # for how long the device had done nothing before
    packed_rows: int = 0  # how many rows its sequences shared; 0: each had a row of its own
    host_ns: tuple[int, int] | None = None  # the host's own start and end; None: they are the above
    cpu_ns: int | None = None  # CPU time that it took, the event loop's for its requests too; None: not known
    # Of `cpu_ns`, for each of its sequences alone: what the event loop took, and choosing its tokens.
    own_ns: tuple[int, ...] = ()
    lane: int = 0  # which of the lanes that draw on a counter ran it: windows of two may overlap
    work: tuple[Work, ...] = ()  # of a step, for each of its sequences; a batch of rows has none

    @property
    def is_warmup(self) -> bool:
        return not self.lines

    @property
    def computed_tokens(self) -> int:
        if self.work:
            return sum(self.lengths)
        return (self.packed_rows or len(self.lengths)) * self.padded_length

    @property
    def sequences(self) -> int:
        """Those that are counted with it: each once, in however many windows it runs."""
        return sum(work.begins for work in self.work) if self.work else len(self.lengths)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def held_ns(self) -> int:
        """For how long the host was at it."""
        start_ns, end_ns = self.host_ns or (self.start_ns, self.end_ns)
        return end_ns - start_ns


class Charge(NamedTuple):
    """What one receipt line is charged."""

    line: Line
    energy_uj: int | None  # None when unknown; then `reason` says why
    deviation_uj: float
    idle_share_uj: int | None
    reason: str = ""
    warning: str = ""  # what else may be in the figure; empty when nothing is known of


class IdleShare(NamedTuple):
    """What of the idle draw is a request's by its time in flight, once nothing more will be."""

    receipt: Receipt
    amount_uj: int | None  # None when unknown
