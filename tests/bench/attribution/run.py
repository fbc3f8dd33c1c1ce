"""One scenario from its draw to its figures; in a module of its own, so that worker processes find it."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.bench.attribution.drive import Outcome, drive
from tests.bench.attribution.metrics import Result, evaluate
from tests.bench.attribution.parts import added, host_of, sum_of, together, told_together
from tests.bench.attribution.realise import Realisation, realise_several
from tests.bench.attribution.scenarios import Scenario


def run(task: tuple[Scenario, int]) -> Result:
    """A scenario and a seed."""
    scenario, seed = task
    begun_s = time.process_time()
    case, outcome = judge(scenario, seed)
    result = evaluate(case, outcome, scenario.spans)
    return replace(result, seed=seed, cpu_s=time.process_time() - begun_s)


def judge(scenario: Scenario, seed: int) -> tuple[Realisation, Outcome]:
    """What was true of all its devices together, and what was said of it."""
    worlds = [scenario.world, *scenario.beside]
    boards = realise_several(scenario.name, worlds, scenario.workload, seed)
    case = together(boards)
    host = None if scenario.host is None else host_of(case, scenario.host, seed)
    if host is not None and scenario.is_summed:
        whole = sum_of(case, host)
        return whole, drive(whole)
    outcome = told_together(case, boards, [drive(board) for board in boards])
    if host is None:
        return case, outcome
    whole = sum_of(case, host)
    return whole, added(whole, outcome, drive(host))
