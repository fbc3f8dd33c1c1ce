"""Errors of a user's data, for the server, loadgen and the tools alike."""

from __future__ import annotations


class UserError(Exception):
    """Base of every error that is the user's to repair. Its message is one line that says what to do."""


def incomplete(program: str, error: ModuleNotFoundError, extra: str) -> str:
    """What to say of a program whose extra is not installed."""
    return (
        f"{program} needs more than is installed here ({error.name}): the light installation has the client "
        f"only. In the folder with Wattserve's source: pip install '.[{extra}]'"
    )


class DatasetError(UserError):
    """A dataset, or a file to make one from, cannot be used; names the file and the row."""
