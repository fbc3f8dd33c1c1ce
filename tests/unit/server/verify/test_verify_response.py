"""The step response: which model, inside the server's grid or not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.verify_rig import VirtualRig, played
from wattserve_server.verify.readings import Array, Spell
from wattserve_server.verify.response import measure_response, response_of, shown, spans_of, verdict_of
from wattserve_server.verify.verdicts import Status

GRID = (0.09, {"ramp": 0.08})  # a small one
TOOK_S = 480.0


def spell_of(model: str, lag_s: float, smear_s: float, busy: Array) -> Spell:
    """A counter of 40 ms: 50 W, and 200 W more for what ran, as this model shows it."""
    at_s = np.arange(0.0, 40.0, 0.04)
    since_s, past_s = at_s[:, None] - busy[:, 0], at_s[:, None] - busy[:, 1]
    worked_s = (shown(model, since_s, lag_s, smear_s) - shown(model, past_s, lag_s, smear_s)).sum(axis=1)
    return Spell(at_s, 50 * at_s + 200 * worked_s, np.zeros(len(at_s)))


@pytest.mark.parametrize(
    ("model", "lag_s", "smear_s"), [("lag", 0.05, 0.0), ("ramp", 0.02, 0.1), ("box", 0.03, 0.2)]
)
def test_the_model_that_made_the_counter_explains_it_best(model: str, lag_s: float, smear_s: float) -> None:
    starts_s = np.arange(2.0, 38.0, 3.0)
    busy = np.stack([starts_s, starts_s + 1.0], axis=1)
    found = response_of(spell_of(model, lag_s, smear_s, busy), busy, [0.0, *(starts_s - 1.0), 40.0])
    assert found is not None
    assert found.best.name == model
    assert found.best.lag_s == pytest.approx(lag_s, abs=0.005)
    assert found.best.smear_s == pytest.approx(smear_s, rel=0.1)
    assert 3 * found.best.residual < found.models[-1].residual


def test_a_lag_inside_the_grid_is_held() -> None:
    found = played(measure_response(VirtualRig(lag_s=0.03), 24.0))
    verdict = verdict_of(found, *GRID, TOOK_S)
    assert verdict.status is Status.HELD, verdict.why
    assert found is not None
    assert found.best.watts == pytest.approx(250.0, rel=0.03)


def test_a_lag_outside_the_grid_is_missed() -> None:
    verdict = verdict_of(played(measure_response(VirtualRig(lag_s=0.25), 24.0)), *GRID, TOOK_S)
    assert verdict.status is Status.MISSED
    assert verdict.name == "response inside the grid: lag"


def test_a_trailing_average_that_the_server_does_not_know_is_missed() -> None:
    starts_s = np.arange(2.0, 38.0, 3.0)
    busy = np.stack([starts_s, starts_s + 1.0], axis=1)
    found = response_of(spell_of("box", 0.0, 1.0, busy), busy, [0.0, *(starts_s - 1.0), 40.0])
    verdict = verdict_of(found, *GRID, TOOK_S)
    assert (verdict.status, verdict.name) == (Status.MISSED, "response inside the grid: box")


def test_a_counter_that_hardly_changes_shows_no_response() -> None:
    found = played(measure_response(VirtualRig(period_s=30.0), 12.0))
    assert verdict_of(found, *GRID, TOOK_S).status is Status.NOT_MEASURED


def test_windows_near_each_other_are_one_piece_of_work() -> None:
    rig = VirtualRig()

    async def two_pieces() -> None:
        for pause_s in (0.001, 0.001, 0.5):
            await rig.ask("fp32", (1, 8))
            await rig.rest(pause_s)
        await rig.ask("fp32", (1, 8))

    played(two_pieces())
    assert len(spans_of(rig.windows(0, rig.now_ns()))) == 2
