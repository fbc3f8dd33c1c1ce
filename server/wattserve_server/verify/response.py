"""The step response: pulses of work, and which model explains best when the counter shows them.

The fit is this command's own, and independent of the one that the server uses: pure functions of when work
ran and when the counter changed. Whether what it finds lies inside the server's grid is for the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from wattserve_common.stats import Interval, mean_interval
from wattserve_server.energy.receipt import Window
from wattserve_server.verify.readings import Array, Spell
from wattserve_server.verify.rig import Rig, work
from wattserve_server.verify.verdicts import Verdict, not_measured, within

NAME = "response inside the grid"

ON_S, OFF_S = 1.0, 2.0  # of a pulse
MOST_PULSES, LEAST_PULSES = 20, 4
GROUPS = 5  # of pulses, each fitted by itself: their scatter is the error of the fit
LEAST_EDGES = 12  # fewer say nothing of a response
JOINED_S = 0.05  # windows nearer than this are one piece of work
THINNED_S = 0.02  # of a continuous counter so many changes are enough

LAGS_S = np.arange(0.0, 0.6001, 0.02)
SMEARS_S = {
    "lag": (0.0,),
    "ramp": (0.01, 0.025, 0.05, 0.1, 0.2, 0.4),
    "box": (0.025, 0.05, 0.1, 0.2, 0.5, 1.0),
}
FINER_S = (0.01, 0.005, 0.0025)
STILL_S = 2.0  # so long before a group its work is still shown
RESOLUTION_S = FINER_S[-1]


@dataclass(frozen=True)
class Model:
    """What one model makes of all pulses. residual: root mean square of what it leaves of an interval's
    energy, relative to what the pulses add to an interval."""

    name: str
    lag_s: float
    smear_s: float  # time constant of a ramp, width of a box
    residual: float
    watts: float  # that work adds


@dataclass(frozen=True)
class StepResponse:
    pulses: int
    models: tuple[Model, ...]  # the best first
    lag_s: Interval | None  # by the best one, over groups of pulses
    smear_s: Interval | None

    @property
    def best(self) -> Model:
        return self.models[0]


async def measure_response(rig: Rig, seconds: float) -> StepResponse | None:
    """Takes about `seconds`; None where the counter showed too little."""
    pulses = int(min(max(seconds / (ON_S + OFF_S), LEAST_PULSES), MOST_PULSES))
    scale = min(seconds / (pulses * (ON_S + OFF_S)), 1.0)
    begun_ns = rig.now_ns()
    starts_ns = []
    for _ in range(pulses):
        await rig.rest(scale * OFF_S)
        starts_ns.append(rig.now_ns() - round(scale * OFF_S / 2 * 1e9))
        await work(rig, rig.variants[0], rig.shapes[-1], scale * ON_S)
    await rig.rest(scale * OFF_S)
    ended_ns = rig.now_ns()
    busy = spans_of(rig.windows(begun_ns, ended_ns))
    spell = rig.readings.spell(begun_ns, ended_ns)
    bounds_s = [*(start_ns / 1e9 for start_ns in starts_ns), ended_ns / 1e9]
    return response_of(spell, busy, bounds_s)


def spans_of(windows: Sequence[Window]) -> Array:
    """Where work ran: [pieces, (start, end)] in seconds."""
    pieces: list[list[float]] = []
    for window in sorted(windows, key=lambda window: window.start_ns):
        start_s, end_s = window.start_ns / 1e9, window.end_ns / 1e9
        if pieces and start_s - pieces[-1][1] < JOINED_S:
            pieces[-1][1] = max(pieces[-1][1], end_s)
        else:
            pieces.append([start_s, end_s])
    return np.array(pieces, dtype=float).reshape(-1, 2)


def response_of(spell: Spell, busy: Array, bounds_s: Sequence[float]) -> StepResponse | None:
    """bounds_s: in the rests between pulses: where groups of pulses may be parted."""
    edges = _thinned(spell)
    if len(edges.at_s) < LEAST_EDGES or not len(busy):
        return None
    models = sorted((_fit(edges, busy, name) for name in SMEARS_S), key=lambda model: model.residual)
    models = _simplest_first(models)
    best = models[0]
    groups = min(GROUPS, len(bounds_s) - 1)
    cuts = [bounds_s[round(index * (len(bounds_s) - 1) / groups)] for index in range(groups + 1)]
    fits = []
    for low_s, high_s in pairwise(cuts):
        inside = (edges.at_s >= low_s) & (edges.at_s <= high_s)
        if inside.sum() >= LEAST_EDGES:
            part = Spell(edges.at_s[inside], edges.joules[inside], edges.cost_s[inside])
            near = (busy[:, 1] > low_s - STILL_S) & (busy[:, 0] < high_s)
            fits.append(_fit(part, busy[near], best.name))
    return StepResponse(
        len(busy),
        tuple(models),
        mean_interval([fit.lag_s for fit in fits]),
        mean_interval([fit.smear_s for fit in fits]),
    )


def verdict_of(
    response: StepResponse | None, longest_lag_s: float, widest_s: dict[str, float], took_s: float
) -> Verdict:
    """longest_lag_s, widest_s: where the server's grid ends, the latter by model; 0: it has no such model."""
    if response is None:
        return not_measured(NAME, "the counter changed too seldom to show a response")
    best = response.best
    lag = _within_ms(f"{NAME}: lag", response.lag_s, longest_lag_s, took_s)
    if best.name == "lag":
        return lag
    smear = _within_ms(f"{NAME}: {best.name}", response.smear_s, widest_s.get(best.name, 0.0), took_s)
    return max((lag, smear), key=lambda verdict: ("held", "undecided", "MISSED").index(verdict.status.value))


def _within_ms(name: str, found: Interval | None, longest_s: float, took_s: float) -> Verdict:
    if found is None:
        return not_measured(name, "no group of pulses was long enough for a fit")
    half_ms = 1e3 * (RESOLUTION_S + (found.high - found.mean if found.high is not None else 0.0))
    low, high = (
        (None, None) if found.high is None else (1e3 * found.mean - half_ms, 1e3 * found.mean + half_ms)
    )
    return within(name, 1e3 * found.mean, low, high, 1e3 * longest_s + 2 * 1e3 * RESOLUTION_S, "ms", took_s)


def shown(model: str, at_s: Array, lag_s: float, smear_s: float) -> Array:
    """The integral, up to each instant, of what a unit step at 0 looks like."""
    since_s = np.maximum(at_s - lag_s, 0.0)
    if model == "ramp" and smear_s > 0:
        return np.asarray(since_s + smear_s * np.expm1(-since_s / smear_s))
    if model == "box" and smear_s > 0:
        return np.asarray(np.where(since_s < smear_s, since_s**2 / (2 * smear_s), since_s - smear_s / 2))
    return since_s


def _thinned(spell: Spell) -> Spell:
    edges = spell.edges()
    if spell.is_stepped or len(edges.at_s) < 2:
        return edges
    slots = np.floor((edges.at_s - edges.at_s[0]) / THINNED_S)
    first = np.unique(slots, return_index=True)[1]
    return Spell(edges.at_s[first], edges.joules[first], edges.cost_s[first])


def _fit(edges: Spell, busy: Array, name: str) -> Model:
    def of(lags_s: Iterable[float], smears_s: Iterable[float]) -> list[Model]:
        return [_explain(edges, busy, name, lag_s, smear_s) for lag_s in lags_s for smear_s in smears_s]

    def residual(model: Model) -> float:
        return model.residual

    best = min(of(LAGS_S, SMEARS_S[name]), key=residual)
    for step_s in FINER_S:
        steps_s = (-step_s, 0.0, step_s)
        lags_s = [max(best.lag_s + step, 0.0) for step in steps_s]
        wider = [max(best.smear_s * (1 + 10 * step), 0.0) for step in steps_s]
        best = min(of(lags_s, wider), key=residual)
    return best


def _explain(edges: Spell, busy: Array, name: str, lag_s: float, smear_s: float) -> Model:
    """Idle draw and watts of work by least squares over the intervals between updates."""
    since_s = edges.at_s[:, None] - busy[None, :, 0]
    past_s = edges.at_s[:, None] - busy[None, :, 1]
    worked_s = (shown(name, since_s, lag_s, smear_s) - shown(name, past_s, lag_s, smear_s)).sum(axis=1)
    design = np.stack([np.diff(edges.at_s), np.diff(worked_s)], axis=1)
    joules = np.diff(edges.joules)
    values = np.linalg.lstsq(design, joules, rcond=None)[0]
    left = float(np.sqrt(np.mean((joules - design @ values) ** 2)))
    typical = float(values[1]) * float(np.median(np.diff(edges.at_s)))
    return Model(name, float(lag_s), float(smear_s), left / typical if typical > 0 else 1e9, float(values[1]))


def _simplest_first(models: list[Model]) -> list[Model]:
    """The model of a lag alone stands first unless another leaves clearly less."""
    plain = next(model for model in models if model.name == "lag")
    if plain.residual <= 1.05 * models[0].residual:
        models = [plain, *(model for model in models if model is not plain)]
    return models
