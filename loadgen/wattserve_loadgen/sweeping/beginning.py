"""What a sweep says and holds before its first cell, or before it goes on with an older one's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.data.dataset import Dataset
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan import arrivals, scenarios, schedule
from wattserve_loadgen.plan.options import SweepOptions
from wattserve_loadgen.plan.schedule import Plan
from wattserve_loadgen.results.codec import message_to_plain
from wattserve_loadgen.results.schema import Ceiling, Results, TargetSummary
from wattserve_loadgen.results.standing import remarks
from wattserve_loadgen.sweeping import environment, preflight
from wattserve_loadgen.sweeping.opening import variants_on
from wattserve_loadgen.sweeping.site import Site, plain_difference

# What must be the same when an interrupted sweep goes on.
_SAME_CLIENT = ("cpu_model", "usable_cpus", "python", "processes", "deadline_seconds")


def first_results(
    options: SweepOptions,
    plan: Plan,
    sites: Mapping[str, Site],
    dataset: Dataset,
    ceilings: Mapping[str, Ceiling],
) -> Results:
    """Results without figures, with everything that is known before."""
    notes = [scenarios.remark(options.scenario)] if options.scenario else []
    notes += recording_notes(plan)
    reasons = []
    for name, site in sites.items():
        variants = variants_on(plan.arms, name)
        same_machine = environment.is_this_machine(site.target.address)
        notes += preflight.notes(site.info, variants, dataset, same_machine)
        reasons.append(preflight.accuracy_reason(site.info, dataset))
    targets = [site.summary() for site in sites.values()]
    unique = {repr(one): one for one in ceilings.values()}
    return replace(
        preflight.empty_results(plan, dataset, targets, client_of(options, targets), options.command),
        notes=list(dict.fromkeys(notes)),
        accuracy_reason=next(filter(None, reasons), ""),
        ceilings=list(unique.values()),
    )


def resumed_results(before: Results, sites: Mapping[str, Site], ceilings: Mapping[str, Ceiling]) -> Results:
    """What an interrupted sweep found, with a note that it was resumed, and on which servers."""
    others = [
        one.address
        for one in before.targets
        if one.server.get("instance_id") != message_to_plain(sites[one.name].info)["instance_id"]
    ]
    ended = "it was killed" if before.ended == preflight.NOT_FINISHED else before.ended
    now = datetime.now(UTC).isoformat(timespec="seconds")
    text = f"Resumed at {now} with {len(before.cells)} cells measured, after {ended}"
    if others:
        text += f"; {' and '.join(others)} had been restarted, with the same model"
    ceilings_known = {repr(one): one for one in (*before.ceilings, *ceilings.values())}
    return replace(
        before,
        ended=preflight.NOT_FINISHED,
        interruptions=[*before.interruptions, text + "."],
        ceilings=list(ceilings_known.values()),
        checks=[],
    )


def recording_notes(plan: Plan) -> list[str]:
    """Recorded arrivals of which a cell plays only a part, or the same part several times."""
    said = []
    for load in plan.loads:
        if not load.trace:
            continue
        recorded = float(arrivals.recorded(Path(load.trace), speed=load.speed).offsets_ns[-1]) / 1e9
        played = plan.warmup_seconds + plan.seconds
        if recorded > played:
            said.append(
                f"{load.name}: each cell plays the first {played:g} s of {recorded:.6g} s (see --seconds)."
            )
        else:
            said.append(f"{load.name}: lasts {recorded:.6g} s and is played over and over for {played:g} s.")
    return said


def client_of(options: SweepOptions, targets: Sequence[TargetSummary]) -> dict[str, Any]:
    """The client's machine, and how it asks."""
    asking = {"processes": options.processes, "deadline_seconds": options.deadline_seconds}
    return environment.describe_client([one.address for one in targets]) | asking


def check_same_sweep(
    before: Results, options: SweepOptions, plan: Plan, dataset: Dataset, sites: Mapping[str, Site]
) -> None:
    """PlanError when an interrupted sweep cannot go on, because its figures would not belong together."""
    if before.complete:
        raise PlanError("this sweep is complete: nothing is left to resume; --force measures it anew")
    if before.dataset.sha256 != dataset.sha256:
        raise PlanError(f"{dataset.folder}: is not the dataset that the interrupted sweep was measured with")
    if plan != replace(before.plan, own_loads={}):
        raise PlanError(
            f"the interrupted sweep had another plan ({_difference(before.plan, plan)}); resume it with"
            " --plan and the plan.toml in its folder, or measure anew into another one"
        )
    for target in before.targets:
        if target.name not in sites:
            raise PlanError(f"{target.address} was a server of the interrupted sweep: name it again")
        summary = sites[target.name].summary()
        change = plain_difference(target.server, summary.server)
        if change:
            raise PlanError(f"{target.address} is not the server of the interrupted sweep: {change}")
        for what in ("protocol", "meter_origin"):
            was, now = getattr(target, what), getattr(summary, what)
            if was != now:
                raise PlanError(
                    f"{target.name}: the interrupted sweep had the {what} {was}, and it is {now} now"
                )
    now_client = client_of(options, before.targets)
    for name in _SAME_CLIENT:
        if before.client.get(name) != now_client[name]:
            raise PlanError(
                f"the client's {name} was {before.client.get(name)} in the interrupted sweep, and is"
                f" {now_client[name]} now"
            )


def first_lines(results: Results, sites: Mapping[str, Site]) -> list[str]:
    """What is said before the first cell."""
    plan = results.plan
    planned = schedule.cells(plan)
    where = ", ".join(f"{site.info.model_name} at {site.target.address}" for site in sites.values())
    arms = ", ".join(arm.name for arm in plan.arms)
    loads = "; ".join(load.name for load in plan.loads) or "the rates that a search finds"
    seconds = sum(schedule.load_seconds(cell) for cell in planned)
    lines = [
        f"{where}: {arms} under {loads}",
        f"a heat-up block, then {plan.blocks} blocks of {len(plan.pairs())} cells of {plan.seconds:g} s:"
        f" {words.duration(seconds)} of load, and some settling",
    ]
    for name, site in sites.items():
        lines += remarks(preflight.plain_variants(site.info), variants_on(plan.arms, name))
    if not results.ceilings:
        lines.append("this client's ceiling is not known: `loadgen calibrate` measures it")
    return lines


def _difference(before: Plan, now: Plan) -> str:
    names = [name for name in before.__dataclass_fields__ if getattr(before, name) != getattr(now, name)]
    return ", ".join(names)
