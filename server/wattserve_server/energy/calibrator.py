"""When to listen, and what to do with what was heard: calibration after a warm-up, the response again later.

While only warm-up runs, the accountant holds its edges back; once the warm-up is over, all of it is heard at
once and the filter starts from what it says. Later the response alone is looked at again from time to time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from wattserve_server.energy.calibration import History, Table, find_response, fit
from wattserve_server.energy.costlaw import SMOOTH, Array
from wattserve_server.energy.edges import NS, Edge
from wattserve_server.energy.filter import EnergyFilter
from wattserve_server.energy.idle import rest_times
from wattserve_server.energy.openbatches import Seconds
from wattserve_server.energy.response import Response
from wattserve_server.energy.state import CORRECTION, REST_SPREAD
from wattserve_server.energy.window import Window

PAUSE_NS, PAUSE_PERIODS = 800_000_000, 8
"""A warm-up that has paused for so long, and for so many updates of the counter, is over; the calibration's
own rests (`trials`) are shorter."""

MOST_HELD = 1024
"""No more edges than this are held back."""

FIRST_RUN_ECHO_S = 0.3
"""For so long after the first run of a shape, what the counter says may still be of it."""

LISTEN_AGAIN, LISTEN_EVERY_S = 200, 20.0
"""After so many intervals with batches, and so many seconds, the response is looked at again."""

RECENT_INTERVALS, RECENT_BATCHES = 256, 2048
CALIBRATION_BATCHES = 65536
"""Of history that is kept while serving; of batches that one calibration hears."""


def busy_spans(
    windows: Sequence[Window], since_s: float, until_s: float, seconds: Seconds
) -> list[tuple[float, float]]:
    """Start and end of the windows that touch a span; `windows` by their start."""
    spans: list[tuple[float, float]] = []
    for window in windows:
        start_s = seconds(window.start_ns)
        if start_s >= until_s:
            break
        end_s = seconds(window.end_ns)
        if end_s > since_s:
            spans.append((start_s, end_s))
    return spans


class Calibrator:
    """response: how the device answers, as known now. is_model: the meter is a model that answers at once, so
    that there is no response to look for."""

    def __init__(self, seconds: Seconds, is_model: bool) -> None:
        self.response = Response()
        self._is_model = is_model
        self._seconds = seconds
        self._recent = History(RECENT_INTERVALS, RECENT_BATCHES)
        self._unheard = 0  # intervals with batches since the response was looked at
        self._heard_s = self._listen_at_s = 0.0

    def holds(
        self, waiting: Sequence[Window], edges: Sequence[Edge], known_until_ns: int, period_ns: float
    ) -> bool:
        """Whether what waits is a warm-up that is not over yet. period_ns: of the counter."""
        if not waiting or not all(window.is_warmup for window in waiting):
            return False
        if len(edges) >= MOST_HELD or any(edge.gap_reason for edge in edges):
            return False
        return known_until_ns - max(window.end_ns for window in waiting) <= max(
            PAUSE_NS, PAUSE_PERIODS * period_ns
        )

    def calibrate(
        self, waiting: Sequence[Window], edges: Sequence[Edge], last_end_s: float, to: EnergyFilter
    ) -> None:
        """Fit response, idle draw and laws to the warm-up that has been held back; nothing where there is
        too little of it. waiting: by start. last_end_s: when work had ended before it."""
        trials = [window for window in waiting if window.is_warmup and not window.is_first_run]
        if not trials:
            return
        history = History(MOST_HELD, CALIBRATION_BATCHES)
        for window in trials:
            self._add(history, window)
        first_runs = [window.end_ns for window in waiting if window.is_first_run]
        first_s = self._seconds(max(first_runs)) + FIRST_RUN_ECHO_S if first_runs else 0.0
        remaining = list(waiting)
        for edge in edges:
            start_s, at_s = self._seconds(edge.start_ns), self._seconds(edge.at_ns)
            while remaining and self._seconds(remaining[0].end_ns) <= start_s:
                remaining.pop(0)
            busy = busy_spans(remaining, start_s, at_s, self._seconds)
            rest_s = rest_times(start_s, at_s, busy, last_end_s)
            last_end_s = max([last_end_s, *(min(end, at_s) for _, end in busy)])
            if start_s < first_s or edge.is_first or edge.gap_reason:
                history.clear_intervals()
            else:
                history.add_interval(start_s, at_s, edge.energy_uj / 1e6, edge.deviation_ns / NS, rest_s)
        table = history.table()
        if table is None:
            return
        # Of figures that no law fits nothing is learned at once: the filter goes on from its first ideas.
        with contextlib.suppress(np.linalg.LinAlgError):
            self._learn(table, to)

    def _learn(self, table: Table, to: EnergyFilter) -> None:
        if not self._is_model:
            factors, columns = table.smooth_columns()
            width = SMOOTH * len(table.variants)
            self.response = find_response(table, factors, columns, width, self.response)
        spread_w = REST_SPREAD * float(to.idle_w.mean())
        to.start_from(fit(table, self.response, to.idle_w, spread_w, CORRECTION))

    def hear(self, edge: Edge, rest_s: Array, is_busy: bool) -> None:
        """One more interval of serving."""
        if edge.is_first:
            self.forget()
        else:
            start_s, at_s = self._seconds(edge.start_ns), self._seconds(edge.at_ns)
            self._recent.add_interval(start_s, at_s, edge.energy_uj / 1e6, edge.deviation_ns / NS, rest_s)
            self._unheard += is_busy
            self._heard_s = at_s

    def hear_batch(self, window: Window) -> None:
        self._add(self._recent, window)

    def listen_again(self, laws: EnergyFilter) -> None:
        """The response once more, when it is due: what the laws say of each batch of late, by variant."""
        if self._unheard < LISTEN_AGAIN or self._is_model or self._heard_s < self._listen_at_s:
            return
        self._unheard = 0
        self._listen_at_s = self._heard_s + LISTEN_EVERY_S
        table = self._recent.table()
        if table is None:
            return
        factors = np.zeros((len(table.tokens), 1))
        for index, name in enumerate(table.variants):
            mine = np.flatnonzero(table.variant == index)
            factors[mine, 0] = laws.predict(name, table.tokens[mine], table.lengths[mine])
        columns = table.variant[:, None]
        width = len(table.variants)
        self.response = find_response(table, factors, columns, width, self.response, only_near=True)

    def forget(self) -> None:
        """After a gap: what was heard does not connect to what comes."""
        self._recent.clear_intervals()

    def _add(self, history: History, window: Window) -> None:
        history.add_batch(
            window.variant,
            self._seconds(window.start_ns),
            self._seconds(window.end_ns),
            window.computed_tokens,
            window.padded_length,
        )
