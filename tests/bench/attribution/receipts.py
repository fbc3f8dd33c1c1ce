"""What a caller reads off receipts: how often there is no figure, how wrong one is, how well it knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.bench.attribution.drive import Outcome
from tests.bench.attribution.realise import Realisation
from tests.bench.attribution.world import Floats

WRONG = 100.0
"""The error of a figure that is withheld or infinitely wide, in %."""

INTERVAL = 1.96
"""Half of a 95 % interval, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a workload: requests whose batch starts from `from_s` until `until_s` after its begin, and in
    as long a time every `every_s` after that."""

    name: str
    from_s: float
    until_s: float
    every_s: float = float("inf")

    def holds(self, since_s: Floats) -> np.ndarray:
        """Which of these instants are in it."""
        is_in = (since_s - self.from_s) % self.every_s < self.until_s - self.from_s
        return np.asarray((since_s >= self.from_s) & is_in)


@dataclass(frozen=True, slots=True)
class Receipts:
    """Of the requests of a workload or a part of it, in %; NaN where there is nothing to say.

    withheld: without a figure. warned: with a warning. median, p95: errors, `WRONG` where there is no
    figure or no end of its interval. bias: of the worst variant's sum, and covered: by the interval, both
    of the others. half_width: median of half the interval over the truth, where there is a figure.
    """

    requests: int
    withheld: float
    warned: float
    median: float
    p95: float
    bias: float
    covered: float
    half_width: float


def errors(got_uj: Floats, deviation_uj: Floats, true_uj: Floats) -> Floats:
    """In % of the truth."""
    off: Floats = 100 * np.abs(got_uj - true_uj) / true_uj
    return np.where(np.isfinite(deviation_uj), off, np.fmax(off, WRONG))


def worst_bias(got_uj: Floats, true_uj: Floats, variant: np.ndarray) -> float:
    """Of the variants' sums against their true sums, in %; NaN without a request."""
    if not len(got_uj):
        return float("nan")
    sums = np.bincount(variant, true_uj)
    present = sums > 0
    return 100 * float(np.abs(np.bincount(variant, got_uj)[present] / sums[present] - 1).max())


def is_covered(got_uj: Floats, deviation_uj: Floats, true_uj: Floats) -> np.ndarray:
    return np.asarray(np.abs(got_uj - true_uj) <= INTERVAL * deviation_uj)


def percent(flags: np.ndarray) -> float:
    return 100 * float(np.mean(flags)) if len(flags) else float("nan")


def read(case: Realisation, outcome: Outcome, span: Span | None = None) -> Receipts:
    """Of the whole workload where no span of it is named."""
    starts_s = np.array([batch.start_s for batch in case.batches])[case.requests.batch]
    since_s = starts_s - case.history.measured_from_s
    chosen = np.ones(len(since_s), bool)
    if span is not None:
        chosen = span.holds(since_s)
    got, true = outcome.got_uj[chosen], case.requests.true_uj[chosen]
    deviation, variant = outcome.deviation_uj[chosen], case.requests.variant[chosen]
    if not len(got):
        nan = float("nan")
        return Receipts(0, nan, nan, nan, nan, nan, nan, nan)
    told = ~np.isnan(got)
    whole = told & np.isfinite(deviation)
    error = errors(got, deviation, true)
    widths = 100 * INTERVAL * deviation[told] / true[told]
    return Receipts(
        requests=len(got),
        withheld=percent(~told),
        warned=percent(outcome.is_warned[chosen]),
        median=float(np.median(error)),
        p95=float(np.quantile(error, 0.95)),
        bias=worst_bias(got[whole], true[whole], variant[whole]),
        covered=percent(is_covered(got[whole], deviation[whole], true[whole])),
        half_width=float(np.median(widths)) if len(widths) else float("nan"),
    )
