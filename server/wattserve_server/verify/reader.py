"""The independent reader: a thread with a meter of its own, which keeps every reading and writes it down.

It shares nothing with the server's sampler but the sensor. What it writes is a recording as `wattserve meter
record` makes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from wattserve_server.errors import MeterError
from wattserve_server.meters.port import Meter
from wattserve_server.meters.recording import (
    Header,
    RecordedReading,
    describe_host,
    end_line,
    header_line,
    reading_line,
)
from wattserve_server.verify.readings import Readings

USUAL_S = 0.005


class Reader:
    """Takes the meter and the file over. `every_s` may be changed at any time. on_lost: called, on its
    thread, where the file takes no more; `lost` says why."""

    def __init__(self, meter: Meter, file: TextIO, on_lost: Callable[[], object] = bool) -> None:
        self.readings = Readings(None if meter.wraps_at is None else meter.wraps_at.uj)
        self.every_s = USUAL_S
        self.origin_ns = time.monotonic_ns()  # that of the recording
        self.lost: OSError | None = None
        self._meter, self._file, self._on_lost = meter, file, on_lost
        self._lines = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattserve-verify-reader", daemon=True)
        header = Header(
            source=meter.source,
            wraps_at=meter.wraps_at,
            idle_watts=meter.idle_watts,
            poll_period_s=USUAL_S,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            host=describe_host(),
            origin_monotonic_ns=self.origin_ns,
        )
        file.write(header_line(header))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            if self.lost is None:
                self._file.write(end_line(time.monotonic_ns() - self.origin_ns, self._lines))
            self._file.close()
        except OSError as error:
            self.lost = self.lost or error
        self._meter.close()

    def read(self) -> None:
        """Once. Called by the thread; by tests, instead of it."""
        begun_ns = time.monotonic_ns()
        try:
            reading = self._meter.read()
        except MeterError as error:
            self.readings.failures += 1
            line = RecordedReading(begun_ns - self.origin_ns, None, str(error))
        else:
            self.readings.add(reading.at_ns, reading.energy.uj, time.monotonic_ns() - begun_ns)
            line = RecordedReading(reading.at_ns - self.origin_ns, reading.energy)
        self._file.write(reading_line(line))
        self._lines += 1

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            try:
                self.read()
            except OSError as error:
                self.lost = error
                self._on_lost()
                return
            due = max(due + self.every_s, time.monotonic())  # late reads are not made up for
            self._stopping.wait(due - time.monotonic())
