"""The gate: every call passes it before its message is looked at, and is refused there or has a caller."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

from wattserve_server.errors import ConfigError, ForbiddenError, UnauthenticatedError
from wattserve_server.service.caller import Caller, of_peer
from wattserve_server.service.changes import Changes
from wattserve_server.service.keys import ADMIN, PREDICT, READ_ALL, READ_OWN, read_keys
from wattserve_server.service.quota import Quotas

log = logging.getLogger(__name__)

TENANT_HEADER = "x-wattserve-tenant"

# What a method needs. OPEN: nothing, not even a key. ANY: a key that is known, whatever it may.
OPEN, ANY = "", "any"
NEEDS = {
    "Predict": PREDICT,
    "PredictStream": PREDICT,
    "GetReceipt": READ_OWN,
    "FindReceipts": READ_OWN,
    "WatchReceipts": READ_OWN,
    "GetServerInfo": ANY,
    "GetEnergyReport": READ_ALL,  # of all tenants together
    "LoadVariant": ADMIN,
    "UnloadVariant": ADMIN,
    "ServerLive": OPEN,
    "ServerReady": OPEN,
    "ModelReady": OPEN,
    "ServerMetadata": ANY,
    "ModelMetadata": ANY,
    "ModelConfig": ANY,
    "ModelStatistics": READ_ALL,
    "ModelInfer": PREDICT,
    "ModelStreamInfer": PREDICT,
    "RepositoryIndex": ANY,
    "RepositoryModelLoad": ADMIN,
    "RepositoryModelUnload": ADMIN,
    "SystemSharedMemoryStatus": ANY,
    "SystemSharedMemoryRegister": ANY,
    "SystemSharedMemoryUnregister": ANY,
    "CudaSharedMemoryStatus": ANY,
    "CudaSharedMemoryRegister": ANY,
    "CudaSharedMemoryUnregister": ANY,
    "TraceSetting": ANY,
    "LogSettings": ANY,
    "Check": OPEN,
    "Watch": OPEN,
    "ServerReflectionInfo": ANY,
}


class KeyFile:
    """The keys of a file, which may change at any time."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError."""
        self._path = Path(path)
        self._changes = Changes([path])
        try:
            self.keys = read_keys(self._path)
        except ConfigError as error:
            raise ConfigError(f"--keys-file {error}") from None

    def look(self) -> frozenset[str]:
        """Take what the file says now, if it has changed: the ids of the keys that open calls must not go on
        with. Of a file that is no good nothing is taken."""
        if not self._changes.are_there():
            return frozenset()
        try:
            keys, owner = read_keys(self._path), self._path.stat().st_uid
        except (ConfigError, OSError) as error:
            log.error("NO KEY WAS ADDED OR REVOKED, those read before stay valid: --keys-file %s", error)
            return frozenset()
        before, self.keys = self.keys.by_id, keys
        gone = frozenset(key.id for key in before.values() if not key.is_still(keys.by_id.get(key.id)))
        log.info(
            "--keys-file %s, of user %d, has changed: %d keys; new: %s; revoked or changed: %s",
            self._path,
            owner,
            len(keys.by_id),
            ", ".join(sorted(keys.by_id.keys() - before.keys())) or "none",
            ", ".join(sorted(gone)) or "none",
        )
        return gone


class Gate:
    """One per server. Without a file nobody needs a key."""

    def __init__(
        self,
        file: KeyFile | None,
        quotas: Quotas,
        *,
        opens_admin: bool = False,  # without a file: to callers from other machines
        trusts_header: bool = False,  # of keys that may name tenants
    ) -> None:
        self._file = file
        self._quotas = quotas
        self._trusts_header = trusts_header
        self.of_peer = partial(of_peer, is_admin=opens_admin)
        # Methods whose calls are let in as they come: without keys that is nearly all.
        self.unguarded = {
            name for name, needed in NEEDS.items() if needed == OPEN or (file is None and needed != ADMIN)
        }

    def admit(self, method: str, context: Any) -> Caller:
        """Let a call of a guarded method in. Raises UnauthenticatedError, ForbiddenError or
        OverloadedError."""
        needed = NEEDS[method]
        try:
            caller = self._caller(context)
            if needed != ANY:
                caller.check(needed)
        except (UnauthenticatedError, ForbiddenError) as error:
            if peer := context.peer():  # else he has hung up, and nobody knows any more who it was
                log.warning("refused a call of %s from %s: %s", method, of_peer(peer), error)
            raise
        if needed != PREDICT:  # whose quota counts requests, of which a stream has many
            self._quotas.take(caller)
        return caller

    def reads_all(self, authorization: str) -> bool:
        """Whether the header shows a key that may. Any thread."""
        assert self._file is not None
        try:
            return READ_ALL in self._file.keys.shown_by([authorization] if authorization else []).may
        except UnauthenticatedError:
            return False

    def _caller(self, context: Any) -> Caller:
        if self._file is None:
            return self.of_peer(context.peer())
        headers = context.invocation_metadata() or ()
        key = self._file.keys.shown_by([value for name, value in headers if name == "authorization"])
        named = [value for name, value in headers if name == TENANT_HEADER] if self._trusts_header else []
        if not named:
            return Caller(key.tenant, key.may, key.tenant, key)
        if len(named) > 1 or named[0] not in key.names:
            raise ForbiddenError(
                f"key {key.id} of tenant {key.tenant} may not call for the tenant that {TENANT_HEADER} names"
            )
        may = tuple(right for right in key.may if right in (PREDICT, READ_OWN))
        return Caller(named[0], may, named[0], key)
