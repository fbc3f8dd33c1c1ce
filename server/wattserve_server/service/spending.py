"""What a request may cost, looked at before it runs: its own limit, and its tenant's budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wattserve_server.energy.receipt import Receipt
from wattserve_server.errors import EnergyLimitError, LawUnknownError
from wattserve_server.service.budgets import Budgets, Held, Refuse
from wattserve_server.service.keys import ApiKey
from wattserve_server.service.methods import CALL

if TYPE_CHECKING:
    from wattserve_server.engine.engine import Engine
    from wattserve_server.engine.roster import HostedVariant
    from wattserve_server.engine.tasks import Item

WARNING = "wattserve-budget-warning"  # in the trailing metadata of a call, or a header


class Spending:
    """Of one request: `allow` it, then say how it `ended`. key: as the file has it now. Without budgets it
    counts too, for another key of its tenant may have some, or be given some. tenant: for whom it was
    shown."""

    __slots__ = ("_budgets", "_held", "_key", "_tenant", "warning")

    def __init__(self, budgets: Budgets | None = None, key: ApiKey | None = None, tenant: str = "") -> None:
        self._budgets = budgets if key is not None else None
        self._key, self._tenant = key, tenant
        self._held: Held | None = None
        self.warning = ""  # that a soft budget is used up, once it is let in

    def check(self) -> None:
        """Before anything is done for it. Raises SpentError."""
        if self._budgets is not None and self._key is not None:
            self._budgets.check(self._tenant, self._key)

    def allow(
        self,
        engine: Engine,
        hosted: HostedVariant,
        items: Sequence[Item],
        most_uj: int | None = None,
        field: str = "max_energy_uj",
        scores: bool = False,
    ) -> None:
        """items: its sequences. most_uj: that it may cost, as `field` of it says. scores: as of
        `Engine.foreseen_uj`.

        Raises SpentError, EnergyLimitError with the prediction, or LawUnknownError."""
        if most_uj is None and self._budgets is None:
            return
        is_asked = most_uj is not None or self._is_bound()
        foreseen_uj = engine.foreseen_uj(items, hosted, scores) if is_asked else 0
        if most_uj is not None:
            _check_limit(foreseen_uj, most_uj, hosted.choice.name, field)
        if self._budgets is not None and self._key is not None:
            variant = hosted.choice.name
            self.warning = self._budgets.check_more(self._tenant, self._key, variant, foreseen_uj)
            self._held = self._budgets.hold(self._tenant, variant, foreseen_uj or 0)
            if self.warning and (call := CALL.get(None)) is not None:
                call.warn(WARNING, self.warning)

    def _is_bound(self) -> bool:
        return (
            self._budgets is not None
            and self._key is not None
            and self._budgets.bound(self._tenant, self._key)
        )

    def opened(self, receipt: Receipt) -> None:
        """It has a receipt, which may become final before its caller has read all: a stream's does."""
        if self._budgets is not None and self._held is not None:
            self._budgets.opened(self._held, receipt.receipt_id)

    def waits(self, refuse: Refuse) -> None:
        """Until its first step it may be refused, where others have used the budget up."""
        if self._budgets is not None and self._held is not None and self._key is not None:
            self._budgets.waits(self._held, self._key, refuse)

    def used(self, uj: int) -> None:
        """So much so far, where that is more than was foreseen: of a generation only the prompt is."""
        if self._budgets is not None and self._held is not None and uj > self._held.uj:
            self._budgets.count(self._held, uj)

    def ended(self, receipt: Receipt | None) -> None:
        """receipt: None where it has none. What of it runs on goes on counting."""
        if self._budgets is None or self._held is None:
            return
        held, self._held = self._held, None
        if receipt is None or not receipt.ran:
            self._budgets.release(held)
        else:
            self._budgets.ran(held, receipt)


def _check_limit(foreseen_uj: int | None, most_uj: int, variant: str, field: str) -> None:
    if foreseen_uj is None:
        raise LawUnknownError(
            f"what this would cost with {variant} is not known beforehand: its law is not learned yet; leave "
            "the limit out, or come back later",
            field,
        )
    if foreseen_uj > most_uj:
        raise EnergyLimitError(
            f"this would cost about {foreseen_uj} microjoules with {variant}, more than {most_uj}",
            field,
            foreseen_uj,
        )
