"""The highest rate within an objective: which rate to try next, and what the trials so far say.

Pure: it names a rate, is told how the trial went, and names the next. Rates double or halve until one is met
and one is broken, then the interval is halved in logarithms. Before it ends both sides are tried once more,
since one unlucky trial would otherwise decide; where two trials disagree a third does. It knows nothing of
requests, clocks or servers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.figures.slo import ACHIEVED_LIMIT


@dataclass(frozen=True)
class Attempt:
    """One stretch of load, as the search counts it."""

    rate_per_second: float
    achieved_per_second: float
    met: bool | None  # None: it could not be decided, and a longer one follows
    reason: str  # why it was not met
    surely: bool = True  # False: undecided for the last time, and counted as not met


@dataclass(frozen=True)
class RateBounds:
    """The highest rate lies above the first rate, and below the others where they are known."""

    rate_per_second: float | None  # was met; None: no rate was
    broken_at: float | None  # the lowest that surely was not met
    undecided_at: float | None  # lower than that: could not be decided, and counted as not met
    ratio: float | None  # the lower of these two / rate_per_second
    trials: int
    reason: str  # why the search ended


class RateSearch:
    """Ask `next_rate` and `next_seconds`, run the trial, `record` it; until `next_rate` is None."""

    def __init__(
        self,
        start_rate: float,
        *,
        ratio: float = 1.05,
        most_trials: int = 30,
        most_repeats: int = 2,
        lowest_rate: float | None = None,
        highest_rate: float | None = None,
    ) -> None:
        """`ratio` of the two rates at which to stop; `most_repeats` longer trials of an undecided rate.

        `lowest_rate` is a thousandth of the start if not given; `highest_rate` what the client can do.
        """
        if not 0 < start_rate < math.inf:
            raise PlanError(f"a search starts at a rate above 0, not at {start_rate:g}/s")
        if not 1.001 <= ratio <= 2:
            raise PlanError(f"a search narrows down to a ratio from 1.001 to 2, not {ratio:g}")
        if most_trials < 1 or most_repeats < 0:
            raise PlanError(f"{most_trials} trials with {most_repeats} repeats find no rate; allow more")
        self._lowest = start_rate / 1000 if lowest_rate is None else lowest_rate
        self._highest = math.inf if highest_rate is None else highest_rate
        if not 0 < self._lowest <= self._highest:
            raise PlanError(f"no rate lies between {self._lowest:g}/s and {self._highest:g}/s")
        self._start = min(max(start_rate, self._lowest), self._highest)
        self._ratio = ratio
        self._most_trials = most_trials
        self._most_repeats = most_repeats
        self._trials: list[Attempt] = []

    @property
    def trials(self) -> tuple[Attempt, ...]:
        return tuple(self._trials)

    def next_rate(self) -> float | None:
        """The rate to try now, per second; None when the search is over."""
        if len(self._trials) >= self._most_trials:
            return None
        if self._repeats:
            return self._trials[-1].rate_per_second
        met, broken = self._bracket()
        if broken is None:
            if met is None:
                return self._start
            return self._again(met) if met >= self._highest else min(met * 2, self._highest)
        if met is None:
            return self._again(broken) if broken <= self._lowest else max(broken / 2, self._lowest)
        above = [rate for rate, is_met in self._verdicts().items() if is_met and rate > broken]
        if above and self._again(broken) is not None:
            return broken
        if broken / met > self._ratio:
            return math.sqrt(met * broken)
        return self._again(broken) or self._again(met)

    def next_seconds(self, base_seconds: float) -> float:
        """How long the next trial should take: twice as long for each time that its rate stayed undecided."""
        return float(base_seconds * 2**self._repeats)

    def record(self, rate: float, achieved_rate: float, verdict: str, reason: str) -> None:
        """How a trial at `rate` went (met, broken, undecided), and why it was not met.

        `achieved_rate` is `rate` times sent / scheduled requests of the window, so that the luck of random
        arrivals is not held against it. Below 99 % the trial was not at that rate, and counts as broken. So
        does a rate that is undecided for the last time: the safe side.
        """
        is_met: bool | None = verdict == "met"
        if achieved_rate < ACHIEVED_LIMIT * rate:
            verdict, is_met = "broken", False
            reason = f"only {achieved_rate:.4g} of {rate:.4g} requests per second were sent"
        elif verdict == "undecided" and self._repeats < self._most_repeats:
            is_met = None
        reason = "" if is_met else reason
        self._trials.append(Attempt(rate, achieved_rate, is_met, reason, surely=verdict != "undecided"))

    def result(self) -> RateBounds:
        """What is known so far; final when `next_rate` is None."""
        met, limit = self._bracket()
        ratio = limit / met if met is not None and limit is not None else None
        broken = min(filter(self._surely_broken, self._verdicts()), default=None)
        undecided = None if limit == broken else limit
        return RateBounds(met, broken, undecided, ratio, len(self._trials), self._ending(met, limit, ratio))

    @property
    def _repeats(self) -> int:
        """How often the last rate was undecided in a row; 0 when it is settled."""
        count = 0
        for trial in reversed(self._trials):
            if trial.met is not None:
                break
            count += 1
        return count

    def _verdicts(self) -> dict[float, bool]:
        """Whether each rate is met in most of its trials; a draw is not."""
        tally: dict[float, int] = {}
        for trial in self._trials:
            if trial.met is not None:
                tally[trial.rate_per_second] = tally.get(trial.rate_per_second, 0) + (1 if trial.met else -1)
        return {rate: score > 0 for rate, score in tally.items()}

    def _surely_broken(self, rate: float) -> bool:
        """Whether more of its trials broke it beyond doubt than met it."""
        decided = [one.met for one in self._trials if one.rate_per_second == rate and one.surely]
        return decided.count(False) > decided.count(True)

    def _bracket(self) -> tuple[float | None, float | None]:
        """The highest met rate, and the lowest above it that was not."""
        verdicts = self._verdicts()
        broken = min((rate for rate, met in verdicts.items() if not met), default=None)
        met = max(
            (rate for rate, met in verdicts.items() if met and (broken is None or rate < broken)),
            default=None,
        )
        return met, broken

    def _again(self, rate: float) -> float | None:
        """The rate itself while its trials do not settle it: one alone, or one against one."""
        settled = [trial.met for trial in self._trials if trial.rate_per_second == rate]
        decided = [met for met in settled if met is not None]
        disagree = len(decided) == 2 and decided[0] != decided[1]
        return rate if len(decided) < 2 or disagree else None

    def _ending(self, met: float | None, broken: float | None, ratio: float | None) -> str:
        if self.next_rate() is not None:
            return "the search is not over"
        why = next((one.reason for one in self._trials if one.rate_per_second == broken and one.reason), "")
        if ratio is not None and ratio <= self._ratio:
            return why
        if len(self._trials) >= self._most_trials:
            return f"it ended at its limit of {self._most_trials} trials" + (f"; {why}" if why else "")
        if met is None:
            return f"{self._lowest:.4g}/s is the lowest rate that is tried: {why}"
        return f"{self._highest:.4g}/s is the highest rate that is tried"
