"""What receipts say of a variant that was loaded beside traffic, and of those that served meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.bench.attribution.drive import Outcome
from tests.bench.attribution.realise import Realisation
from tests.bench.attribution.receipts import percent

FIRST = 30
"""Receipts with a figure that a newcomer is judged by first."""

KNOWN_AFTER_S = 30.0
"""So long after its first request, its cost should be known."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Ratios of sums of joules, each over the same requests' true joules; the rest in %.

    first_over_later: of its first receipts with a figure, over the same of its later ones.
    withheld: of its receipts from `KNOWN_AFTER_S` on. neighbours_over_true: of the others since the loading
    began, and neighbours_p95: their 95th percentile's error. falsely_warned: of the others, and of its own
    from `KNOWN_AFTER_S` on: nothing is there to be warned of.
    """

    first_over_true: float
    first_over_later: float
    withheld: float
    neighbours_over_true: float
    neighbours_p95: float
    falsely_warned: float


def look_at_newcomer(case: Realisation, outcome: Outcome) -> Newcomer | None:
    """None in a world that loads nothing."""
    loading, history = case.workload.loading, case.history
    if loading is None:
        return None
    starts_s = np.array([batch.start_s for batch in case.batches])[case.requests.batch]
    names = [law.name for law in case.world.variants]
    is_its_own = case.requests.variant == names.index(loading.variant)
    is_beside = ~is_its_own & (starts_s >= history.measured_from_s + loading.at_s)
    is_known = is_its_own & (starts_s >= history.loaded_s + KNOWN_AFTER_S)
    is_told = ~np.isnan(outcome.got_uj)
    told = np.flatnonzero(is_its_own & is_told)

    def over_true(chosen: np.ndarray) -> float:
        true_uj = case.requests.true_uj[chosen].sum()
        return float(outcome.got_uj[chosen].sum() / true_uj) if true_uj else float("nan")

    beside = np.flatnonzero(is_beside & is_told)
    off = np.abs(outcome.got_uj[beside] / case.requests.true_uj[beside] - 1)
    first = over_true(told[:FIRST])
    return Newcomer(
        first_over_true=first,
        first_over_later=first / over_true(told[FIRST:]),
        withheld=percent(~is_told[is_known]),
        neighbours_over_true=over_true(beside),
        neighbours_p95=100 * float(np.quantile(off, 0.95)) if len(off) else float("nan"),
        falsely_warned=percent(outcome.is_warned[is_beside | is_known]),
    )
