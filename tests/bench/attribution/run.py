"""One scenario from its draw to its figures; in a module of its own, so that worker processes find it."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.bench.attribution.drive import drive
from tests.bench.attribution.metrics import Result, evaluate
from tests.bench.attribution.realise import realise
from tests.bench.attribution.scenarios import Scenario


def run(task: tuple[Scenario, int]) -> Result:
    """A scenario and a seed."""
    scenario, seed = task
    begun_s = time.process_time()
    case = realise(scenario.name, scenario.world, scenario.workload, seed)
    result = evaluate(case, drive(case), scenario.spans)
    return replace(result, seed=seed, cpu_s=time.process_time() - begun_s)
