"""Errors of a user's data, for the server, loadgen and the tools alike."""

from __future__ import annotations


class UserError(Exception):
    """Base of every error that is the user's to repair. Its message is one line that says what to do."""


def incomplete(error: ModuleNotFoundError, extra: str) -> str:
    """What to say where a program's extra is not installed."""
    return (
        f"the light installation has the client only ({error.name} is missing here). In the folder with "
        f"Wattserve's source: pip install '.[{extra}]'"
    )


class DatasetError(UserError):
    """A dataset, or a file to make one from, cannot be used; names the file and the row."""
