"""Meters of an NVIDIA board: its energy counter, or its power integrated over time where it has no counter.

Knows how a board's figures become a cumulative energy. Knows nothing about NVML's calls and errors
(`nvml_board`), requests or threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.errors import MeterError
from wattserve_server.meters.fallback import FallbackMeter
from wattserve_server.meters.nvml_board import Board, NotOfferedError, Nvml, load_nvml, open_board
from wattserve_server.meters.port import Meter

# How far apart two readings may be before what was drawn between them counts as unknown. The trailing average
# tells of the whole second before it; the instant power of a few tens of milliseconds, every 20 to 100 ms: a
# longer trapezoid, made of two moments, would miss whole batches, and a reading has no error bar for that.
_LONGEST_AVERAGE_STEP_NS = 1_000_000_000
_LONGEST_INSTANT_STEP_NS = 250_000_000
_AVERAGE_S = 1.0  # over which a board since Ampere tells the mean of its power, where it tells no other


class _BoardMeter:
    """Takes a board over and closes it with itself."""

    wraps_at: Energy | None = None
    idle_watts: float | None = None

    def __init__(self, board: Board, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._board = board
        self.most_watts = board.most_watts
        self._clock_ns = clock_ns

    def neighbours(self) -> int | None:
        return self._board.neighbours()

    def others_at_work(self) -> float | None:
        return self._board.others_at_work()

    def clock_mhz(self) -> int | None:
        return self._board.clock_mhz()

    def close(self) -> None:
        self._board.close()

    def _ask(self, question: Callable[[], int]) -> tuple[int, int]:
        """The instant and the answer. A call can take milliseconds: its middle is the least wrong instant."""
        before_ns = self._clock_ns()
        figure = question()
        return (before_ns + self._clock_ns()) // 2, figure


class NvmlCounterMeter(_BoardMeter):
    """`nvmlDeviceGetTotalEnergyConsumption`: millijoules since the driver was loaded, Volta and later.

    Published in steps of 20 to 100 ms. 64 bits of millijoules do not wrap.
    """

    poll_period_s: float = 0.02

    def __init__(
        self, board: Board, *, clock_ns: Callable[[], int] = time.monotonic_ns, with_host: bool = False
    ) -> None:
        """with_host: its host is metered too. Raises NotOfferedError for a board without a counter."""
        super().__init__(board, clock_ns=clock_ns)
        board.energy_mj()
        self.source = _source(
            board, "apportioned counter", "energy counted by the board since its driver loaded", with_host
        )

    def read(self) -> Reading:
        at_ns, energy_mj = self._ask(self._board.energy_mj)
        return Reading(at_ns, Energy.from_millijoules(energy_mj))


class NvmlPowerMeter(_BoardMeter):
    """A board's power, integrated by trapezoids between readings, for boards without an energy counter.

    What was drawn in a longer pause between readings nobody sampled, and it is not made up: the count then
    starts again from 0, and the step back tells the reader that there is a gap.
    """

    def __init__(
        self, board: Board, *, clock_ns: Callable[[], int] = time.monotonic_ns, with_host: bool = False
    ) -> None:
        """with_host: its host is metered too. Raises NotOfferedError for a board that does not tell its
        power."""
        super().__init__(board, clock_ns=clock_ns)
        self._power_mw, kind, quality = board.instant_power_mw, "instant power", Quality.MEASURED
        averages_s = 0.0
        self.poll_period_s, self._longest_step_ns = 0.02, _LONGEST_INSTANT_STEP_NS
        try:
            board.instant_power_mw()
        except NotOfferedError:
            if board.is_module:  # of what the other figure is the power, its driver does not say
                raise
            self._power_mw = board.average_power_mw
            if board.averages_power():
                # It smears each batch over a second: sums hold, and what one request used is an estimate.
                kind, quality = "1 s trailing average power", Quality.ESTIMATED
                averages_s = _AVERAGE_S
                self.poll_period_s, self._longest_step_ns = 0.1, _LONGEST_AVERAGE_STEP_NS
        told = f"{kind}, integrated between readings"
        source = _source(board, "apportioned integrated power", told, with_host, quality)
        self.source = replace(source, averages_s=averages_s)
        # Twice the energy in picojoules: (mW + mW) x ns, kept whole so that no fraction is lost.
        self._double_pj = 0
        self._last_at_ns, self._last_mw = self._ask(self._power_mw)

    def read(self) -> Reading:
        at_ns, power_mw = self._ask(self._power_mw)
        step_ns = at_ns - self._last_at_ns
        if step_ns > self._longest_step_ns:
            self._double_pj = 0
        else:
            self._double_pj += (self._last_mw + power_mw) * step_ns
        self._last_at_ns, self._last_mw = at_ns, power_mw
        return Reading(at_ns, Energy(self._double_pj // 2_000_000))


def open_nvml(
    device: str | None = None,
    *,
    allow_mig: bool = False,
    with_host: bool = False,
    load: Callable[[], Nvml] = load_nvml,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    environ: Mapping[str, str] = os.environ,
) -> Meter:
    """The best meter of the board that `device` names (see `open_board`): its counter, for as long as its
    power bears that out, else its power.

    allow_mig: a board in slices is metered whole, as an estimate; it is refused otherwise.
    with_host: its host has a meter too, which is added to this one.
    Raises MeterError when there is no such board or it offers neither.
    """
    board = open_board(device, load=load, environ=environ)
    try:
        if board.mig and not allow_mig:
            raise MeterError(
                f"NVML: {board.uuid} is cut into MIG slices, and no slice has a meter: requests would be "
                "billed what the whole board draws; --allow-mig takes that, as an estimate"
            )
        try:
            counter = NvmlCounterMeter(board, clock_ns=clock_ns, with_host=with_host)
        except NotOfferedError:
            return NvmlPowerMeter(board, clock_ns=clock_ns, with_host=with_host)
        try:
            return FallbackMeter(counter, NvmlPowerMeter(board, clock_ns=clock_ns, with_host=with_host))
        except MeterError:  # then nothing bears the counter out, and nothing contradicts it
            return counter
    except BaseException:
        board.close()
        raise


def _source(
    board: Board, method: str, figure: str, with_host: bool, quality: Quality = Quality.MEASURED
) -> Source:
    note, what = f"{figure}; includes what other processes on the board draw", f"GPU board ({board.name})"
    if board.mig:
        note += "; MIG is on, and no slice has a meter of its own: this is the whole board"
        what += " with all of its MIG slices"
        quality = Quality.ESTIMATED
    if board.is_module:
        what = f"module: GPU, CPU and memory ({board.name})"
    boundary = f"{what}, as metered by its driver"
    if not (with_host or board.is_module):
        boundary += "; board only: the host is not metered"
    return Source(f"nvml:{board.uuid}", method, quality, note, boundary, counts_server=board.is_module)
