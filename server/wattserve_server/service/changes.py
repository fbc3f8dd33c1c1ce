"""Whether files have been written, replaced or given another mode since somebody last looked."""

from __future__ import annotations

import os
from collections.abc import Sequence


class Changes:
    """Of some files, from when this was made on. An empty path is none."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [path for path in paths if path]
        self._seen = self._stamps()

    def are_there(self) -> bool:
        """Since the last time; also where a file has gone, or has come back."""
        before, self._seen = self._seen, self._stamps()
        return before != self._seen

    def _stamps(self) -> list[tuple[int, ...] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    # With its mode: one that was refused for it is good after a chmod, which writes nothing.
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode
