"""The gate: every call passes it before its message is looked at, and is refused there or has a caller."""

from __future__ import annotations

import logging
from collections.abc import Set
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

# Messages that take no longer to be read than a call takes to be refused: 0.6 ms, whatever they are made of.
SHORT_BYTES = 4096

MOST_TOLD = 50  # ids of keys, in a line of the log

# What a method needs. OPEN: nothing, not even a key. ANY: a key that is known, whatever it may.
OPEN, ANY = "", "any"
HTTP_NEEDS = {  # of the front for OpenAI's clients
    "Health": OPEN,
    "Models": ANY,
    "Completions": PREDICT,
    "ChatCompletions": PREDICT,
    "Embeddings": PREDICT,
    "Classify": PREDICT,
}
NEEDS = {
    "Predict": PREDICT,
    "PredictStream": PREDICT,
    "Generate": PREDICT,
    "Score": PREDICT,
    "GetReceipt": READ_OWN,
    "FindReceipts": READ_OWN,
    "WatchReceipts": READ_OWN,
    "GetUsage": READ_OWN,
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
    **HTTP_NEEDS,
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

    def first_with_budgets(self) -> str:
        """The id of the first key that has any; empty: none has."""
        return next((key.id for key in self.keys.by_id.values() if key.budgets), "")

    def look(self) -> frozenset[str]:
        """Take what the file says now, if it has changed: the ids of the keys that open calls must not go on
        with. Of a file that is no good nothing is taken. Any thread, one at a time."""
        if not self._changes.are_there():
            return frozenset()
        try:
            keys, owner = read_keys(self._path), self._path.stat()
            if keys.is_blank and self.keys.by_id:  # an editor may have begun to write it anew
                raise ConfigError(
                    f"{self._path}: is blank; `wattserve keys revoke` takes out the last key too"
                )
        except (ConfigError, OSError) as error:
            log.error("NO KEY WAS ADDED OR REVOKED, those read before stay valid: --keys-file %s", error)
            return frozenset()
        before, self.keys = self.keys.by_id, keys
        gone = frozenset(key.id for key in before.values() if not key.is_still(keys.by_id.get(key.id)))
        log.info(
            "--keys-file %s, of user %d, has changed: %d keys; new: %s; revoked or changed: %s",
            self._path,
            owner.st_uid,
            len(keys.by_id),
            _some(keys.by_id.keys() - before.keys()),
            _some(gone),
        )
        return gone


def _some(ids: Set[str]) -> str:
    """For a line of the log."""
    told = ", ".join(sorted(ids)[:MOST_TOLD]) or "none"
    return f"{told} and {len(ids) - MOST_TOLD:,} more" if len(ids) > MOST_TOLD else told


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
        self.messages = quotas.messages
        if file is not None:
            quotas.as_of_now = lambda key: file.keys.by_id.get(key.id, key)
        self._trusts_header = trusts_header
        self.of_peer = partial(of_peer, is_admin=opens_admin)
        # Methods whose calls are let in as they come: without keys that is nearly all.
        self.unguarded = {
            name for name, needed in NEEDS.items() if needed == OPEN or (file is None and needed != ADMIN)
        }

    def most_bytes(self, method: str) -> float:
        """Of a message of it, as it is once it is unpacked: of who shows no key only what is read at once."""
        return SHORT_BYTES if NEEDS[method] == OPEN else self.messages.message_bytes

    def admit(self, method: str, context: Any) -> Caller:
        """Let a call of a guarded method in. Raises UnauthenticatedError or ForbiddenError."""
        needed = NEEDS[method]
        try:
            caller = self._caller(context)
            if needed != ANY:
                caller.check(needed)
        except (UnauthenticatedError, ForbiddenError) as error:
            if peer := context.peer():  # else he has hung up, and nobody knows any more who it was
                log.warning("refused a call of %s from %s: %s", method, of_peer(peer), error)
            raise
        return caller

    def check_rate(self, method: str, caller: Caller) -> None:
        """Of a call that was let in, before its message is read. Raises OverloadedError where the caller's
        tenant has used up its requests. A prediction is counted later, with what a stream holds of them."""
        if NEEDS[method] != PREDICT:
            self._quotas.take(caller)
        elif "Stream" in method:
            self._quotas.check_stream(caller)
        else:
            self._quotas.check(caller)

    async def turn(self, method: str, caller: Caller, message_bytes: int) -> None:
        """Wait until a message of such a stream may be read."""
        if NEEDS[method] == PREDICT and message_bytes > SHORT_BYTES:
            await self._quotas.turn(caller)

    def count_message(self, method: str, caller: Caller, is_refused: bool, is_first: bool) -> None:
        """A message of such a call has been read, or refused while it was. Raises OverloadedError."""
        if NEEDS[method] == PREDICT:
            if is_refused:
                self._quotas.take_unread(caller)
        elif not is_first:  # the call was counted with it
            self._quotas.take(caller)

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
