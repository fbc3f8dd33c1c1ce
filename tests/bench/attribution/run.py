"""One scenario from its draw to its figures; in a module of its own, so that worker processes find it."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.bench.attribution.drive import drive
from tests.bench.attribution.metrics import Result, evaluate
from tests.bench.attribution.parts import added, host_of, sum_of
from tests.bench.attribution.realise import realise
from tests.bench.attribution.scenarios import Scenario


def run(task: tuple[Scenario, int]) -> Result:
    """A scenario and a seed."""
    scenario, seed = task
    begun_s = time.process_time()
    case = realise(scenario.name, scenario.world, scenario.workload, seed)
    if scenario.host is None:
        outcome = drive(case)
    else:
        board, host = case, host_of(case, scenario.host, seed)
        case = sum_of(board, host)
        outcome = drive(case) if scenario.is_summed else added(case, drive(board), drive(host))
    result = evaluate(case, outcome, scenario.spans)
    return replace(result, seed=seed, cpu_s=time.process_time() - begun_s)
