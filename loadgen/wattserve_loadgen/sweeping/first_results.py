"""The results of a sweep before its first cell, and before an interrupted one goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wattserve_client import ServerInfo, VariantState
from wattserve_common.dataset import NO_LABEL, Dataset
from wattserve_common.machine import version_of
from wattserve_loadgen import words
from wattserve_loadgen.figures.verdicts import foreseen
from wattserve_loadgen.model.results import (
    SCHEMA,
    SCHEMA_VERSION,
    Ceiling,
    DatasetSummary,
    Results,
    TargetSummary,
)
from wattserve_loadgen.model.server_info import charged_by, remarks
from wattserve_loadgen.plan import arrivals, scenarios, schedule
from wattserve_loadgen.plan.budget import plan_seconds
from wattserve_loadgen.plan.options import SweepOptions
from wattserve_loadgen.plan.schedule import Plan
from wattserve_loadgen.sweeping.checks import client_of
from wattserve_loadgen.sweeping.environment import is_this_machine
from wattserve_loadgen.sweeping.planning import (
    ASIDE_S,
    slowest_sensor_seconds,
    variants_on,
    with_searched,
)
from wattserve_loadgen.sweeping.servers import Site, plain_variants

NOT_FINISHED = "not finished"  # how results say that a sweep is running, or was ended from outside


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
    for name, site in sites.items():
        same_machine = is_this_machine(site.target.address)
        notes += server_notes(site.info, variants_on(plan.arms, name), dataset, same_machine)
    reasons = [accuracy_reason(site.info, dataset) for site in sites.values()]
    targets = [site.summary() for site in sites.values()]
    return Results(
        schema=SCHEMA,
        schema_version=SCHEMA_VERSION,
        loadgen_version=version_of("wattserve") or "unknown",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(options.command),
        ended=NOT_FINISHED,
        cells_planned=sum(not cell.discarded for cell in schedule.cells(plan)),
        plan=plan,
        dataset=DatasetSummary(
            folder=str(dataset.folder),
            sha256=dataset.sha256,
            rows=len(dataset.rows),
            labelled=dataset.labelled,
            unlabelled_rows=int((dataset.labels == NO_LABEL).sum()),
            min_tokens=int(dataset.lengths.min()),
            mean_tokens=float(dataset.lengths.mean()),
            max_tokens=int(dataset.lengths.max()),
            description=dataset.description,
            pixel_shape=dataset.pixel_shape,
        ),
        client=client_of(options, targets),
        targets=targets,
        boundary=boundary(targets),
        energy_reason="nothing was measured",
        accuracy_reason=next(filter(None, reasons), ""),
        accuracy_rows=0,
        accuracy={},
        notes=list(dict.fromkeys(notes)),
        ceilings=list(dict.fromkeys(ceilings.values())),
    )


def resumed_results(before: Results, sites: Mapping[str, Site], ceilings: Mapping[str, Ceiling]) -> Results:
    """What an interrupted sweep found, with a note that it was resumed, and on which servers."""
    others = [
        target.address
        for target in before.targets
        if target.server.get("instance_id") != sites[target.name].info.instance_id
    ]
    ended = "it was killed" if before.ended == NOT_FINISHED else before.ended
    if ended.startswith("interrupted"):
        ended = f"it was {ended}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    text = f"Resumed at {now} with {words.counted(len(before.cells), 'cell')} measured, after {ended}"
    if others:
        text += f"; {' and '.join(others)} had been restarted, with the same model"
    return replace(
        before,
        ended=NOT_FINISHED,
        interruptions=[*before.interruptions, text + "."],
        ceilings=list(dict.fromkeys([*before.ceilings, *ceilings.values()])),
        checks=[],
    )


def recording_notes(plan: Plan) -> list[str]:
    """Recorded arrivals of which a cell plays only a part, or the same part several times."""
    notes = []
    for load in plan.loads:
        if not load.trace:
            continue
        recorded = float(arrivals.recorded(Path(load.trace), speed=load.speed).offsets_ns[-1]) / 1e9
        played = plan.warmup_seconds + plan.seconds
        if recorded > played:
            notes.append(
                f"{load.name}: each cell plays the first {played:g} s of {recorded:.6g} s (see --seconds)."
            )
        else:
            notes.append(f"{load.name}: lasts {recorded:.6g} s and is played over and over for {played:g} s.")
    return notes


def accuracy_reason(info: ServerInfo, dataset: Dataset) -> str:
    """Why accuracy does not apply, or ""."""
    if info.random_weights:
        return "the model has random weights"
    if not info.labels:
        return f"the task {info.task or 'of this model'} predicts no labels"
    return "the dataset has no labels" if (dataset.labels == NO_LABEL).all() else ""


def server_notes(
    info: ServerInfo, variants: Sequence[str], dataset: Dataset, same_machine: bool
) -> list[str]:
    """What a reader of the results must know of a server besides the figures."""
    notes = remarks(plain_variants(info), variants)
    notes += [
        f"The server could not make the variant {failed.name}, which is left out: {failed.state_reason}"
        for failed in info.variants
        if failed.state == VariantState.FAILED and failed.name not in variants
    ]
    devices = sorted({variant.device for variant in info.variants if variant.name in variants})
    if len(devices) > 1 and info.other_meters:
        notes.append(
            f"The variants ran on {' and '.join(devices)}, each with a meter of its own: their joules cover"
            " different hardware, and a ratio between them compares unlike figures."
        )
    if same_machine:
        notes.append(
            "The client ran on the server's machine: it took part of the CPU, and a meter that covers the"
            " whole machine counts the client's energy too."
        )
    own = dataset.label_names
    # A peer names none: its labels are only 0, 1, ...
    has_names = list(info.labels) != [str(index) for index in range(len(info.labels))]
    if own and has_names and sorted(own) != sorted(name.casefold() for name in info.labels):
        notes.append(
            f"The dataset names its labels {', '.join(own)} and the server {', '.join(info.labels)}:"
            " they are matched by index."
        )
    truncated = dataset.description.get("truncated_rows")
    if truncated:
        notes.append(
            f"{truncated} rows of the dataset were cut to {dataset.description.get('max_length')} tokens."
        )
    return notes


def boundary(targets: Sequence[TargetSummary]) -> str:
    """Which hardware the joules cover, and whether the client's own are among them."""
    said = []
    for target in targets:
        meters = [target.meter]
        if target.meter_origin == "server":
            own = target.meter.get("device")
            others = target.server.get("other_meters") or []
            meters += [meter for meter in others if own in charged_by(meter)]
        covered = " + ".join(filter(None, (str(meter.get("boundary") or "") for meter in meters)))
        if target.meter_origin == "none" or not covered:
            said.append(f"{target.name}: no meter.")
            continue
        who = "the server's meter" if target.meter_origin == "server" else "a meter that loadgen read itself"
        client = "is not in it"
        if is_this_machine(target.address) and any(map(_covers_processors, meters)):
            client = "ran on the same processors and is in it"
        said.append(f"{target.name}: {who} covers {covered.rstrip('.')}; the client {client}.")
    return " ".join(said)


def _covers_processors(meter: Mapping[str, Any]) -> bool:
    """Whether a meter counts whatever runs on the machine's processors."""
    return "rapl" in str((meter.get("source") or {}).get("name", ""))


def first_lines(results: Results, sites: Mapping[str, Site], search_s: float) -> list[str]:
    """What is said before the first request. `search_s`: the most that a search will take, 0 without one."""
    plan = results.plan
    where = ", ".join(f"{site.info.model_name} at {site.target.address}" for site in sites.values())
    arms = ", ".join(arm.name for arm in plan.arms)
    loads = [load.name for load in plan.loads]
    lines = []
    if search_s:
        loads.append(f"its highest rate within {plan.objective}")
        lines.append(
            f"a search finds that rate of each variant first: it takes at most {words.duration(search_s)}"
        )
        plan = with_searched(plan)
    cells = schedule.cells(plan)
    load_s = sum(schedule.load_seconds(cell) for cell in cells)
    lines = [
        f"{where}: {arms} under {'; '.join(loads)}",
        *lines,
        f"a heat-up block, then {plan.blocks} blocks of {len(plan.pairs())} cells of {plan.seconds:g} s:"
        f" about {words.duration(plan_seconds(plan, ASIDE_S))}, of it {words.duration(load_s)} of load",
        *foreseen(results.plan, slowest_sensor_seconds(sites), results.ceilings),
    ]
    if results.accuracy_reason:
        lines.append(f"no accuracy: {results.accuracy_reason}")
    elif results.dataset.unlabelled_rows:
        lines.append(words.unlabelled(results.dataset.unlabelled_rows, results.dataset.rows))
    for name, site in sites.items():
        lines += remarks(plain_variants(site.info), variants_on(plan.arms, name))
    if not results.ceilings:
        lines.append("this client's ceiling is not known: `loadgen calibrate` measures it")
    return lines
