"""What can go wrong, sorted by who must act. Every message is one line that says what to do."""

from __future__ import annotations

from wattserve_common.errors import UserError


class LoadgenError(UserError):
    """Base of every error that loadgen raises on purpose: the user's to repair (exit code 2)."""


class PlanError(LoadgenError):
    """What was asked for cannot be swept: an unknown variant, a row over the server's limits."""


class ResultsError(LoadgenError):
    """A results folder cannot be written or read."""


class TargetError(LoadgenError):
    """The server cannot be reached, or stopped answering."""


class RefusedError(TargetError):
    """The server answers, and refuses the key that it is shown, or its rights. Waiting does not help."""

    def __init__(self, address: str, code: str, why: str) -> None:
        super().__init__(f"{address} refuses: {code} {why}".rstrip())
