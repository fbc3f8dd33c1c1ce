"""From what the user asked for to a plan that the servers can carry out, and what the client can send."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from wattserve_common.dataset import Dataset
from wattserve_loadgen import words
from wattserve_loadgen.drive import calibration
from wattserve_loadgen.drive.null_server import GENERATION
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.model.results import Ceiling
from wattserve_loadgen.model.server_info import sensor_period_seconds
from wattserve_loadgen.plan import budget
from wattserve_loadgen.plan.load import POISSON, Arm, Load
from wattserve_loadgen.plan.options import SweepOptions
from wattserve_loadgen.plan.schedule import Plan, make_plan
from wattserve_loadgen.sweeping import checks
from wattserve_loadgen.sweeping.servers import SERVER, Site
from wattserve_loadgen.target.oip import OipTarget
from wattserve_loadgen.target.wire import GENERATE

ASIDE_S = 0.7  # of a cell beside its load, about: settling, reading, writing
_ROWS_WEIGHED = 200
# What the search for one variant may take where no budget says it: the longer of both.
_SEARCH_WINDOWS, _SEARCH_S = 60, 300.0


def choose_arms(sites: dict[str, Site], asked: tuple[str, ...] | None, *, twin: bool) -> list[Arm]:
    """What is compared, the baseline first; `twin`: the baseline once more under a second name, last."""
    arms = []
    for name, site in sites.items():
        if name == SERVER:
            variants = checks.choose_variants(site.info, asked)
            arms += [Arm(variant, variant, name) for variant in variants]
        else:
            arms += [Arm(f"{name}:{model.name}", model.name, name) for model in site.info.variants]
    if twin and arms:
        first = arms[0]
        arms.append(replace(first, name=f"{first.name} (A/A)", twin_of=first.name))
    return arms


def plan_of(options: SweepOptions, sites: dict[str, Site], dataset: Dataset) -> Plan:
    """The plan asked for, once every server has been checked against it; PlanError when one cannot."""
    plan = make_plan(
        options.preset,
        choose_arms(sites, options.variants, twin=options.twin),
        loads=() if options.find_max and options.loads is None else options.loads,
        blocks=options.blocks,
        seconds=options.seconds,
        seed=options.seed,
        least_requests=options.least_requests,
        objective=options.objective,
    )
    if options.find_max and not options.objective:
        raise PlanError("--find-max needs an objective: --slo 'p99<50ms'")
    if not plan.loads and not options.find_max:
        raise PlanError("no load to put on the server")
    for name, site in sites.items():
        checks.check(site.info, variants_on(plan.arms, name), plan.loads, dataset, plan.objective)
        if options.stream and site.target.connection.method == GENERATE:
            raise PlanError("--stream: a language model always answers with a stream; leave it out")
    return plan


def fit_budget(plan: Plan, budget_s: float, *, find_max: bool) -> tuple[Plan, list[str], float]:
    """The part of a plan that fits, what was left out in words, and the seconds that a search may take: what
    the cells leave of the time, and at least half of it.
    """
    if not find_max:
        return *budget.fit(plan, budget_s, aside_seconds_per_cell=ASIDE_S), 0.0
    fitted, left_out = budget.fit(with_searched(plan), budget_s / 2, aside_seconds_per_cell=ASIDE_S)
    search_s = budget_s - budget.plan_seconds(fitted, ASIDE_S)
    said = f"the search ends after {words.duration(search_s)}, with what it knows by then"
    return replace(fitted, own_loads={}), [*left_out, said], search_s


def search_limit_s(plan: Plan) -> float:
    """The most that the searches of a sweep may take together where no budget says it."""
    return max(_SEARCH_S, _SEARCH_WINDOWS * plan.seconds) * sum(not arm.twin_of for arm in plan.arms)


def with_searched(plan: Plan) -> Plan:
    """With one more load for each arm, as a search will find it: its rate is not known yet."""
    return replace(plan, own_loads={arm.name: [Load(POISSON, rate=1.0)] for arm in plan.arms})


def slowest_sensor_seconds(sites: Mapping[str, Site]) -> float | None:
    """The longest period of their energy sensors; None where none is stated."""
    periods = [sensor_period_seconds(site.witness.meter()) for site in sites.values()]
    return max(filter(None, periods), default=None)


def variants_on(arms: Sequence[Arm], site: str) -> list[str]:
    """The variants that are measured on a server."""
    return list(dict.fromkeys(arm.variant for arm in arms if arm.target == site))


async def ceilings_of(
    options: SweepOptions,
    plan: Plan,
    sites: dict[str, Site],
    dataset: Dataset,
    tell: Callable[[str], None],
) -> tuple[dict[str, Ceiling], list[str]]:
    """This client's ceiling against such servers by the arm's name, measured where none is stored; notes.
    `tell`: the user.
    """
    ceilings: dict[str, Ceiling] = {}
    notes: list[str] = []
    rows = range(min(_ROWS_WEIGHED, len(dataset.rows)))
    for name, site in sites.items():
        arms = [arm for arm in plan.arms if arm.target == name]
        requests = site.target.make_requests(dataset, [[row] for row in rows], arms[0].variant)
        size = round(statistics.median(map(len, requests)))
        kind = kind_of(site)
        ceiling: calibration.ClientCeiling | None
        if options.calibrate:
            ceiling, said = await calibration.ensure_ceiling(kind, size, options.processes, tell=tell)
        else:
            ceiling, note = calibration.stored_ceiling(kind, size, options.processes)
            said = [note] if note else []
        notes += said
        if ceiling is not None:
            tokens = statistics.fmean(dataset.max_new_tokens) if kind == GENERATION else 1.0
            ceilings |= dict.fromkeys((arm.name for arm in arms), ceiling.summary(tokens))
    return ceilings, notes


def kind_of(site: Site) -> str:
    """How it is called, in the words of calibrations."""
    if isinstance(site.target, OipTarget):
        return "oip"
    connection = site.target.connection
    if connection.method == GENERATE:
        return GENERATION
    return "stream" if connection.stream else "unary"
