"""How the filter begins again after an error in its work: from what the last good edge left behind.

Covariances are not kept. What was learned is taken up as values with doubts of their own, so that nothing of
a state that had gone wrong comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattserve_server.energy.costlaw import SMOOTH, Array
from wattserve_server.energy.device import Response
from wattserve_server.energy.estimate import IDLE, RESTED
from wattserve_server.energy.filter import CHANGE, CHANGE_ALONE, EnergyFilter

# A variance may be so far below 0 by rounding, relative to 1 and to the square of its value.
ROUNDED_VARIANCE = 1e-6

RESTARTED = "the energy accounts met an error and had to begin again ({})"


@dataclass(frozen=True, slots=True)
class Sound:
    """What is known after an edge: laws, idle draw by class of rest in watts (None: not known), response."""

    names: tuple[str, ...]  # of the laws
    bases: Array  # as in `Estimate`
    thetas: Array
    after_rest: tuple[float, ...]
    idle_w: Array | None
    response: Response


def sound(taught: EnergyFilter, response: Response) -> Sound:
    """Raises ArithmeticError for a filter whose state no energy can have."""
    estimate = taught.estimate
    values, variances = estimate.x, estimate.variances(slice(None))
    if not (np.isfinite(values).all() and np.isfinite(variances).all() and np.isfinite(response.reach_s)):
        raise ArithmeticError("the filter's state is not finite")
    if (variances < -ROUNDED_VARIANCE * (1 + values**2)).any():
        raise ArithmeticError("the filter's covariance is not positive")
    idle_w = estimate.idle_w.copy() if taught.idle_is_known else None
    laws = tuple(estimate.names), estimate.bases.copy(), estimate.thetas.copy()
    return Sound(*laws, estimate.after_rest, idle_w, response)


def resume(fresh: EnergyFilter, known: Sound) -> None:
    """Teach a new filter what was known; laws are doubted as those that have changed are."""
    estimate = fresh.estimate
    if known.idle_w is not None and not fresh.idle_is_known:
        fresh.hear_idle(float(known.idle_w.mean()))
        estimate.x[IDLE] = known.idle_w
    estimate.x[RESTED] = known.after_rest[1:]
    for name, base, theta in zip(known.names, known.bases, known.thetas, strict=True):
        if name in estimate.known:  # it is declared
            continue
        smooth = theta[:SMOOTH]
        doubt = CHANGE**2 * np.outer(smooth, smooth) + CHANGE_ALONE**2 * np.diag(smooth**2)
        estimate.put_variant(name, base, doubt)
        estimate.x[estimate.block(estimate.names.index(name))] = theta
