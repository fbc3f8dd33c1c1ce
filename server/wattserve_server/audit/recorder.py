"""The recorder: keeps what the accountants are told, and what receipts were told, in an audit file.

Accountants and event loop only put what happened into a queue; a thread writes it once a second. Where it
cannot, it says so and ends: requests are served and told their joules as before, and the file is good up to
there.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from wattserve_server.audit import events
from wattserve_server.audit.codec import Encoder
from wattserve_server.audit.file import BlockWriter, Header
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.receipt import Receipt, Window

log = logging.getLogger(__name__)

EVERY_S = 1.0
MOST_WAITING = 300_000  # events, before the disk is taken for one that hangs
CLOSING_S = 5.0


class Recorder:
    """Call `begin` before all else. Raises ConfigError where the file is there already or cannot be made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_recording = True
        self._file = BlockWriter(path)
        self._encoder = Encoder()
        self._waiting: deque[events.Event | Receipt] = deque()
        self._is_begun = self._is_closed = False
        self._accountants: list[RecordedAccountant] = []
        self._numbers = count()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattserve-audit", daemon=True)

    @property
    def size(self) -> int:
        """In bytes, of what is written so far."""
        return self._file.size

    def begin(self, header: Header) -> None:
        self._is_begun = True
        try:
            self._file.begin(header)
        except OSError as error:
            self._give_up(error)

    def start(self) -> None:
        """Write every second; without it, all is written in the end."""
        self._thread.start()

    def accountant_of(self, name: str, part: str, origin: str) -> Callable[..., Accountant]:
        """What makes the accountant of a counter, as `Accountant` does: see `events.Opened`."""
        number = next(self._numbers)

        def make(*settings: Any, **named: Any) -> Accountant:
            made = RecordedAccountant(self.put, number, name, part, origin, *settings, **named)
            self._accountants.append(made)
            return made

        return make

    def put(self, event: events.Event | Receipt) -> None:
        """Any thread. A receipt is final, and was told its figures."""
        if not self.is_recording or self._is_closed:
            return
        self._waiting.append(event)
        if len(self._waiting) > MOST_WAITING:
            self._give_up(TimeoutError(None, f"the disk hangs: {MOST_WAITING} events wait for it"))

    def close(self) -> None:
        """Write what is left, what the ledgers hold, and that this is the end. A disk that hangs is waited
        for no longer than `CLOSING_S`. Of a server that did not come so far as to `begin` no file is left."""
        for accountant in self._accountants:
            self.put(events.closed(accountant.counter, accountant.ledger))
        self.put(events.Ended())
        self._is_closed = True
        self._stopping.set()
        if self._thread.ident is None:
            self._finish()
        else:
            self._thread.join(CLOSING_S)
        if not self._is_begun:
            self.path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Of a server that was interrupted as it started there is nothing to go over: no file is left, and
        the next start may make it."""
        self.is_recording = False
        self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        while self.is_recording and not self._stopping.wait(EVERY_S):
            self.flush()
        self._finish()

    def _finish(self) -> None:
        self.flush()
        try:
            self._file.close()
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Write what waits. Called by the thread; by tests, instead of it."""
        happened = []
        with suppress(IndexError):
            while True:
                happened.append(self._waiting.popleft())
        if not (happened and self.is_recording):
            return
        try:
            self._file.write(
                self._encoder.encode(
                    events.told(each) if isinstance(each, Receipt) else each for each in happened
                )
            )
        except Exception as error:  # also a bug: whatever it is, requests are served
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.is_recording = False
        self._waiting.clear()
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        log.error(
            "THE AUDIT IS NO LONGER RECORDED: %s cannot be written (%s). It is good up to here; to record "
            "again, make room and start the server with another file",
            self.path,
            why,
            exc_info=None if isinstance(error, OSError) else error,
        )


class RecordedAccountant(Accountant):
    """Says all that it is told before it heeds it. Its thread is the counter's.

    It is told instants in whole microseconds: finer ones would make the file a fifth larger, and an
    accountant trusts none to less than 200 (`accountant.LEAST_DEVIATION_S`).
    """

    def __init__(
        self,
        put: Callable[[events.Event], None],
        counter: int,
        name: str,
        part: str,
        origin: str,
        *settings: object,
        **named: object,
    ) -> None:
        """settings, named: those of `Accountant`."""
        self._put, self.counter = put, counter
        given = inspect.signature(Accountant).bind(*settings, **named)
        given.apply_defaults()
        put(events.Opened(counter, name, part, origin, given.arguments))
        super().__init__(**given.arguments)


def _saying(method: str) -> Callable[..., Any]:
    heed = getattr(Accountant, method)
    coarse: Callable[..., tuple[Any, ...]] = _COARSE.get(method, _as_it_is)

    def say(self: RecordedAccountant, *given: Any) -> Any:
        arguments = coarse(*given)
        self._put(events.Heard(self.counter, method, arguments))
        return heed(self, *arguments)

    return say


def _as_it_is(*arguments: Any) -> tuple[Any, ...]:
    return arguments


def _us(at_ns: int) -> int:
    return at_ns - at_ns % 1000


def _window(window: Window) -> Window:
    start_ns = _us(window.start_ns)
    return replace(
        window, start_ns=start_ns, end_ns=_us(window.end_ns),
        rested_ns=start_ns - _us(window.start_ns - window.rested_ns),
        cpu_ns=None if window.cpu_ns is None else _us(window.cpu_ns),
        own_ns=tuple(map(_us, window.own_ns)),
    )  # fmt: skip


_COARSE: dict[str, Callable[..., tuple[Any, ...]]] = {
    "observe": lambda reading: (replace(reading, at_ns=_us(reading.at_ns)),),
    "failed": lambda at_ns, reason: (_us(at_ns), reason),
    "see_requests": lambda visits: ([visit._replace(at_ns=_us(visit.at_ns)) for visit in visits],),
    "advance": lambda windows, until_ns: ([_window(window) for window in windows], _us(until_ns)),
}

for _method in events.METHODS:
    setattr(RecordedAccountant, _method, _saying(_method))
