"""The GPU boards that a meter reads by NVML, for the gauges that perf_analyzer knows.

Each is opened a second time: a scrape asks it by a handle of its own, and the sampler's is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from wattserve_server.errors import MeterError
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.nvml_board import Board, Nvml, load_nvml, open_board
from wattserve_server.meters.port import Meter
from wattserve_server.telemetry.board import BoardFigures, BoardGauges

T = TypeVar("T")


def boards_of(meter: Meter, load: Callable[[], Nvml] = load_nvml) -> list[BoardGauges]:
    """One for each board that the meter, or a part of it, is of. Never raises: a board that cannot be opened
    has no gauges."""
    found = []
    for part in meter.meters if isinstance(meter, CompositeMeter) else (meter,):
        kind, _, uuid = part.source.name.partition(":")
        if kind == "nvml":
            with suppress(MeterError):
                board = open_board(uuid, load=load)
                found.append(BoardGauges(board.uuid, functools.partial(_figures, board)))
    return found


def _figures(board: Board) -> BoardFigures:
    used, total = _known(board.memory_bytes) or (None, None)
    percent, power_mw = _known(board.utilization_percent), _known(board.average_power_mw)
    return BoardFigures(
        None if percent is None else percent / 100,
        None if power_mw is None else power_mw / 1000,
        used,
        total,
    )


def _known(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except Exception:  # not MeterError alone: of a driver older than itself the binding says otherwise
        return None
