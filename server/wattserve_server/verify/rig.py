"""The rig: what the phases need of a machine. `machine` is the real one; tests have one in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.receipt import Receipt, State, Window
from wattserve_server.verify.readings import Readings

Shape = tuple[int, int]  # sequences, tokens of each


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was answered. Instants on the monotonic clock. part: of the machine, whose counter is
    verified."""

    variant: str
    shape: Shape
    sent_ns: int
    done_ns: int
    receipt: Receipt
    part: str

    @property
    def settled_uj(self) -> int | None:
        """What the verified counter has charged it; None while that is not final, or unknown."""
        figures = self.receipt.of_part(self.part)
        return figures.energy_uj if figures.state is State.SETTLED else None


class Rig(Protocol):
    """A server as it serves, alone with one caller, and a reader of one of its counters that shares nothing
    with it."""

    @property
    def variants(self) -> tuple[str, ...]:
        """The default one first."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of requests, from a small one to one that fills a batch."""

    @property
    def declared_idle_w(self) -> float | None:
        """The idle draw that receipts are above, where the meter declares one; None where it is learned."""

    @property
    def readings(self) -> Readings:
        """Everything that the independent reader has read."""

    def now_ns(self) -> int: ...

    async def rest(self, seconds: float) -> None: ...

    async def ask(self, variant: str, shape: Shape) -> Asked:
        """One request, until it is answered."""

    async def until_settled(self, asked: Sequence[Asked]) -> None:
        """Wait until the receipts are final, or until it is plain that they will not be."""

    def windows(self, since_ns: int, until_ns: int) -> list[Window]:
        """Those that ended in this time."""

    def ledger(self) -> Ledger:
        """Of the counter that is read."""

    def read_every(self, seconds: float) -> None:
        """From now on, the independent reader."""

    def sample_every(self, seconds: float | None) -> None:
        """From now on, the server's own sampler; None: as often as the server would."""


async def work(rig: Rig, variant: str, shape: Shape, seconds: float) -> list[Asked]:
    """Request after request for so long; at least one."""
    until_ns = rig.now_ns() + round(seconds * 1e9)
    asked = [await rig.ask(variant, shape)]
    while rig.now_ns() < until_ns:
        asked.append(await rig.ask(variant, shape))
    return asked
