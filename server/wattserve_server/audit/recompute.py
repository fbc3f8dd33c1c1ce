"""Receipts made anew from an audit file: by the accountants and receipts of the server, told what the file
says that they were told, and from nothing else.

Each is compared with what the file says that it was told, and after each step every ledger must add up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from wattserve_common.words import counted
from wattserve_server.audit import events
from wattserve_server.audit.codec import Decoder
from wattserve_server.audit.file import BlockReader, Header, this_machine
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.ledger import ACCOUNTS_UJ, Ledger
from wattserve_server.energy.reading import Energy
from wattserve_server.energy.receipt import Charge, Figures, Line, Outcome, Receipt
from wattserve_server.errors import ConfigError

log = logging.getLogger(__name__)

ELSEWHERE_UJ = 1  # so far off may a figure be on another machine, or with other versions
MOST_SHOWN = 20  # differences that are kept in words


@dataclass(slots=True)
class Counter:
    """One counter of the file, and what its readings come to."""

    opened: events.Opened
    accountant: Accountant
    charged_uj: int = 0  # to receipts
    idle_uj: int = 0  # shown on receipts
    readings: int = 0
    counted_uj: int = 0  # from the first reading to the last one
    has_fallen: bool = False  # at a wrap-around, or a fault
    ended_with: Mapping[str, int] = field(default_factory=dict)  # its accounts, where the file tells them
    _last: Energy | None = None

    @property
    def ledger(self) -> Ledger:
        return self.accountant.ledger

    def read(self, energy: Energy) -> None:
        self.readings += 1
        if self._last is not None:
            self.counted_uj += energy.uj - self._last.uj
            self.has_fallen |= energy < self._last
        self._last = energy

    def what_does_not_close(self) -> str:
        """Empty where every microjoule stands in one account, and receipts hold what is active and shared."""
        ledger = self.ledger
        if residual_uj := ledger.residual_uj():
            return f"measured less all accounts is {residual_uj} uJ, not 0"
        if ledger.active_uj != self.charged_uj:
            return f"receipts were charged {self.charged_uj} uJ of an active account of {ledger.active_uj} uJ"
        if not ledger.idle_shared_uj == self.idle_uj <= ledger.idle_uj:
            return f"receipts show {self.idle_uj} uJ of {ledger.idle_shared_uj} uJ of idle that are shared"
        return ""

    def what_is_not_as_it_ended(self, tolerance_uj: int) -> str:
        """Empty where the ledger is that with which the server ended. Elsewhere, where each charge may be off
        by a little, what was measured must be the same."""
        return ", ".join(
            f"{name} was {was_uj:,}, and is {getattr(self.ledger, name):,}"
            for name, was_uj in self.ended_with.items()
            if was_uj != getattr(self.ledger, name) and (name == "measured_uj" or not tolerance_uj)
        )

    def what_is_not_measured(self) -> str:
        """Empty where the ledger holds what the counter went up by; where that fell, nobody can say."""
        missing_uj = self.counted_uj - self.ledger.measured_uj
        if self.has_fallen or self.ledger.gap_count or not missing_uj:
            return ""
        return f"the counter went up by {self.counted_uj} uJ, and {self.ledger.measured_uj} uJ were measured"


@dataclass(slots=True)
class Recomputed:
    header: Header
    tolerance_uj: int  # 0 on the same machine with the same versions
    counters: list[Counter] = field(default_factory=list)
    receipts: int = 0  # that were told final figures
    differences: int = 0  # of these, that are told others now
    failures: list[str] = field(default_factory=list)  # the first ones: what is not as it was or must be
    open_receipts: int = 0  # that were charged and had not been told
    is_whole: bool = False
    cut_at: int | None = None  # the byte at which a block begins that is not whole

    @property
    def is_empty(self) -> bool:
        """There is nothing of which anything could be proved."""
        return not (self.receipts or any(counter.readings for counter in self.counters))

    @property
    def is_proved(self) -> bool:
        return not (self.failures or self.is_empty)

    def fail(self, words: str) -> None:
        if len(self.failures) < MOST_SHOWN:
            self.failures.append(words)


# What is called with each receipt, what the file says that it was told and what it is told now: of all parts
# together, then of each where there are several.
OnReceipt = Callable[[Receipt, Sequence[Figures], Sequence[Figures]], None]


def recompute(
    path: Path,
    on_receipt: Sequence[OnReceipt] = (),
    make_accountant: Callable[..., Accountant] = Accountant,
) -> Recomputed:
    """Raises ConfigError for a file that is none, or says what no server says."""
    blocks = BlockReader(path)
    is_same = blocks.header.made_on == this_machine()
    made = Recomputed(blocks.header, 0 if is_same else ELSEWHERE_UJ)
    run = _Run(made, on_receipt, make_accountant)
    decoder = Decoder()
    for number, block in enumerate(blocks, 2):
        if made.is_whole:
            made.fail("a block behind the end, where a server says nothing more")
            break
        with _sense(path, number):
            for event in decoder.decode(block):
                run.hear(event)
    made.cut_at = None if made.is_whole else blocks.cut_at
    if made.is_whole and blocks.cut_at is not None:
        made.fail(f"bytes behind the end, from byte {blocks.cut_at:,}, that are not this server's")
    made.open_receipts = len(run.entered)
    if run.behind_end:
        made.fail(f"{counted(run.behind_end, 'event')} behind the end, where a server says nothing more")
    for counter in made.counters:
        if words := counter.what_is_not_measured():
            made.fail(f"{counter.opened.name}: {words}")
        if words := counter.what_is_not_as_it_ended(made.tolerance_uj):
            made.fail(f"{counter.opened.name}, in the end: {words}")
    return made


@contextmanager
def _sense(path: Path, block: int) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{path}: block {block} says what no server of this version says ({type(error).__name__}: "
            f"{error}); recompute it with the version that made it"
        ) from None


class _Run:
    """The run again."""

    def __init__(
        self, made: Recomputed, on_receipt: Sequence[OnReceipt], make_accountant: Callable[..., Accountant]
    ) -> None:
        self._made, self._on_receipt, self._make_accountant = made, on_receipt, make_accountant
        self._counters: dict[int, Counter] = {}
        self.behind_end = 0  # events
        self._told: set[str] = set()  # ids of receipts
        self.entered: dict[Receipt, dict[tuple[Line, int], int]] = {}  # windows, by line and counter

    def hear(self, event: events.Event) -> None:
        if self._made.is_whole:
            self.behind_end += 1
        elif isinstance(event, events.Opened):
            counter = Counter(event, self._make_accountant(**event.settings))
            self._counters[event.counter] = counter
            self._made.counters.append(counter)
        elif isinstance(event, events.Told):
            self._compare(event)
        elif isinstance(event, events.Closed):
            ended_with = {name: int(event.accounts[name]) for name in ACCOUNTS_UJ}
            self._counters[event.counter].ended_with = ended_with
        elif isinstance(event, events.Ended):
            self._made.is_whole = True
        else:
            self._tell(event, self._counters[event.counter])

    def _tell(self, event: events.Heard, counter: Counter) -> None:
        if event.method == "observe":
            counter.read(event.arguments[0].energy)
        if event.method == "advance":
            self._advance(event, counter)
        else:
            getattr(counter.accountant, event.method)(*event.arguments)

    def _advance(self, event: events.Heard, counter: Counter) -> None:
        windows, known_until_ns = event.arguments
        for window in windows:
            for line in window.lines:
                self._enter(line, event.counter, len(window.lines))
        try:
            charges = counter.accountant.advance(windows, known_until_ns)
        except Exception:  # a bug: the server's sampler went on after it too
            log.exception("an accountant failed")
            charges = []
        for charge in charges:
            self._charge(charge, counter)
        for receipt, amount_uj in counter.accountant.idle_shares:
            receipt.share_idle(amount_uj, counter.opened.part)
            counter.idle_uj += amount_uj or 0
        counter.accountant.idle_shares.clear()
        if words := counter.what_does_not_close():
            self._made.fail(f"{counter.opened.name}, after {counter.readings} readings: {words}")

    def _enter(self, line: Line, counter: int, batch_size: int) -> None:
        """Every counter is told of each window; the first one that is makes the line enter it."""
        entered = self.entered.setdefault(line.receipt, {})
        entered[line, counter] = windows = entered.get((line, counter), 0) + 1
        if windows > line.windows:
            line.enter(batch_size)

    def _charge(self, charge: Charge, counter: Counter) -> None:
        charge.line.receipt.charge(charge, counter.opened.part)
        if not charge.line.is_overhead:
            counter.charged_uj += charge.energy_uj or 0
        counter.idle_uj += charge.idle_share_uj or 0

    def _compare(self, event: events.Told) -> None:
        receipt = event.receipt
        self.entered.pop(receipt, None)
        if event.outcome is not Outcome.OPEN:
            receipt.end(event.outcome)
        now = events.told(receipt).figures
        made = self._made
        made.receipts += 1
        if receipt.receipt_id in self._told:
            made.fail(f"receipt {receipt.receipt_id} was told twice")
        self._told.add(receipt.receipt_id)
        for told, figures in zip(event.figures, now, strict=True):
            if not _agree(told, figures, made.tolerance_uj):
                made.differences += 1
                words = f"was told {in_words(told)}, and is {in_words(figures)}"
                made.fail(f"receipt {receipt.receipt_id} {words}")
                break
        for call in self._on_receipt:
            call(receipt, event.figures, now)


def _agree(told: Figures, now: Figures, tolerance_uj: int) -> bool:
    amounts = zip(_amounts(told), _amounts(now), strict=True)
    is_near = all(
        one == other if one is None or other is None else abs(one - other) <= tolerance_uj
        for one, other in amounts
    )
    return is_near and (told.state, told.reason) == (now.state, now.reason)


def _amounts(figures: Figures) -> tuple[int | None, ...]:
    low_uj, high_uj = figures.interval_uj or (None, None)
    return figures.energy_uj, low_uj, high_uj, figures.idle_share_uj


def in_words(figures: Figures) -> str:
    """In microjoules, to the last one."""
    if figures.energy_uj is None:
        return f"{figures.state.value} ({figures.reason})"
    bounds = f" ({figures.interval_uj[0]:,} to {figures.interval_uj[1]:,})" if figures.interval_uj else ""
    idle = "unknown" if figures.idle_share_uj is None else f"{figures.idle_share_uj:,} uJ"
    return f"{figures.energy_uj:,} uJ{bounds} with {idle} of idle, {figures.state.value}"
