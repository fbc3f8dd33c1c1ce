"""What a minute's receipts add up to, by tenant and variant: the figures of `schema.FIGURES`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from wattserve_server.accounts.schema import AMOUNTS, FIGURES
from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.receipt import ACCELERATOR, HOST, Outcome, Receipt, Role

MINUTE_NS = 60 * 10**9

Key = TypeVar("Key")

UsageKey = tuple[int, str, str]  # minute, tenant, variant
AccountKey = tuple[int, str]  # minute, counter

_PLACES = {name: place for place, name in enumerate(FIGURES)}
_ENERGIES = {
    ACCELERATOR: (_PLACES["accelerator_uj"], _PLACES["accelerator_idle_uj"]),
    HOST: (_PLACES["host_uj"], _PLACES["host_idle_uj"]),
}


def count(figures: list[int], receipt: Receipt) -> None:
    """Add a final receipt to these, which are in the order of `FIGURES`. Joules that a counter has charged to
    a receipt whose sum is unknown, for want of another one's, are counted all the same: the bill adds up."""
    figures[0] += 1
    if receipt.outcome is not Outcome.COMPLETED:
        figures[1] += receipt.outcome is Outcome.FAILED
        figures[2] += receipt.outcome is Outcome.CANCELLED
    figures[3] += receipt.is_unknown
    for line in receipt.lines:
        if not line.windows or line.is_overhead:
            continue
        figures[5] += line.chosen
        figures[6] += line.chosen
        if line.role is not Role.OUTPUT:  # its tokens are those that were chosen, but for the last one
            figures[4] += 1
            figures[5] += line.tokens
        for part, tally in zip(receipt.parts, line.tallies, strict=True):
            energy, idle = _ENERGIES[part]
            figures[energy] += tally.booked_uj
            figures[idle] += tally.booked_idle_uj


def amounts_of(ledger: Ledger) -> list[int]:
    """In the order of `AMOUNTS`."""
    return [getattr(ledger, name) for name in AMOUNTS]


@dataclass(slots=True)
class Rollups:
    """What was not written yet."""

    usage: dict[UsageKey, list[int]] = field(default_factory=dict)
    accounts: dict[AccountKey, list[int]] = field(default_factory=dict)

    def add(self, receipt: Receipt, final_unix_ns: int) -> None:
        key = final_unix_ns // MINUTE_NS, receipt.tenant, receipt.variant
        figures = self.usage.get(key)
        if figures is None:
            figures = self.usage[key] = [0] * len(FIGURES)
        count(figures, receipt)

    def add_accounts(self, unix_ns: int, gained: Mapping[str, list[int]]) -> None:
        """gained: by counter, since the last time."""
        for counter, amounts in gained.items():
            if any(amounts):
                _add(self.accounts, (unix_ns // MINUTE_NS, counter), amounts)

    def add_all_accounts(self, more: Rollups) -> None:
        for key, amounts in more.accounts.items():
            _add(self.accounts, key, amounts)

    def by_hour(self) -> Rollups:
        """The same, with hours for minutes."""
        hours = Rollups()
        for (minute, tenant, variant), figures in self.usage.items():
            _add(hours.usage, (minute // 60, tenant, variant), figures)
        for (minute, counter), amounts in self.accounts.items():
            _add(hours.accounts, (minute // 60, counter), amounts)
        return hours


def _add(sums: dict[Key, list[int]], key: Key, more: list[int]) -> None:
    known = sums.get(key)
    sums[key] = more if known is None else [one + other for one, other in zip(known, more, strict=True)]
