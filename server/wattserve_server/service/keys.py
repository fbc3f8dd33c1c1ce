"""API keys: their form, the file of what is known of them, and which one a caller shows.

A key is `wattserve_ID_SECRET`: a public id and 256 random bits, told once, when it is made. The file holds
the SHA-256 of the whole: of so many random bits that needs neither salt nor a slow hash, and is of no use to
show.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wattserve_server.errors import ConfigError, UnauthenticatedError
from wattserve_server.service.budget import Budget

# What a key may be allowed to do: ask for predictions, read its tenant's receipts, read all that there is,
# load and unload variants.
RIGHTS = ("predict", "read-own", "read-all", "admin")
PREDICT, READ_OWN, READ_ALL, ADMIN = RIGHTS

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"wattserve_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

MOST = 10**9  # requests of a key, in flight or a second: more is a mistake

_HEAD = "# API keys of Wattserve, as `wattserve keys` writes them. No key can be told from its hash.\n"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What the file says of one key. Raises ConfigError for what cannot be."""

    id: str
    sha256: str
    tenant: str
    may: tuple[str, ...]  # of `RIGHTS`
    requests_per_second: float = 0.0  # of the tenant, by all its keys; 0: no limit
    in_flight: int = 0  # predictions of the tenant at the same time; 0: no limit
    names: tuple[str, ...] = ()  # tenants for whom it may ask, by the header: it is a proxy's
    created: str = ""  # the day
    budgets: tuple[str, ...] = ()  # of joules, of the tenant: `hard 500 J/day`; see `budget`

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id) or not _SHA256.fullmatch(self.sha256):
            raise ConfigError("id and sha256 are 12 and 64 digits of base 16")
        for tenant in self.tenants:
            if not TENANT.fullmatch(tenant):
                raise ConfigError(f"{tenant!r} is no tenant: 1 to 64 letters, digits, `.`, `_` and `-`")
        wrong = [right for right in self.may if right not in RIGHTS]
        if wrong or not self.may:
            what = f"{wrong[0]!r} is no right" if wrong else "it has no rights"
            raise ConfigError(f"{what}; choose from {', '.join(RIGHTS)}")
        if not all(0 <= limit <= MOST for limit in (self.requests_per_second, self.in_flight)):
            raise ConfigError(f"requests_per_second and in_flight are 0, for no limit, to {MOST:,}")
        if self.created and not _DAY.fullmatch(self.created):
            raise ConfigError("created is a day, such as 2026-11-27")
        for text in self.budgets:
            Budget.parse(text)

    @property
    def tenants(self) -> tuple[str, ...]:
        """For whom it may be shown."""
        return self.tenant, *self.names

    def is_still(self, other: ApiKey | None) -> bool:
        """Whether `other` is this key, and its calls may go on."""
        if other is None or (self.sha256, self.tenant) != (other.sha256, other.tenant):
            return False
        return {*self.may} <= {*other.may} and {*self.names} <= {*other.names}


def new_key(
    tenant: str,
    may: Sequence[str],
    requests_per_second: float,
    in_flight: int,
    names: Sequence[str],
    budgets: Sequence[str] = (),
) -> tuple[str, ApiKey]:
    """The key itself, which nobody can tell again, and what the file holds of it. Raises ConfigError."""
    key_id = secrets.token_hex(6)
    text = f"wattserve_{key_id}_{secrets.token_urlsafe(32)}"
    limits = (requests_per_second, in_flight, tuple(names))
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return text, ApiKey(key_id, _hash(text), tenant, tuple(may), *limits, today, tuple(budgets))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Keys:
    """The keys of one file, by their ids. is_blank: it has none, nor the head that `wattserve keys` leaves
    when it revokes the last one. with_budgets: tenants for whom a key that has some may be shown."""

    def __init__(self, keys: Iterable[ApiKey], has_head: bool = True) -> None:
        self.by_id = {key.id: key for key in keys}
        self.is_blank = not self.by_id and not has_head
        self.with_budgets = frozenset(
            name for key in self.by_id.values() if key.budgets for name in key.tenants
        )

    @property
    def tenants(self) -> list[str]:
        """All that are declared, in the order of the file."""
        return list(dict.fromkeys(name for key in self.by_id.values() for name in key.tenants))

    def shown_by(self, headers: Sequence[str]) -> ApiKey:
        """The key in a call's `authorization` headers. Raises UnauthenticatedError, which repeats nothing of
        what was sent."""
        if not headers:
            raise UnauthenticatedError(
                "this server asks for an API key: send `authorization: Bearer KEY` (Wattserve's own "
                "commands: --api-key-file FILE, or the variable WATTSERVE_API_KEY)"
            )
        scheme, _, text = headers[0].partition(" ")
        form = _KEY.fullmatch(text.strip())
        if len(headers) > 1 or scheme.lower() != "bearer" or form is None:
            raise UnauthenticatedError(
                "the authorization header is not Bearer and a key, once, as `wattserve keys add` tells it"
            )
        key = self.by_id.get(form[1])
        if key is None or not hmac.compare_digest(_hash(form[0]), key.sha256):
            raise UnauthenticatedError("this server does not know the API key, or it was revoked")
        return key


def read_keys(path: Path) -> Keys:
    """Raises ConfigError, naming the file and the key."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # reading a pipe would wait for who writes it
            raise ConfigError(f"{path}: is no regular file")
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(f"{path}: others may write it, and so make keys of their own; chmod 600 it")
        text = path.read_text(encoding="utf-8-sig")
        content = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of TOML, of a number or a nesting beyond its reader
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    tables = content.pop("keys", [])
    if content or not isinstance(tables, list):
        raise ConfigError(f"{path}: holds tables [[keys]] and nothing else")
    keys = []
    for number, table in enumerate(tables, 1):
        try:
            keys.append(_key(table))
        except ConfigError as error:
            raise ConfigError(f"{path}: key {number}: {error}") from None
    if len({key.id for key in keys}) < len(keys):
        raise ConfigError(f"{path}: two keys have one id")
    return Keys(keys, has_head=text.startswith(_HEAD))


def _key(table: Any) -> ApiKey:
    """Of a table of the file."""
    kinds = {item.name: str(item.type) for item in fields(ApiKey)}
    if not isinstance(table, dict) or not set(table) <= set(kinds):
        raise ConfigError(f"holds other things than {', '.join(kinds)}")
    if missing := [name for name in ("id", "sha256", "tenant", "may") if name not in table]:
        raise ConfigError(f"{missing[0]} is missing")
    values: dict[str, Any] = {}
    for name, value in table.items():
        kind, given = kinds[name], type(value)
        if given is list and kind.startswith("tuple") and all(type(part) is str for part in value):
            values[name] = tuple(value)
        elif given.__name__ == kind or (given is int and kind == "float"):
            values[name] = value
        else:
            raise ConfigError(f"{name} = {value!r} is no {kind.replace('tuple[str, ...]', 'list of texts')}")
    return ApiKey(**values)


@contextmanager
def changing(path: Path) -> Iterator[dict[str, ApiKey]]:
    """The keys of the file, or of none yet, to be changed; written when the block ends.

    The file is replaced as a whole, is its owner's alone, and is changed by one at a time. Raises
    ConfigError.
    """
    try:
        path = path.resolve()
    except RuntimeError:
        raise ConfigError(f"{path}: symbolic links that lead to each other, and to no file") from None
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"{path.parent}: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        keys = dict(read_keys(path).by_id) if path.exists() else {}
        yield keys
        _write(path, keys.values())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        os.close(folder)


def _write(path: Path, keys: Iterable[ApiKey]) -> None:
    lines = [_HEAD]
    for key in keys:
        values = ((item.name, getattr(key, item.name)) for item in fields(key))
        lines += [
            "[[keys]]",
            *(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values),
            "",
        ]
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # its mode is 0600
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
            file.flush()
            os.fsync(descriptor)
        if path.exists():  # who serves with it must still be able to read it
            owner = path.stat()
            with suppress(PermissionError):
                os.chown(beside, owner.st_uid, owner.st_gid)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
