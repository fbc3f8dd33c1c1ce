"""One scenario from its draw to its figures; in a module of its own, so that worker processes find it."""

from __future__ import annotations

from tests.bench.attribution.drive import drive
from tests.bench.attribution.metrics import Result, evaluate
from tests.bench.attribution.realise import realise
from tests.bench.attribution.scenarios import Scenario


def run(task: tuple[Scenario, int]) -> Result:
    """A scenario and a seed."""
    scenario, seed = task
    case = realise(scenario.name, scenario.world, scenario.workload, seed)
    return evaluate(case, drive(case))
