"""The books: what the meter has counted, moved into accounts and onto receipts, in whole microjoules.

What has been counted and given to nobody is the pool. Nothing is ever booked that is not in it, so that the
accounts cannot exceed the meter. Decides nothing: the accountant says what is booked where.
"""

from __future__ import annotations

import math

from wattserve_server.energy.attribution import split_exact
from wattserve_server.energy.costlaw import LawView, split_weights
from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.openbatches import Entry
from wattserve_server.energy.window import Charge, Window


class Books:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._pool_uj = 0

    @property
    def pool_j(self) -> float:
        return self._pool_uj / 1e6

    def count(self, amount_uj: int) -> None:
        """The meter has counted this much more, and its edge has been reached."""
        self._pool_uj += amount_uj

    def to_idle(self, joules: float) -> float:
        """Joules booked; so with the next two."""
        amount_uj = self._take(joules)
        self._ledger.to_idle(amount_uj)
        return amount_uj / 1e6

    def to_unattributed(self, joules: float) -> float:
        amount_uj = self._take(joules)
        self._ledger.to_unattributed(amount_uj)
        return amount_uj / 1e6

    def to_warmup(self, joules: float) -> float:
        amount_uj = self._take(joules)
        self._ledger.to_warmup(amount_uj)
        return amount_uj / 1e6

    def to_gap(self, amount_uj: int) -> None:
        """What was counted over a gap; what was left from before it explains nothing any more."""
        self._ledger.to_gap(amount_uj)
        self._ledger.to_unattributed(self._pool_uj - amount_uj)
        self._pool_uj = 0

    def charge(
        self, entry: Entry, joules: float, deviation_j: float, law: LawView
    ) -> tuple[float, list[Charge]]:
        """Book the energy of an entry's batches; the joules booked, and its receipt lines' charges.

        deviation_j: standard deviation of one of its batches' energy."""
        amount_uj = self._take(joules)
        if entry.kind.is_warmup:
            self._ledger.to_warmup(amount_uj)
            return amount_uj / 1e6, []
        charges: list[Charge] = []
        shares = split_exact(amount_uj, [1.0] * len(entry.windows))
        for window, share_uj, idle_j in zip(entry.windows, shares, entry.idle_share_j, strict=True):
            charges += self._charge(window, share_uj, deviation_j * 1e6, idle_j, law, entry.warning)
        return amount_uj / 1e6, charges

    def no_figure(self, window: Window, reason: str) -> list[Charge]:
        self._ledger.to_unknown(len(window.lines))
        return [Charge(line, None, 0.0, None, reason) for line in window.lines]

    def _charge(
        self,
        window: Window,
        amount_uj: int,
        deviation_uj: float,
        idle_j: float,
        law: LawView,
        warning: str,
    ) -> list[Charge]:
        self._ledger.to_active(
            window.variant, amount_uj, len(window.lengths), sum(window.lengths), window.computed_tokens
        )
        weights = split_weights(law, window)
        whole = math.fsum(weights)
        # What is shown has been booked: never more than the idle account holds.
        idle_uj = min(int(idle_j * 1e6), self._ledger.idle_uj - self._ledger.idle_shared_uj)
        self._ledger.show_idle(idle_uj)
        return [
            Charge(line, energy_uj, deviation_uj * weight / whole, idle_share_uj, warning=warning)
            for line, weight, energy_uj, idle_share_uj in zip(
                window.lines,
                weights,
                split_exact(amount_uj, weights),
                split_exact(idle_uj, weights),
                strict=True,
            )
        ]

    def _take(self, joules: float) -> int:
        """Microjoules taken from the pool: what it holds of this."""
        amount_uj = min(max(round(joules * 1e6), 0), self._pool_uj)
        self._pool_uj -= amount_uj
        return amount_uj
