"""What the command line says of an error: one line."""

from __future__ import annotations

from typing import Any

from wattserve_client._cli.table import flat
from wattserve_client.errors import DeadlineExceeded, Unavailable, WattserveError


class CliError(Exception):
    """A mistake that the user can repair, in one line; exit code 1."""


class UsageError(CliError):
    """A mistake in the arguments; exit code 2."""


def told(error: WattserveError) -> str:
    """The server's words, the code with its reason, and who said so."""
    words = " ".join(flat(error.message).split()) or "no message"
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
