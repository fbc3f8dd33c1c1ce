"""Checks of what was measured: cells, drift, figures, devices, labels, accuracy. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.figures import steady
from wattserve_loadgen.figures.steady import JOULES, drift_series
from wattserve_loadgen.model.results import Check, Point, Results, TargetSummary
from wattserve_loadgen.model.server_info import standing_of
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.results.record_checks import RecordFacts, record_energies

IMPLAUSIBLE_LOSS = 0.05  # of all rows, more or fewer right than the baseline for certain
_NATIVE = "native"
_DRIFTS = ("drift", "energy drift")


def every_cell(results: Results) -> Check:
    """Each planned cell ran, once and to its end."""
    planned = [(cell.block, cell.arm.name, cell.load.name) for cell in schedule.cells(results.plan)]
    wanted = [key for key in planned if key[0] != schedule.HEAT_UP_BLOCK]
    ran = [(cell.block, cell.arm, cell.load) for cell in results.cells]
    missing = [key for key in wanted if key not in set(ran)]
    wrong = []
    if missing:
        block, arm, load = missing[0]
        wrong.append(f"{len(missing)} of {len(wanted)} are missing (block {block}: {arm}, {load})")
    if len(set(ran)) < len(ran):
        wrong.append(f"{len(ran) - len(set(ran))} are there twice")
    stopped = [cell for cell in results.cells if cell.stopped]
    if stopped:
        wrong.append(f"{len(stopped)} ended early: {stopped[0].stopped}")
    if not results.complete and not wrong:
        wrong.append(f"the sweep ended early: {results.ended}")
    return Check("every cell", not wrong, "; ".join(wrong) or f"all {len(wanted)} planned cells ran")


def steady_state(results: Results) -> Check:
    """No point has a verdict on drift. What could not be tested is listed with its points."""
    wrong, untested, held = list[str](), dict[str, list[str]](), 0
    for point in results.points:
        where = f"{point.arm} under {point.load}"
        wrong += [f"{where}: {one.text}" for one in point.verdicts if one.code in _DRIFTS]
        tested, missing = _tested(results, point)
        held += tested
        if missing:
            untested.setdefault(missing, []).append(where)
    not_tested = [f"{what}: {', '.join(points)}" for what, points in untested.items()]
    if wrong:
        text = words.first_of(wrong)
    elif held:
        text = f"what could be tested holds still in {held} of {len(results.points)} points"
    else:
        text = "no point was tested for drift"
    if not_tested:
        text += f"; not tested: {'; '.join(not_tested)}"
    return Check("steady state", not wrong if wrong or held else None, text)


def _tested(results: Results, point: Point) -> tuple[bool, str]:
    """Whether any figure of a point could be tested for drift, and which could not, with the reason. Joules
    are not missed where there are none.
    """
    series = list(drift_series(results.load(point.load), results.cells_of(point)))
    if not series:
        return False, "a load that changes by design"
    tested, reasons = False, dict[str, list[str]]()
    for name, blocks in series:
        reason = steady.no_drift_reason(blocks) if blocks else "the windows are too short for slices"
        tested = tested or not reason
        if reason and (name != JOULES or point.shown.active_uj is not None):
            reasons.setdefault(reason, []).append(name)
    return tested, ", ".join(f"{' and '.join(names)} ({reason})" for reason, names in reasons.items())


def finite_figures(results: Results, facts: RecordFacts | None) -> Check:
    """No figure is infinite or not a number, no energy negative, no latency or rate zero."""
    wrong = [f"{path} is {value}" for path, value in _numbers(results) if not math.isfinite(value)]
    joules = 0
    for cell in results.cells:
        where = f"cell {cell.position} ({cell.arm}, {cell.load})"
        energy = cell.energy
        for name in ("active_uj_per_request", "idle_uj_per_request", "meter_uj_per_request"):
            value = getattr(energy, name)
            if value is not None and value < 0:
                wrong.append(f"{where}: {name} is {value:g}")
        if energy.active_uj_per_request is None and not energy.reason:
            wrong.append(f"{where}: no joules, and no reason")
        joules += energy.active_uj_per_request is not None
        if cell.answered and not (cell.latency.mean_ns or (cell.service and cell.service.mean_ns)):
            wrong.append(f"{where}: {cell.answered} answers, and no latency")
    if facts is not None and record_energies(facts):
        wrong.append(record_energies(facts))
    text = f"latencies and rates of {len(results.cells)} cells, joules of {joules}"
    return Check("finite figures", not wrong, words.first_of(wrong) or text)


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _numbers(one, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _numbers(one, f"{path}.{name}")
    elif is_dataclass(value):
        for part in fields(value):
            yield from _numbers(getattr(value, part.name), f"{path}.{part.name}".lstrip("."))


def declared_devices(results: Results) -> Check:
    """Each variant is on the device that the server declares; its torch can run there, and the meter
    covers it. A peer does not say where its models run.
    """
    wrong, told, silent = [], [], []
    for arm in results.plan.arms:
        target = results.target_of(arm)
        if not target.protocol.startswith(_NATIVE):
            silent.append(arm.name)
            continue
        device = str(results.about(arm).get("device") or "")
        torch = str((target.server.get("versions") or {}).get("torch") or "")
        metered = _metered(target)
        if not device:
            wrong.append(f"the server does not say where {arm.name} ran")
        elif device.startswith("cuda") and "+cpu" in torch:
            wrong.append(f"{arm.name} is declared on {device}, but torch {torch} runs on the CPU alone")
        elif metered and not any(_same_device(device, one) for one in metered):
            wrong.append(f"{arm.name} is declared on {device}, but the meter covers {', '.join(metered)}")
        else:
            told.append(f"{arm.name} on {device}")
    if not told and not wrong:
        return Check("declared device", None, "a peer does not say where its models run")
    notes = [f"not known of {', '.join(silent)}"] if silent else []
    return Check("declared device", not wrong, words.first_of(wrong) or "; ".join([", ".join(told), *notes]))


def _metered(target: TargetSummary) -> list[str]:
    """The devices that the server's meters, or parts of them, say they cover."""
    meters = [target.meter, *(target.server.get("other_meters") or [])]
    parts = [part for meter in meters for part in (meter, *(meter.get("parts") or []))]
    named = [str(part.get("device") or "") for part in parts]
    return [name for name in dict.fromkeys(named) if name]


def _same_device(one: str, other: str) -> bool:
    """`cuda` is `cuda:0`."""
    return one.removesuffix(":0") == other.removesuffix(":0")


def labelled(results: Results) -> Check:
    """What the server calls a proxy, or has not verified, is marked so in every cell and point."""
    wrong, marked = [], []
    for arm in results.plan.arms:
        standing = standing_of(results.about(arm))
        where: list[tuple[str, str, bool | None]] = [
            (f"cell {cell.position}", cell.proxy, cell.verified)
            for cell in results.cells
            if cell.arm == arm.name
        ]
        where += [
            (f"the point under {point.load}", point.proxy, point.verified)
            for point in results.points
            if point.arm == arm.name
        ]
        for place, proxy, verified in where:
            if bool(proxy) < bool(standing.proxy):
                wrong.append(f"{arm.name} is a proxy ({standing.proxy}), and {place} does not say so")
            if standing.verified is False and verified is not False:
                wrong.append(f"the precision of {arm.name} is not verified, and {place} does not say so")
        if standing.proxy or standing.verified is False:
            marked.append(standing.mark(arm.name))
    text = f"marked: {', '.join(marked)}" if marked else "no variant is a proxy or unverified"
    return Check("labelled", not wrong, words.first_of(wrong) or text)


def plausible_accuracy(results: Results, facts: RecordFacts | None) -> Check:
    """Better than always answering the commonest label, and near the baseline."""
    name = "plausible accuracy"
    if results.server.get("random_weights"):
        return Check(name, None, "the weights are random: accuracy means nothing")
    if not results.accuracy:
        return Check(name, None, results.accuracy_reason or "no accuracy was measured")
    commonest = None if facts is None else facts.commonest_share
    labels = results.server.get("labels") or []
    if commonest is not None:
        bar, rule = commonest, f" (always the commonest label: {words.percent(commonest)})"
    else:
        bar = 1 / len(labels) if labels else 0.0
        rule = f" (by chance: {words.percent(bar)})" if labels else ""
    wrong = []
    for arm, accuracy in results.accuracy.items():
        share = words.percent(accuracy.share)
        if accuracy.share <= bar:
            wrong.append(f"{arm}: {share}, no better than one answer for all rows ({words.percent(bar)})")
        low, high = accuracy.difference_low, accuracy.difference_high
        if low is not None and high is not None and (high < -IMPLAUSIBLE_LOSS or low > IMPLAUSIBLE_LOSS):
            wrong.append(f"{arm}: {share}, {words.change(accuracy.difference)} from {results.baseline}")
    shares = ", ".join(f"{arm} {words.percent(one.share)}" for arm, one in results.accuracy.items())
    return Check(name, not wrong, words.first_of(wrong) or f"{shares} of {results.accuracy_rows} rows{rule}")
