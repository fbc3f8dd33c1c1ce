"""Who calls: whose share of the server he takes, whose receipts he reads, and what he may do."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import unquote

from wattserve_server.errors import ForbiddenError
from wattserve_server.service.keys import ADMIN, READ_ALL, READ_OWN, RIGHTS, ApiKey

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Of one call."""

    name: str  # among whom the server is shared: of the tenant, else the peer
    may: tuple[str, ...] = RIGHTS
    tenant: str = ""  # a declared one; empty where the server asks for no keys
    key: ApiKey | None = None  # that he showed

    def __str__(self) -> str:
        """For the log; nothing in it is secret."""
        return self.name if self.key is None else f"key {self.key.id} of tenant {self.tenant}"

    def check(self, right: str) -> None:
        """Raises ForbiddenError."""
        if right in self.may or (right == READ_OWN and READ_ALL in self.may):
            return
        if self.key is None:
            raise ForbiddenError(
                f"this needs the right {right}, which without API keys only callers on the server's own "
                "machine have; the server's --keys-file gives it to others, or --open-admin to all"
            )
        raise ForbiddenError(f"this needs the right {right}, which {self} has not")

    def check_watches(self) -> None:
        """Whether he may watch all receipts that he `sees`. Raises ForbiddenError."""
        if self.key is None:  # then he sees everybody's
            self.check(ADMIN)

    def did(self, what: str) -> None:
        """He has asked for what only some may: a line in the log."""
        log.info("%s asks to %s", self, what)

    def sees(self, tenant: str) -> bool:
        """Whether he may read that tenant's receipts."""
        return tenant == self.tenant or READ_ALL in self.may


CALLER: ContextVar[Caller] = ContextVar("caller")  # of the call that runs, once it is let in


@lru_cache(maxsize=4096)
def of_peer(peer: str, is_admin: bool = False) -> Caller:
    """Without a key: by gRPC's word for his end of the connection. On the loopback that is a connection,
    which may do all; elsewhere an address, which may do all only if `is_admin`."""
    kind, _, place = unquote(peer).partition(":")
    host = place.rpartition(":")[0].strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        is_local = False
    else:
        is_local = (getattr(address, "ipv4_mapped", None) or address).is_loopback
    may = tuple(right for right in RIGHTS if right != ADMIN or is_local or is_admin)
    return Caller(peer if is_local else f"{kind}:{host}", may)
