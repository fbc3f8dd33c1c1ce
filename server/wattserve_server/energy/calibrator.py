"""When to listen, and what to do with what was heard: calibration after a warm-up, the response again later.

While only warm-up runs, the accountant holds its edges back; once the warm-up is over, all of it is heard at
once and the filter starts from what it says. Later the response alone is looked at again from time to time.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import fmean

import numpy as np

from wattserve_server.energy.calibration import (
    STEPS_S,
    Arrays,
    CounterInterval,
    History,
    counted_at_random,
    find_response,
    fit,
)
from wattserve_server.energy.costlaw import Array
from wattserve_server.energy.device import Response, rest_times
from wattserve_server.energy.estimate import CORRECTION, IDLE, Estimate
from wattserve_server.energy.filter import EnergyFilter
from wattserve_server.energy.openbatches import TimedWindow

log = logging.getLogger(__name__)

# A warm-up that has paused for so long, and for so many updates of the counter, is over; the calibration's
# own rests (`engine.warmup`) are shorter.
PAUSE_S, PAUSE_PERIODS = 0.8, 8

MOST_HELD = 1024  # no more edges than this are held back
FIRST_RUN_ECHO_S = 0.3  # for so long after the first run of a shape, what the counter says may still be of it

# After so many intervals with batches, and so many seconds, the response is looked at again; and while it
# was never heard.
LISTEN_AGAIN, LISTEN_EVERY_S = 200, 20.0
LISTEN_FIRST, LISTEN_FIRST_EVERY_S = 32, 3.0

RECENT_INTERVALS, RECENT_BATCHES = 256, 2048
CALIBRATION_BATCHES = 65536  # of history that is kept while serving; of batches that one calibration hears


def busy_spans(batches: Iterable[TimedWindow], since_s: float, until_s: float) -> list[tuple[float, float]]:
    """Start and end of the batches that touch a span; `batches` by their start."""
    begun = takewhile(lambda batch: batch.start_s < until_s, batches)
    return [(batch.start_s, batch.end_s) for batch in begun if batch.end_s > since_s]


class Looked:
    """What the last calibration of each variant found to be counted at random, of those with one response or
    nearly: each is of few intervals, and one that is out of its place looks like much."""

    def __init__(self) -> None:
        self._delay_s = 0.0
        self._variances: dict[str, float] = {}

    def together(self, variants: Sequence[str], found: Response) -> float:
        """With one more calibration, of these variants."""
        if abs(found.delay_s - self._delay_s) > STEPS_S[0]:
            self._variances.clear()
        self._delay_s = found.delay_s
        self._variances.update(dict.fromkeys(variants, found.at_random**2))
        return math.sqrt(fmean(self._variances.values()))


class Calibrator:
    """Learns how the device answers. A meter that is a model answers at once: there is nothing to learn."""

    def __init__(self, is_model: bool, averages_s: float = 0.0) -> None:
        """averages_s: what the meter declares (`reading.Source`)."""
        self._averages_s = averages_s
        self.response = Response(average_s=averages_s)  # as known now
        self.is_heard = is_model  # whether it was found in what the counter said, or is a first idea
        self._is_model = is_model
        self._looked = Looked()
        self._recent = History(RECENT_INTERVALS, RECENT_BATCHES)
        self._unheard = 0  # intervals with batches since the response was looked at
        self._heard_s = self._listen_at_s = 0.0
        self._lawless_s = -math.inf  # the end of the last first run

    def holds(
        self,
        waiting: Sequence[TimedWindow],
        edges: Sequence[CounterInterval],
        known_until_s: float,
        period_s: float,
    ) -> bool:
        """Whether what waits is a warm-up that is not over yet. `period_s` is the counter's."""
        if not waiting or not all(batch.window.is_warmup for batch in waiting):
            return False
        if len(edges) >= MOST_HELD or any(edge.gap_reason for edge in edges):
            return False
        rest_s = known_until_s - max(batch.end_s for batch in waiting)
        return rest_s <= max(PAUSE_S, PAUSE_PERIODS * period_s) + self._averages_s

    def calibrate(
        self,
        waiting: Sequence[TimedWindow],
        edges: Sequence[CounterInterval],
        last_end_s: float,
        to: EnergyFilter,
    ) -> None:
        """Fit response, idle draw and laws to the warm-up that has been held back, as far as no request ran
        beside it; nothing where there is too little of that. `waiting` is in the order of starts. Work before
        it had ended at `last_end_s`."""
        warm_up = list(takewhile(lambda batch: batch.window.is_warmup, waiting))
        if all(batch.is_lawless for batch in warm_up):
            return
        until_s = waiting[len(warm_up)].start_s if len(warm_up) < len(waiting) else math.inf
        heard = list(takewhile(lambda edge: edge.end_s <= until_s, edges))
        echo_s = FIRST_RUN_ECHO_S
        # Of figures that no law fits nothing is learned at once: the filter goes on from its first ideas.
        with contextlib.suppress(np.linalg.LinAlgError):
            # Once more without the first runs' echo, where it turns out to be longer.
            while (arrays := self._arrays(warm_up, heard, last_end_s, echo_s)) is not None:
                self._find_response(arrays, (to.estimate.idle_w, to.estimate.p[IDLE, IDLE]))
                if self.response.reach_s <= echo_s:
                    at_random = self._looked.together(arrays.laws, self.response)
                    self.response = replace(self.response, at_random=at_random)
                    if self.response.unresolved:
                        log.warning(self.response.unresolved)
                    idle_w, idle_covariance = to.estimate.idle_w, to.estimate.p[IDLE, IDLE]
                    to.start_from(fit(arrays, self.response, idle_w, idle_covariance, CORRECTION))
                    return
                echo_s = self.response.reach_s

    def _arrays(
        self,
        warm_up: Sequence[TimedWindow],
        edges: Sequence[CounterInterval],
        last_end_s: float,
        echo_s: float,
    ) -> Arrays | None:
        """What was heard of the trials, once nothing of the first runs can be in it."""
        history = History(MOST_HELD, CALIBRATION_BATCHES)
        for batch in warm_up:
            if not batch.is_lawless:
                history.hear(batch)
        first_runs = [batch.end_s for batch in warm_up if batch.is_lawless]
        first_s = max(first_runs) + echo_s if first_runs else 0.0
        remaining = deque(warm_up)
        for edge in edges:
            while remaining and remaining[0].end_s <= edge.start_s:
                remaining.popleft()
            busy = busy_spans(remaining, edge.start_s, edge.end_s)
            rest_s = rest_times(edge.start_s, edge.end_s, busy, last_end_s)
            last_end_s = max([last_end_s, *(min(end, edge.end_s) for _, end in busy)])
            if edge.start_s < first_s or edge.is_first or edge.gap_reason:
                history.intervals.clear()
            else:
                history.intervals.append((edge, rest_s))
        return history.arrays()

    def _find_response(self, history: Arrays, idle: tuple[Array, Array]) -> None:
        if not self._is_model:
            factors, columns = history.shape_columns()
            width = int(columns.max()) + 1
            found = find_response(history, factors, columns, width, self.response, idle)
            at_random = counted_at_random(history, found, factors, columns, width)
            self.response = replace(found, at_random=at_random)
            self.is_heard = True

    def hear(self, edge: CounterInterval, rest_s: Array, is_busy: bool) -> None:
        """One more interval of serving. What a first run used hides how the counter answers: none that may
        hold something of it is listened to before that was heard; later it moves nothing."""
        echo_s = max(FIRST_RUN_ECHO_S, self.response.reach_s)
        if edge.is_first or (edge.start_s < self._lawless_s + echo_s and not self.is_heard):
            self.forget()
        else:
            self._recent.intervals.append((edge, rest_s))
            self._unheard += is_busy
            self._heard_s = edge.end_s

    def hear_batch(self, batch: TimedWindow) -> None:
        if batch.is_lawless:
            self._lawless_s = max(self._lawless_s, batch.end_s)
        else:
            self._recent.hear(batch)

    def listen_again(self, laws: Estimate) -> None:
        """The response once more, when it is due: what the laws say of each batch of late, by law."""
        enough, every_s = LISTEN_FIRST, LISTEN_FIRST_EVERY_S
        if self.is_heard:
            enough, every_s = LISTEN_AGAIN, LISTEN_EVERY_S
        if self._unheard < enough or self._is_model or self._heard_s < self._listen_at_s:
            return
        self._unheard = 0
        self._listen_at_s = self._heard_s + every_s
        history = self._recent.arrays()
        if history is None:
            return
        factors = laws.predict(history.laws, history.law, history.features)[:, None]
        columns = history.law[:, None]
        width = len(history.laws)
        found = find_response(history, factors, columns, width, self.response, only_near=True)
        self.is_heard |= found.reach_s != self.response.reach_s
        self.response = replace(found, at_random=self.response.at_random)

    def forget(self) -> None:
        """What was heard does not connect to what comes."""
        self._recent.intervals.clear()
