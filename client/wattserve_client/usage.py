"""What a server's account book holds of a span: what was used by whom, and what of it is nobody's.

Plain immutable values. Energies are whole microjoules.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What receipts that became final in the span add up to. A key that was not asked for is None."""

    tenant: str | None  # empty: of callers without one
    variant: str | None
    hour_unix_s: int | None  # when its hour began
    requests: int  # of which something ran
    failed: int  # of these, as are the next two
    cancelled: int
    unknown: int  # whose energy is not known in full
    sequences: int
    tokens: int
    output_tokens: int  # of `tokens`, those that were generated
    accelerator_uj: int  # active energy, as is host_uj
    host_uj: int
    accelerator_idle_uj: int  # idle draw that receipts show as theirs, as is host_idle_uj
    host_idle_uj: int

    @property
    def energy_uj(self) -> int:
        """Active energy and shared idle draw of all parts: what a bill and a budget count."""
        return self.accelerator_uj + self.host_uj + self.accelerator_idle_uj + self.host_idle_uj


@dataclass(frozen=True, slots=True)
class CounterUsage:
    """What the ledger of one counter gained in the span."""

    server: str  # under which name it writes to the book
    counter: str  # with the source of its joules: "host of cpu: estimated from CPU time"
    measured_uj: int
    active_uj: int
    warmup_uj: int
    idle_uj: int
    idle_shared_uj: int  # the part of idle_uj that receipts show
    unattributed_uj: int
    gap_uj: int

    @property
    def pending_uj(self) -> int:
        """By how much more was measured than booked: it may be less than nothing in a span whose beginning
        found much pending."""
        booked_uj = self.active_uj + self.warmup_uj + self.idle_uj + self.unattributed_uj + self.gap_uj
        return self.measured_uj - booked_uj


@dataclass(frozen=True, slots=True)
class AccountBreak:
    """A span in which something was used that is on no receipt of the book."""

    server: str
    from_unix_ns: int
    until_unix_ns: int
    reason: str
    receipts: int | None  # that are in the sums all the same; None: not known


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Of a span in whole minutes, or hours where minutes have left the book; its end is not in it."""

    since_unix_s: int
    until_unix_s: int
    rows: tuple[UsageRow, ...]
    of_all_tenants: bool  # and the accounts of the meter are told, and breaks that are over
    counters: tuple[CounterUsage, ...]
    breaks: tuple[AccountBreak, ...]
    sources: tuple[str, ...] = ()  # of the joules: "accelerator of cuda:0: measured by nvml:GPU-5f"
