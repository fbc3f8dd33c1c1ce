"""Which of a client's servers keeps a receipt. Pure: no grpc, no I/O.

A receipt lives on the server that answered, and its id begins with the id of that server's run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from wattserve_client.errors import DeadlineExceeded, NotFound, Unavailable, WattserveError

C = TypeVar("C")


class Owners(Generic[C]):
    """What one client has learned of its members."""

    def __init__(self, target: str, members: Sequence[C]) -> None:
        self._target = target
        self._members = tuple(members)
        self._by_run: dict[str, C] = {}

    def to_ask(self, receipt_id: str) -> tuple[C, ...]:
        """The member that is known to keep it, or all."""
        known = self._by_run.get(_run(receipt_id))
        return self._members if known is None else (known,)

    def found(self, receipt_id: str, member: C) -> None:
        """`member` has it, and all others of the same run of its server."""
        if run := _run(receipt_id):
            self._by_run[run] = member

    def missing(self, receipt_id: str, errors: Sequence[WattserveError]) -> WattserveError:
        """The error to raise when each that was asked has failed so. It is nowhere if all say NotFound."""
        first, *others = errors
        if not others:
            return first
        for error in errors:
            if not isinstance(error, NotFound | Unavailable | DeadlineExceeded):
                return error
        silent = [error for error in errors if not isinstance(error, NotFound)]
        missing: WattserveError
        if silent:
            names = ", ".join(error.target for error in silent)
            message = f"no server in reach has the receipt {receipt_id!r}; out of reach: {names}"
            missing = Unavailable(message, "UNAVAILABLE", self._target)
        else:
            missing = NotFound(
                first.message, first.code, self._target, reason=first.reason, field=first.field
            )
        missing.__cause__ = (silent or errors)[0].__cause__
        return missing


def _run(receipt_id: str) -> str:
    return receipt_id.rpartition("-")[0]
