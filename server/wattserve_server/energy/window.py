"""A window: the interval in which one batch ran on a device, and what is settled for it."""

from __future__ import annotations

from dataclasses import dataclass

from wattserve_server.energy.receipt import Line


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One batch on one device, from its first copy to the device to its last copy back.

    start_ns, end_ns: on the host's monotonic clock. lengths: true tokens of each sequence.
    padded_length: tokens of each row that was computed. packed_rows: how many rows its sequences shared; 0:
    each had a row of its own. lines: the receipt lines to charge, one per
    sequence; empty for a warm-up window, which is charged to the warm-up account. is_first_run: the first
    of its shape, which may compile, tune or allocate: nothing is learned from it. rested_ns: for how long
    the device had done nothing before.
    """

    variant: str
    start_ns: int
    end_ns: int
    lengths: tuple[int, ...]
    padded_length: int
    lines: tuple[Line, ...] = ()
    is_first_run: bool = False
    rested_ns: int = 0
    packed_rows: int = 0

    @property
    def is_warmup(self) -> bool:
        return not self.lines

    @property
    def computed_tokens(self) -> int:
        return (self.packed_rows or len(self.lengths)) * self.padded_length

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Charge:
    """What one receipt line is charged. `energy_uj` is None when unknown, and `reason` says why.

    warning: what else may be in the figure; empty when nothing is known of.
    """

    line: Line
    energy_uj: int | None
    deviation_uj: float
    idle_share_uj: int | None
    reason: str = ""
    warning: str = ""
