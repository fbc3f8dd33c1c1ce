"""Finds each arm's highest rate within the objective: rounds of trials, every arm once in a round, so that
what drifts meets all alike. `figures.search` says which rate is next, `figures.slo` how a trial went.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from wattserve_common.stats import SAMPLE_FLOORS, effective_samples
from wattserve_loadgen import words
from wattserve_loadgen.drive.job import LoopResult
from wattserve_loadgen.figures.search import RateSearch
from wattserve_loadgen.figures.slo import judge, parse_objectives
from wattserve_loadgen.model.results import OUTCOMES, Search, Trial
from wattserve_loadgen.plan.load import POISSON, Arm, Load, closed
from wattserve_loadgen.plan.schedule import HEAT_UP_BLOCK, Cell, Plan
from wattserve_loadgen.sweeping.cells import schedule_of
from wattserve_loadgen.sweeping.progress import Display
from wattserve_loadgen.target.wire import CallFailure

_FULL_CONCURRENCY = 32
_FULL_S = 2.0
_FIRST_SHARE = 0.5  # of the rate of a closed loop: where a search begins
_SPARE_SAMPLES = 1.5  # answers of one batch are not independent
_LONGEST_S = 120.0  # of a trial that is tried for the first time
_ROUNDED = 4  # significant digits of a rate


@dataclass
class _Hunt:
    """The search of one arm."""

    arm: Arm
    search: RateSearch
    trials: list[Trial]


class Searching:
    """The search phase of one sweep."""

    def __init__(
        self,
        plan: Plan,
        trial: Callable[[Cell], Awaitable[LoopResult]],
        display: Display,
        ceilings: dict[str, float],
        stopped: Callable[[], bool],
    ) -> None:
        """`trial` puts a cell's load on its server. `ceilings`: the requests per second that this client may
        offer, by the arm's name.
        """
        self._plan, self._display = plan, display
        self._trial, self._ceilings, self._stopped = trial, ceilings, stopped
        self._objectives = parse_objectives(plan.objective)
        self._floor = max(SAMPLE_FLOORS[objective.percent] for objective in self._objectives) * _SPARE_SAMPLES

    async def run(
        self,
        before: Sequence[Search],
        save: Callable[[list[Search]], None],
        limit_s: float = math.inf,
    ) -> list[Search]:
        """A search for every arm but the baseline's twin. `before`: those of an interrupted sweep, to go on
        with. `save` is called with what is known after each trial. No trial begins that would not be over
        within `limit_s`.
        """
        give_up = time.monotonic() + limit_s
        earlier = {search.arm: search for search in before if search.trials}
        hunts = []
        for arm in self._plan.arms:
            if not arm.twin_of and not self._stopped():
                interrupted = earlier.get(arm.name)
                hunts.append(self._go_on(arm, interrupted) if interrupted else await self._begin(arm))
        turns = random.Random(f"search:{self._plan.seed}")
        while not self._stopped():
            open_hunts = [hunt for hunt in hunts if self._fits(hunt, give_up)]
            if not open_hunts:
                break
            turns.shuffle(open_hunts)
            for hunt in open_hunts:
                if not self._stopped() and self._fits(hunt, give_up):
                    await self._try_next(hunt, give_up)
                    save([self._told(any_hunt) for any_hunt in hunts])
        return [self._told(hunt, is_over=not self._stopped()) for hunt in hunts]

    def _fits(self, hunt: _Hunt, give_up: float) -> bool:
        """Whether its next trial would be over in time; none where it is over itself."""
        rate = hunt.search.next_rate()
        return rate is not None and time.monotonic() + self._trial_s(hunt, rate) <= give_up

    def _trial_s(self, hunt: _Hunt, rate: float) -> float:
        return hunt.search.next_seconds(max(self._plan.seconds, self._floor / rate))

    async def _begin(self, arm: Arm) -> _Hunt:
        """Half of what a closed loop reaches is where the search begins."""
        cell = Cell(0, HEAT_UP_BLOCK, arm, closed(_FULL_CONCURRENCY), 0.0, _FULL_S)
        loop = await self._trial(cell)
        reached = loop.done_per_second
        self._display.say(f"search   {arm.name:<14} a closed loop reaches {words.rate(reached)}")
        return _Hunt(arm, self._search(arm, max(reached * _FIRST_SHARE, self._lowest)), [])

    def _go_on(self, arm: Arm, before: Search) -> _Hunt:
        search = self._search(arm, before.trials[0].rate_per_second)
        for trial in before.trials:
            search.record(trial.rate_per_second, trial.rate_per_second, trial.judgement, trial.text)
        return _Hunt(arm, search, list(before.trials))

    def _search(self, arm: Arm, start: float) -> RateSearch:
        """No rate is tried that so short a trial could not decide, nor one that the client cannot offer."""
        highest = max(self._ceilings.get(arm.name, math.inf), self._lowest)
        return RateSearch(_round(min(start, highest)), lowest_rate=self._lowest, highest_rate=highest)

    @property
    def _lowest(self) -> float:
        """The rate at which the longest trial has the samples that the objective's percentile needs."""
        return _round(self._floor / max(_LONGEST_S, self._plan.seconds))

    async def _try_next(self, hunt: _Hunt, give_up: float) -> None:
        wanted = hunt.search.next_rate()
        if wanted is None:
            return
        trial_s, load = self._trial_s(hunt, wanted), Load(POISSON, rate=wanted)
        cell = Cell(len(hunt.trials) + 1, HEAT_UP_BLOCK, hunt.arm, load, self._plan.warmup_seconds, trial_s)
        loop = await self._trial(cell)
        if self._stopped():
            return
        latencies, failed, sent = _latencies(loop)
        worth = effective_samples(latencies)
        judgement = judge(self._objectives, latencies, worth, failed, sent)
        asked = max(1, len(schedule_of(self._plan, cell)))  # warm-up and all
        hunt.search.record(wanted, wanted * len(loop.sent_ns) / asked, judgement.verdict, judgement.text)
        counted = hunt.search.trials[-1]
        verdict, text = judgement.verdict, judgement.text
        if verdict == "met" and not counted.met:  # it was not at that rate
            verdict, text = "broken", counted.reason
        answered, rate = len(latencies), loop.done_per_second
        trial = Trial(wanted, rate, loop.window_s, verdict, text, answered, worth)
        hunt.trials.append(trial)
        left_s = max(0.0, give_up - time.monotonic())
        self._display.say(_trial_line(hunt.arm, trial, again=counted.met is None, left_s=left_s))

    def _told(self, hunt: _Hunt, *, is_over: bool = False) -> Search:
        result = hunt.search.result()
        search = Search(
            arm=hunt.arm.name,
            objective=self._plan.objective,
            rate_per_second=result.rate_per_second,
            broken_per_second=result.broken_at,
            trials=hunt.trials,
            ended="",
            undecided_per_second=result.undecided_at,
        )
        if hunt.search.next_rate() is None:
            return replace(search, ended=f"{search.bracket}; {result.reason}")
        return (
            replace(search, ended=f"{search.bracket}; the time for the search was up") if is_over else search
        )


def _trial_line(arm: Arm, trial: Trial, *, again: bool, left_s: float) -> str:
    """`search   fp32   367/s for 12 s  held      p99 at most 48.1 ms (4,390 answers worth 1,020, 366/s)`"""
    outcome = OUTCOMES[trial.judgement]
    if trial.judgement == "undecided":
        outcome += ": again, longer" if again else ": counts as not held"
    worth = "" if trial.effective_samples is None else f" worth {trial.effective_samples:,.0f}"
    left = f"  · at most {words.duration(left_s)} left" if left_s < math.inf else ""
    return (
        f"search   {arm.name:<14} {words.rate(trial.rate_per_second):>9} for"
        f" {words.duration(trial.seconds):<5} {outcome:<8}  {trial.text} ({trial.answered:,} answers{worth},"
        f" {words.rate(trial.achieved_per_second)}){left}"
    )


def loads_found(plan: Plan, searches: list[Search]) -> dict[str, list[Load]]:
    """What each arm is measured under in the blocks; the baseline's twin under the baseline's."""
    rates = {search.arm: search.rate_per_second for search in searches if search.rate_per_second}
    loads = {}
    for arm in plan.arms:
        rate = rates.get(arm.twin_of or arm.name)
        if rate is not None and f"{rate:.6g}" not in [f"{load.rate:.6g}" for load in plan.loads if load.rate]:
            loads[arm.name] = [Load(POISSON, rate=rate)]
    return loads


def _latencies(loop: LoopResult) -> tuple[npt.NDArray[np.int64], int, int]:
    """Response times of its window's answers in the order of sending; how many failed, and were sent."""
    window = loop.in_window()
    assert loop.scheduled_ns is not None  # trials are open loops
    failed = np.fromiter(
        (isinstance(outcome, CallFailure) for outcome in loop.outcomes), np.bool_, len(loop.outcomes)
    )
    latencies = (loop.done_ns - loop.scheduled_ns)[window & ~failed]
    return latencies, int((window & failed).sum()), int(window.sum())


def _round(rate: float) -> float:
    return float(f"{rate:.{_ROUNDED}g}")
