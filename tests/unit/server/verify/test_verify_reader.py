"""The independent reader where its file takes no more."""

from __future__ import annotations

import errno
import io
import threading

from wattserve_server.meters.laws import EstimateMeter
from wattserve_server.verify.reader import Reader


class Small(io.StringIO):
    """A file with room for so many writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self._left = writes

    def write(self, text: str) -> int:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_reader_that_finds_no_room_ends_says_so_at_once_and_is_stopped_in_peace() -> None:
    is_told = threading.Event()
    reader = Reader(EstimateMeter(), Small(3), is_told.set)
    reader.start()
    assert is_told.wait(60)
    reader.stop()
    assert reader.lost is not None
    assert reader.lost.errno == errno.ENOSPC


def test_one_whose_last_line_finds_none_says_so_in_the_end() -> None:
    reader = Reader(EstimateMeter(), Small(1))
    reader.stop()
    assert reader.lost is not None
    whole = Reader(EstimateMeter(), Small(2))
    whole.stop()
    assert whole.lost is None
