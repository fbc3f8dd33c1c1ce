"""What an audit file holds, in the order in which it happened: what each accountant was told, and what each
receipt was told in the end. Nothing else goes into a receipt's figures.

A window that comes out of a file charges fresh lines of fresh receipts, which nothing has been charged yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from wattserve_server.energy.ledger import ACCOUNTS_UJ, Ledger
from wattserve_server.energy.receipt import Figures, Outcome, Receipt


class Opened(NamedTuple):
    """A counter with its accountant; from now on it is told by `counter`."""

    counter: int
    name: str  # as `Counter.name`
    part: str  # of the machine, which it counts
    origin: str  # how far its figures may be trusted, and by which meter
    settings: Mapping[str, object]  # of its accountant: what its constructor was given, by name


# The methods by which an accountant is told anything.
METHODS = ("observe", "failed", "see_neighbours", "see_others", "see_clock", "see_requests", "advance")


class Heard(NamedTuple):
    """What the accountant of a counter was told."""

    counter: int
    method: str
    arguments: tuple[Any, ...]


class Told(NamedTuple):
    """A receipt that became final: its figures of all parts together, then of each where there are several.
    No provisional ones: those are foreseen, by a law that more than the meter shapes."""

    receipt: Receipt
    outcome: Outcome
    figures: tuple[Figures, ...]


class Closed(NamedTuple):
    """What the ledger of a counter held in the end, by `ACCOUNTS_UJ`. Older files hold none."""

    counter: int
    accounts: Mapping[str, int]


class Ended(NamedTuple):
    """The server drained: nothing is missing, and nothing comes behind it."""


Event = Opened | Heard | Told | Closed | Ended


def closed(counter: int, ledger: Ledger) -> Closed:
    return Closed(counter, {name: getattr(ledger, name) for name in ACCOUNTS_UJ})


def told(receipt: Receipt) -> Told:
    """Of a receipt that is final."""
    parts = receipt.parts if len(receipt.parts) > 1 else ()
    every = (receipt.whole, *(receipt.of_part(part) for part in parts))
    figures = tuple(each._replace(provisional_uj=None) for each in every)
    return Told(receipt, receipt.outcome, figures)
