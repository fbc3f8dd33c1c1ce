"""The four gauges of a GPU's board that Triton has and perf_analyzer reads, and the page that ends with them.

perf_analyzer's pattern takes digits and a point and stops before an exponent, which prometheus_client prints
from a million on: so these are printed here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from wattserve_server.telemetry import declared_state as declared
from wattserve_server.telemetry.declaration import Declared

LONGEST_READ_S = 0.25
"""For how long a scrape waits for a board's driver: long enough for one that is well."""


@dataclass(frozen=True, slots=True)
class BoardFigures:
    """What a board says of itself now; None: it does not say."""

    utilization: float | None = None
    power_watts: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(slots=True, eq=False)
class BoardGauges:
    """One board's figures, as they are when asked. read: never raises, and may take for ever."""

    uuid: str
    read: Callable[[], BoardFigures]
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def figures(self) -> BoardFigures:
        """What is known in time: a driver that hangs costs a scrape these figures and no others."""
        found: list[BoardFigures] = []
        if not self._reading.acquire(timeout=LONGEST_READ_S):
            return BoardFigures()

        def read() -> None:
            try:
                found.append(self.read())
            finally:
                self._reading.release()

        thread = threading.Thread(target=read, name="wattserve-board", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads
            self._reading.release()
            return BoardFigures()
        thread.join(LONGEST_READ_S)
        return found[0] if found else BoardFigures()


def lines(boards: Sequence[BoardGauges]) -> str:
    """In the text format and in OpenMetrics, which are the same for gauges."""
    figures = [(board.uuid, board.figures()) for board in boards]
    families: tuple[tuple[Declared, Callable[[BoardFigures], float | None]], ...] = (
        (declared.GPU_UTILIZATION, lambda of: of.utilization),
        (declared.GPU_POWER, lambda of: of.power_watts),
        (declared.GPU_MEMORY_USED, lambda of: of.memory_used_bytes),
        (declared.GPU_MEMORY_TOTAL, lambda of: of.memory_total_bytes),
    )
    return "".join(_family(each, [(uuid, value(of)) for uuid, of in figures]) for each, value in families)


def _family(each: Declared, values: Iterable[tuple[str, float | None]]) -> str:
    (label,) = each.labels
    samples = [
        f'{each.name}{{{label}="{uuid}"}} {_plain(value)}\n' for uuid, value in values if value is not None
    ]
    if not samples:
        return ""
    return f"# HELP {each.name} {each.meaning}\n# TYPE {each.name} {each.kind.value}\n{''.join(samples)}"


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"
