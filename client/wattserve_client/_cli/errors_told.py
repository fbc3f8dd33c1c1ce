"""What the command line says of an error: one line."""

from __future__ import annotations

import re
from typing import Any

from wattserve_client._cli.table import flat
from wattserve_client.errors import DeadlineExceeded, Unavailable, WattserveError

_TLS = re.compile(r"\bTls\.(ca|cert|key|server_name)\b")


class CliError(Exception):
    """A mistake that the user can repair, in one line; exit code 1."""


class UsageError(CliError):
    """A mistake in the arguments; exit code 2."""


def in_flags(words: str) -> str:
    """The library's words, with the command's own options in place of its arguments."""
    named = _TLS.sub(lambda found: f"--tls-{found[1].replace('_', '-')}", words)
    return named.replace("pass tls=", "pass --tls")


def told(error: WattserveError) -> str:
    """The server's words, the code with its reason, and who said so."""
    words = in_flags(" ".join(flat(error.message).split())) or "no message"
    if not error.reason and isinstance(error, Unavailable):
        words = f"out of reach: {words}"
    elif not error.reason and isinstance(error, DeadlineExceeded):
        words = f"no answer in time (see --timeout): {words}"
    code = f"{error.code}, {error.reason}" if error.reason not in ("", error.code) else error.code
    later = "" if error.retry_after_s is None else f"; try again after {error.retry_after_s:g} s"
    return f"{error.target}: {words} ({code}{later})"


def told_as_json(error: WattserveError) -> dict[str, Any]:
    return {
        "code": error.code,
        "reason": error.reason,
        "field": error.field,
        "message": error.message,
        "retry_after_seconds": error.retry_after_s,
        "target": error.target,
    }
