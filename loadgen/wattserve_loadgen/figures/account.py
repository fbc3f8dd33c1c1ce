"""What a cell cost: the ledger's growth over the cell, held against the receipts of its requests.

Pure. Independent ways to the same joules, and their differences are part of the result:

    measured  = active of every variant + warm-up + idle + unattributed + gap + pending   (accounts residual)
    active of this cell's variant = sum of this cell's receipts + failed requests     (receipts residual)
    active and idle per request   = the meter's own count over the window / answers   (meter difference)

Where there are no receipts, the growth has another `method` (`growth_above_rest`), and nothing can close.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wattserve_loadgen.model.cells import CellEnergy, MeterWindow, Record

if TYPE_CHECKING:  # results are read where nothing is asked, and grpc is not loaded
    from wattserve_client import EnergyReport

RECEIPTS = "receipts"
ABOVE_REST = "loadgen's own meter over the window, less the power at rest measured before the sweep"
ACCOUNTS = ("active_uj", "other_active_uj", "idle_uj", "unattributed_uj", "gap_uj", "pending_uj")
_SUMMED = (*ACCOUNTS, "measured_uj", "gap_count", "gap_seconds")  # over ledgers
_AS_GROWN = (*ACCOUNTS, "measured_uj", "accounts_residual_uj", "gap_count", "gap_seconds", "method")
# Refused before a batch: never in a ledger. Any other failure may have been served all the same.
_REFUSED = frozenset(
    (
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    )
)


@dataclass(frozen=True)
class LedgerGrowth:
    """The ledger after a cell less the ledger before it; microjoules, None where the server has no figure."""

    seconds: float | None = None
    measured_uj: int | None = None
    active_uj: int | None = None  # of the cell's variant
    other_active_uj: int | None = None
    idle_uj: int | None = None
    unattributed_uj: int | None = None
    gap_uj: int | None = None
    pending_uj: int | None = None
    sequences: int = 0
    gap_count: int = 0
    gap_seconds: float = 0.0
    reason: str = ""  # why there is nothing to compare, or ""
    method: str = RECEIPTS
    by_server: Mapping[str, LedgerGrowth] = field(default_factory=dict)  # of a fleet, by address

    @property
    def accounts_residual_uj(self) -> int | None:
        accounts: list[int | None] = [getattr(self, name) for name in ACCOUNTS]
        known = [account for account in accounts if account is not None]
        if self.measured_uj is None or len(known) < len(accounts):
            return None
        return self.measured_uj - sum(known)


def ledger_of(report: EnergyReport, device: str) -> EnergyReport:
    """The ledger of the meter of `device`; the only one, where the server keeps one for all."""
    for ledger in (report, *report.other_devices):
        if ledger.device == device:
            return ledger
    if report.other_devices:
        reason = f"the server keeps no ledger for {device or 'no device'}"
        return replace(report, measured_uj=None, unknown_reason=reason)
    return report


def ledgers_of(report: EnergyReport, device: str, variant: str) -> tuple[EnergyReport, ...]:
    """Where the joules of a variant on `device` stand: the device's ledger, then those of counters that it
    shares with other devices, such as their host's."""
    own = ledger_of(report, device)
    return own, *(
        ledger
        for ledger in (report, *report.other_devices)
        if ledger.device != own.device and any(energy.variant == variant for energy in ledger.active)
    )


def pending_receipts(report: EnergyReport) -> int:
    """On all devices."""
    return sum(ledger.pending_receipts for ledger in (report, *report.other_devices))


def growth_of(
    before: EnergyReport, after: EnergyReport, device: str, variant: str, lanes: Sequence[str] = ()
) -> LedgerGrowth:
    """Of all ledgers that hold joules of a variant on `device`, together: from the last report before a cell
    to the first one after it in which nothing is pending. What they have no sum of is the device's own, but
    for sequences: those of `lanes`, other devices that it runs on, are others."""
    growths = [
        ledger_growth(ledger_of(before, ledger.device), ledger, variant)
        for ledger in ledgers_of(after, device, variant)
    ]
    for growth in growths:
        if growth.reason:
            return growth
    own, *shared = growths
    sums = {name: sum(getattr(growth, name) for growth in growths) for name in _SUMMED}
    sequences = own.sequences + sum(
        ledger_growth(ledger_of(before, ledger.device), ledger, variant).sequences
        for ledger in after.other_devices
        if ledger.device in lanes
    )
    return replace(own, **sums, sequences=sequences) if shared else own


def growth_of_fleet(growths: Mapping[str, LedgerGrowth]) -> LedgerGrowth:
    """Of all its servers together, by their addresses. Each keeps time by itself: what is idle per second is
    their idle draws' sum, so the seconds are those of one."""
    first = next(iter(growths.values()))
    for growth in growths.values():
        if growth.reason:
            return replace(growth, by_server=growths)
    names = (*_SUMMED, "sequences")
    sums = {name: sum(getattr(growth, name) for growth in growths.values()) for name in names}
    known = [growth.seconds for growth in growths.values() if growth.seconds is not None]
    seconds = sum(known) / len(known) if len(known) == len(growths) else None
    return replace(first, **sums, seconds=seconds, by_server=growths)


def ledger_growth(before: EnergyReport, after: EnergyReport, variant: str) -> LedgerGrowth:
    """Of one ledger."""
    if before.measured_uj is None or after.measured_uj is None:
        reason = after.unknown_reason or before.unknown_reason or "the server has no meter"
        return LedgerGrowth(reason=reason)
    if not (math.isfinite(before.gap_seconds) and math.isfinite(after.gap_seconds)):
        return LedgerGrowth(reason="the server says that its meter's gaps last no finite time")

    def grown(name: str) -> int:
        """An account that the server does not have is absent, and so 0."""
        return (getattr(after, name) or 0) - (getattr(before, name) or 0)

    then = {energy.variant: (energy.active_uj or 0, energy.sequences) for energy in before.active}
    active = other = sequences = 0
    for now in after.active:
        then_uj, then_sequences = then.get(now.variant, (0, 0))
        sequences += now.sequences - then_sequences
        if now.variant == variant:
            active += (now.active_uj or 0) - then_uj
        else:
            other += (now.active_uj or 0) - then_uj
    gap_seconds = after.gap_seconds - before.gap_seconds
    # Both instants of a report are placed on the wall clock by one offset: no step is in their difference.
    before_ns = before.until_unix_ns - before.since_unix_ns
    seconds = (after.until_unix_ns - after.since_unix_ns - before_ns) / 1e9 - gap_seconds
    return LedgerGrowth(
        seconds=seconds if seconds > 0 else None,
        measured_uj=grown("measured_uj"),
        active_uj=active,
        other_active_uj=other + grown("warmup_uj"),
        idle_uj=grown("idle_uj"),
        unattributed_uj=grown("unattributed_uj"),
        gap_uj=grown("gap_uj"),
        pending_uj=grown("pending_uj"),
        sequences=sequences,
        gap_count=after.gap_count - before.gap_count,
        gap_seconds=gap_seconds,
    )


def growth_above_rest(
    meter: MeterWindow,
    rest_watts: float | None,
    rest_reason: str = "the power at rest was not measured before the sweep",
) -> LedgerGrowth:
    """The growth of a peer that keeps no ledger: what the meter counted over the window above the power at
    rest is active, the rest is idle. `rest_reason`: why the power at rest is unknown, where it is.
    """
    if meter.measured_uj is None:
        return LedgerGrowth(reason=meter.reason, method=ABOVE_REST)
    if rest_watts is None:
        return LedgerGrowth(reason=rest_reason, method=ABOVE_REST)
    idle_uj = round(rest_watts * meter.seconds * 1e6)
    if idle_uj > meter.measured_uj:
        reason = "the meter counted less than the power at rest before the sweep"
        return LedgerGrowth(reason=reason, method=ABOVE_REST)
    return LedgerGrowth(
        seconds=meter.seconds,
        measured_uj=meter.measured_uj,
        active_uj=meter.measured_uj - idle_uj,
        idle_uj=idle_uj,
        method=ABOVE_REST,
    )


@dataclass(frozen=True)
class _Active:
    """Active microjoules of `requests` answered ones."""

    microjoules: float
    requests: int
    tokens: float
    padded_tokens: float
    failed_uj_per_request: float | None

    @property
    def per_request(self) -> float | None:
        return self.microjoules / self.requests if self.requests else None

    @property
    def per_token(self) -> float | None:
        """None for images, whose energy says nothing of tokens."""
        return self.microjoules / self.tokens if self.tokens else None

    @property
    def per_padded_token(self) -> float | None:
        return self.microjoules / self.padded_tokens if self.padded_tokens else None


def cell_energy(
    records: Sequence[Record],
    growth: LedgerGrowth,
    window_seconds: float,
    completed: int,
    meter: MeterWindow | None = None,
) -> CellEnergy:
    """A cell's energy per request, and the sums that must agree.

    `records` are all requests of the cell; `completed` of them were answered within the window, whenever
    they were sent.
    """
    answered = [record for record in records if record.ok]
    window = [record for record in answered if record.in_window]
    settled = [record for record in window if record.energy_uj is not None]
    receipts_uj = sum(record.energy_uj for record in answered if record.energy_uj is not None)
    by_receipts = growth.method == RECEIPTS
    residual = growth.active_uj - receipts_uj if growth.active_uj is not None and by_receipts else None
    failed_uj = _failed_per_request(len(records) - len(answered), answered, residual)
    if by_receipts:
        active = _by_receipts(settled, failed_uj)
        reasons = Counter(
            record.energy_reason or "no reason given" for record in window if record.energy_uj is None
        )
    else:
        active = _above_rest(window, growth, completed)
        reasons = Counter()
    idle_watts = idle_uj_per_request = None
    if growth.idle_uj is not None and growth.seconds:
        idle_watts = growth.idle_uj / 1e6 / growth.seconds
        idle_uj_per_request = idle_watts * 1e6 * window_seconds / completed if completed else None
    measured = None if meter is None else meter.measured_uj
    return CellEnergy(
        settled=len(settled),
        unknown=reasons.total(),
        unknown_reasons=dict(reasons),
        active_uj_per_request=active.per_request,
        failed_uj_per_request=active.failed_uj_per_request,
        active_uj_per_token=active.per_token,
        active_uj_per_padded_token=active.per_padded_token,
        idle_uj_per_request=idle_uj_per_request,
        idle_watts=idle_watts,
        ledger_seconds=growth.seconds,
        receipts_uj=receipts_uj if settled else None,
        receipts_residual_uj=residual if settled else None,
        foreign_sequences=_foreign(records, growth),
        reason=growth.reason or ("" if active.requests else _most_common(reasons)),
        meter=meter,
        meter_uj_per_request=measured / completed if measured is not None and completed else None,
        **{name: getattr(growth, name) for name in _AS_GROWN},
    )


def _by_receipts(settled: Sequence[Record], failed_uj_per_request: float | None) -> _Active:
    """What the receipts say, and what failed requests burned on top."""
    uj = sum(record.energy_uj for record in settled if record.energy_uj is not None)
    return _Active(
        uj + (failed_uj_per_request or 0.0) * len(settled),
        len(settled),
        sum(record.tokens for record in settled if record.tokens is not None),
        sum(record.padded_tokens for record in settled if record.padded_tokens is not None),
        failed_uj_per_request,
    )


def _above_rest(window: Sequence[Record], growth: LedgerGrowth, completed: int) -> _Active:
    """By the meter alone, which counts failed requests too: per answer that came within the window, each as
    long as those of the window are on average.
    """
    if growth.active_uj is None or not completed:
        return _Active(0.0, 0, 0.0, 0.0, None)
    tokens = sum(record.tokens for record in window if record.tokens is not None)
    return _Active(
        growth.active_uj, completed, tokens * completed / len(window) if window else 0.0, 0.0, None
    )


def _failed_per_request(failed: int, answered: Sequence[Record], residual_uj: int | None) -> float | None:
    """Energy of failed requests per answered one: what the variant used beyond our receipts, of which those
    that are unknown cost what a known one costs on average.
    """
    known = [record.energy_uj for record in answered if record.energy_uj is not None]
    if not failed or not known or residual_uj is None:
        return None
    unknown_uj = (len(answered) - len(known)) * sum(known) / len(known)
    return max(0.0, residual_uj - unknown_uj) / len(answered)


def _foreign(records: Sequence[Record], growth: LedgerGrowth) -> int:
    """Sequences in the ledger that cannot be ours."""
    ours = sum(len(record.rows) for record in records if record.ok or record.code not in _REFUSED)
    return max(0, growth.sequences - ours)


def _most_common(reasons: Counter[str]) -> str:
    return reasons.most_common(1)[0][0] if reasons else "no request was answered in the window"
