"""Errors of a user's data, for the server, loadgen and the tools alike."""

from __future__ import annotations

import errno


class UserError(Exception):
    """Base of every error that is the user's to repair. Its message is one line that says what to do."""


def shortage(error: BaseException) -> str:
    """What to say of an error that comes from a disk without room, or from a process that may open no more
    files, or of one that was met on the way; empty for any other error."""
    met: BaseException | None = error
    while met is not None:
        number = getattr(met, "errno", None)
        if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(met):
            where = getattr(met, "filename", None)
            return f"no room is left on the disk{f' of {where}' if where else ''}: make some, and try again"
        if number in (errno.EMFILE, errno.ENFILE):
            return (
                "no file can be opened any more, as connections and files together have reached the limit of "
                "the process or of the machine: allow more (ulimit -n), and try again"
            )
        met = met.__cause__ or met.__context__
    return ""


def incomplete(error: ModuleNotFoundError, extra: str) -> str:
    """What to say where a program's extra is not installed."""
    return (
        f"the light installation has the client only ({error.name} is missing here). In the folder with "
        f"Wattserve's source: pip install '.[{extra}]'"
    )


class DatasetError(UserError):
    """A dataset, or a file to make one from, cannot be used; names the file and the row."""
