"""Budgets: how many joules a tenant may use in an hour, a day or a month, whatever server it asks.

What counts is what a bill counts: active energy and shared idle draw, of all parts. It is the sum of what the
account book held when this server began, of the receipts that became final here since then, of what other
servers wrote meanwhile, and of what is not final yet: by its provisional figure, else by what the laws say
that it will cost. Both are of active energy; idle draw is added as final receipts have lately had it beside
theirs. A receipt that becomes final corrects it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from wattserve_server.energy.receipt import Receipt
from wattserve_server.errors import SpentError
from wattserve_server.service.budget import PERIODS, SOFT, Budget, begun_hour, end_hour, seconds_left
from wattserve_server.service.keys import ApiKey, Keys

# A receipt's idle draw counts for so much less with each that follows it: about the last twenty tell.
LATELY = 0.95
# For a hard budget, what is not final counts so many times before more is let in beside it: a flood can cost
# that much more than what was foreseen of it.
MARGIN = 8
# When to ask again, where what stands in the way is not final yet, or is a prediction, which can change.
_FINAL_IN_S = 1.0
_FORESEEN_ANEW_IN_S = 10.0

# What an account book holds of the hours from one to another, which is not in it: by server and tenant.
SpentBy = Callable[[int, int], Mapping[tuple[str, str], int]]

# Ends what still waits with that error; whether it did.
Refuse = Callable[[SpentError], bool]


@dataclass(slots=True)
class _Period:
    """What tenants have used in it."""

    begun_hour: int = 0
    own_uj: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    others_uj: Mapping[str, int] = field(default_factory=dict)  # by other servers, as the book last said


@dataclass(slots=True, eq=False)
class Held:
    """What a request counts while it is not final."""

    tenant: str
    variant: str
    uj: int  # active
    receipt_id: str = ""  # once it has one
    is_over: bool = False


class IdleBeside:
    """How much idle draw final receipts lately had beside their active energy: a tenant's of a variant, or
    everybody's where that tenant has had none."""

    def __init__(self) -> None:
        self._uj: dict[tuple[str, str], tuple[float, float]] = {}  # idle and active, by tenant and variant

    def learn(self, tenant: str, variant: str, active_uj: int, idle_uj: int) -> None:
        if active_uj <= 0:
            return
        for whose in {tenant, ""}:
            idle, active = self._uj.get((whose, variant), (0.0, 0.0))
            self._uj[whose, variant] = LATELY * idle + idle_uj, LATELY * active + active_uj

    def with_idle_uj(self, tenant: str, variant: str, active_uj: int) -> int:
        """No more than it is, while no receipt of that variant has become final."""
        idle, active = self._uj.get((tenant, variant)) or self._uj.get(("", variant), (0.0, 1.0))
        return active_uj + round(active_uj * idle / active)


class Budgets:
    """Belongs to the event loop. server: under whose name this one writes to the book. keys: those of now.
    unix_s: the clock by which receipts count. spent_by: waits for the book; it is called off the event loop,
    by `look`."""

    def __init__(
        self,
        server: str,
        keys: Callable[[], Keys],
        spent_by: SpentBy,
        unix_s: Callable[[], float],
    ) -> None:
        self._server, self._keys, self._spent_by, self._unix_s = server, keys, spent_by, unix_s
        self._periods = {period: _Period() for period in PERIODS}
        # Active energy of what is not final, by tenant and variant.
        self._open_uj: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._idle = IdleBeside()
        self._held: dict[str, Held] = {}  # by receipt, of what is not final
        # What may be refused still, by tenant and key; who has begun meanwhile is found out by trying.
        self._waiting: defaultdict[str, dict[ApiKey, dict[Held, Refuse]]] = defaultdict(dict)
        self._hour = -1  # the unix hour for which periods are those of now
        self._keys_seen: Mapping[str, tuple[tuple[str, ...], list[Budget]]] = {}
        self.begin()

    def begin(self) -> None:
        """Read what was used before this server began, also in hours of a period that lie ahead: its clock
        may have been set back. Waits for the book."""
        now_s = self._unix_s()
        for name, period in self._periods.items():
            period.begun_hour = begun_hour(name, now_s)
            for (server, tenant), uj in self._spent_by(period.begun_hour, end_hour(name, now_s)).items():
                if server == self._server:
                    period.own_uj[tenant] += uj
        self.take(self.look())

    def look(self) -> Mapping[str, tuple[int, Mapping[str, int]]]:
        """What other servers have used, for `take`. Waits for the book; any thread."""
        found = {}
        now_s = self._unix_s()
        for name in PERIODS:
            first = begun_hour(name, now_s)
            others: defaultdict[str, int] = defaultdict(int)
            for (server, tenant), uj in self._spent_by(first, end_hour(name, now_s)).items():
                if server != self._server:
                    others[tenant] += uj
            found[name] = first, others
        return found

    def take(self, looked: Mapping[str, tuple[int, Mapping[str, int]]]) -> None:
        self._roll()
        for name, (first, others_uj) in looked.items():
            if self._periods[name].begun_hour == first:
                self._periods[name].others_uj = others_uj
        for tenant in tuple(self._waiting):
            self._refuse_waiting(tenant)

    def spent_uj(self, tenant: str, name: str) -> int:
        """In the period of now, with what is not final."""
        return self._used_uj(tenant, name) + self._foreseen_uj(tenant)

    def _used_uj(self, tenant: str, name: str) -> int:
        self._roll()
        period = self._periods[name]
        return period.own_uj[tenant] + period.others_uj.get(tenant, 0)

    def _foreseen_uj(self, tenant: str) -> int:
        return sum(self._idle.with_idle_uj(tenant, *each) for each in self._open_uj[tenant].items())

    def bound(self, tenant: str, key: ApiKey) -> bool:
        """Whether there are any: of that key, or of another that may be shown for the tenant."""
        return bool(key.budgets) or tenant in self._keys().with_budgets

    def check(self, tenant: str, key: ApiKey) -> str:
        """Whether its budgets are used up, also by what is not final. key: that was shown for the tenant,
        whose it is or that may name it. Returns a warning, where a soft one is. Raises SpentError, which says
        when to ask again: when the period ends, or soon, where what stands in the way may change."""
        return self._check(tenant, key, 0, 1)

    def check_more(self, tenant: str, key: ApiKey, variant: str, more_uj: int | None) -> str:
        """As `check`, for a request that will use so much more active energy; None: nobody knows. Beside
        others that are not final it needs room for MARGIN times all of them."""
        return self._check(tenant, key, self._idle.with_idle_uj(tenant, variant, more_uj or 0), MARGIN)

    def _check(self, tenant: str, key: ApiKey, more_uj: int, margin: int) -> str:
        warning = ""
        open_uj = self._foreseen_uj(tenant)
        for budget in self._of(key):
            used_uj = self._used_uj(tenant, budget.period)
            times = margin if open_uj and budget.kind != SOFT else 1
            if _fits(used_uj + times * open_uj, times * more_uj, budget):
                continue
            words = f"tenant {tenant} has used {used_uj / 1e6:g} of {budget}"
            if open_uj:
                words += f"; what runs, waits or is not settled yet counts {open_uj / 1e6:g} J"
            if more_uj and used_uj + open_uj < budget.uj:
                words += f", and this would use {more_uj / 1e6:g} J"
            if times > 1 and _fits(used_uj + open_uj, more_uj, budget):
                words += f"; until it is settled, {times} times that must fit"
            if budget.kind == SOFT:
                warning = words
                continue
            again_s = seconds_left(budget.period, self._unix_s())
            if _fits(used_uj, more_uj, budget):
                again_s = min(again_s, _FINAL_IN_S)
            elif used_uj < budget.uj:
                again_s = min(again_s, _FORESEEN_ANEW_IN_S)
            raise SpentError(words, "tenant_budget", again_s)
        return warning

    def hold(self, tenant: str, variant: str, uj: int) -> Held:
        """A request is let in, and counts so much, and idle draw beside it, until it is final or released."""
        self._open_uj[tenant][variant] += uj
        return Held(tenant, variant, uj)

    def opened(self, held: Held, receipt_id: str) -> None:
        """It has a receipt, whose end ends it too."""
        held.receipt_id = receipt_id
        self._held[receipt_id] = held

    def waits(self, held: Held, key: ApiKey, refuse: Refuse) -> None:
        """What it will use nobody knows beforehand: once the key's budget is used up, it is refused."""
        if key.budgets:
            self._waiting[held.tenant].setdefault(key, {})[held] = refuse

    def _refuse_waiting(self, tenant: str) -> None:
        """Who came last goes first, until the others have room."""
        for key, waiting in tuple(self._waiting[tenant].items()):
            while waiting:
                try:
                    self.check(tenant, key)
                    break
                except SpentError as error:
                    held, refuse = waiting.popitem()
                    if refuse(error):
                        self.release(held)

    def count(self, held: Held, uj: int) -> None:
        """It counts so much from now on, unless it is over."""
        if not held.is_over:
            self._open_uj[held.tenant][held.variant] += uj - held.uj
            held.uj = uj
            self._refuse_waiting(held.tenant)

    def release(self, held: Held) -> None:
        """It counts no longer: nothing of it ran, or it is final."""
        if not held.is_over:
            self._open_uj[held.tenant][held.variant] -= held.uj
            held.is_over = True
        self._held.pop(held.receipt_id, None)
        for key, waiting in tuple(self._waiting[held.tenant].items()):
            waiting.pop(held, None)
            if not waiting:
                del self._waiting[held.tenant][key]

    def ran(self, held: Held, receipt: Receipt) -> None:
        """It has run, and counts by its provisional figure until it is final."""
        if receipt.whole.provisional_uj is not None:
            self.count(held, receipt.whole.provisional_uj)

    def final(self, receipt: Receipt) -> None:
        """It counts what it was charged; where its energy is unknown, what was held for it too."""
        held = self._held.get(receipt.receipt_id)
        if held is not None:
            self.release(held)
        tallies = [tally for line in receipt.lines if not line.is_overhead for tally in line.tallies]
        active_uj = sum(tally.booked_uj for tally in tallies)
        idle_uj = sum(tally.booked_idle_uj for tally in tallies)
        self._idle.learn(receipt.tenant, receipt.variant, active_uj, idle_uj)
        if not receipt.tenant:
            return
        unknown_uj = held.uj if held is not None and receipt.is_unknown else 0
        self._use(receipt.tenant, active_uj + idle_uj + unknown_uj)

    def _use(self, tenant: str, uj: int) -> None:
        self._roll()
        for period in self._periods.values():
            period.own_uj[tenant] += uj
        if uj:  # what was refused has become final, too
            self._refuse_waiting(tenant)

    def told(self) -> Iterable[tuple[str, Budget, int]]:
        """Each tenant's budgets, by its own keys and those that name it, and what is used of them: of several
        of a kind and a period the least, which is used up first."""
        seen = {
            (tenant, budget)
            for key in self._keys().by_id.values()
            for tenant in key.tenants
            for budget in self._of(key)
        }
        falling = sorted(seen, key=lambda each: each[1].uj, reverse=True)
        least = {(tenant, budget.kind, budget.period): (tenant, budget) for tenant, budget in falling}
        return [
            (tenant, budget, self.spent_uj(tenant, budget.period))
            for tenant, budget in sorted(least.values())
        ]

    def _of(self, key: ApiKey) -> list[Budget]:
        known = self._keys_seen.get(key.id)
        if known is None or known[0] != key.budgets:
            known = key.budgets, [Budget.parse(text) for text in key.budgets]
            self._keys_seen = {**self._keys_seen, key.id: known}
        return known[1]

    def _roll(self) -> None:
        """A new period begins with nothing. Where the clock was set back to an earlier one, what was used
        goes on counting until that one ends."""
        now_s = self._unix_s()
        if int(now_s) // 3600 == self._hour:
            return
        self._hour = int(now_s) // 3600
        for name, period in self._periods.items():
            first = begun_hour(name, now_s)
            if first > period.begun_hour:
                self._periods[name] = _Period(first)
            else:
                period.begun_hour = first


def _fits(used_uj: int, more_uj: int, budget: Budget) -> bool:
    return used_uj < budget.uj and used_uj + more_uj <= budget.uj
