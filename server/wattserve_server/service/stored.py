"""What the service asks of an account book: receipts that outlive their run, and what was used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:  # where there is no account book, no database is imported
    from wattserve_server.accounts.usage import By, Usage

T = TypeVar("T")

Sees = Callable[[str], bool]  # whether the receipts of a tenant may be read


class StoredAccounts(Protocol):
    """Receipts are serialised `Receipt` messages. Raises UnavailableError where the book does not answer."""

    keeps: str  # for how long, in words

    async def receipt(self, receipt_id: str, sees: Sees) -> bytes | None:
        """None where there is none of that id, or it may not be read."""
        ...

    async def of_request(self, request_id: str, most: int, sees: Sees) -> Sequence[bytes]:
        """The newest `most` of those that may be read, the newest first."""
        ...

    async def usage(
        self,
        since_unix_s: int,
        until_unix_s: int,
        by: By,
        sees: Sees,
        sees_all: bool,
        tell: Callable[[Usage], T],
    ) -> T:
        """As `accounts.usage.usage`, told off the event loop: it may have many rows."""
        ...
