"""The table of precision, latency, energy, accuracy and size, measured side by side in one process.

The offline twin of a loadgen sweep: no server, no queue, one caller. A figure that was not measured is
absent, and a footnote says why.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wattserve_server.config import ServerConfig
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.tuning import tune
from wattserve_server.engine.variants.verification import verify
from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.inspection.accuracy import answers, compared, no_accuracy
from wattserve_server.inspection.blocks import (
    Timed,
    Work,
    energy_ratio,
    rounds_for,
    speed_up,
    time_side_by_side,
)
from wattserve_server.inspection.data import Examples
from wattserve_server.inspection.environment import describe
from wattserve_server.inspection.joules import LEAST_BLOCK_S, BusyClock, Joulemeter, opened
from wattserve_server.inspection.output import SCHEMA_VERSION, say
from wattserve_server.inspection.subject import Examined, Subject, try_out

PERCENTS = (50.0, 95.0)


@dataclass(frozen=True)
class Plan:
    """iterations: timed runs of each variant, each of `batch_size` rows. warmup: runs before, untimed."""

    batch_size: int
    warmup: int
    iterations: int
    seed: int


@dataclass
class _Ready:
    """A variant that may be timed: verified, and warm."""

    examined: Examined
    work: Work
    warmup_runs: int
    meter: Joulemeter | None
    no_meter: str


def measure(config: ServerConfig, subject: Subject, examples: Examples, plan: Plan) -> dict[str, Any]:
    """The whole result as plain values: `rows`, and what a reader must know of how they came about. Raises
    ConfigError where no variant could be measured."""
    examined = list(subject.build())
    clocks = {each.variant.device: BusyClock() for each in examined}
    environment = describe(list(clocks), plan.seed)  # now: its load average is that of others
    refused: dict[str, str] = {}
    ready: dict[str, _Ready] = {}
    with ExitStack() as undo:
        meters = {device: _open(config, device, clock, subject, undo) for device, clock in clocks.items()}
        for each in examined:
            name, device = each.variant.name, each.variant.device
            try_out(each, subject.model)
            tune(each.variant)
            try:
                each.variant.verification = verify(each.variant)
            except ConfigError as error:
                refused[name] = str(error).partition("; --no-verify")[0]  # that flag is the server's
                continue
            say(f"warming up {name} on {device}")
            prepared = [each.variant.prepare(items) for items in _groups(examples, plan)]
            work = Work(each.variant, prepared, clocks[device])
            ready[name] = _Ready(each, work, work.warm_up(plan.warmup), *meters[device])
        if not ready:
            whys = "; ".join(refused.values())
            raise ConfigError(f"seed-table: no variant of {subject.model.name} is what it says: {whys}")
        blocks_s = [meter.block_s for meter, _ in meters.values() if meter and not meter.reason]
        rounds = rounds_for(plan.iterations, max(blocks_s, default=LEAST_BLOCK_S))
        timed, twins = _time(list(ready.values()), plan, rounds)
    say("answering the whole dataset for accuracy")
    rows_of = {name: answers(each.examined.variant, examples) for name, each in ready.items()}
    rows = []
    for each in examined:
        name = each.variant.name
        row = each.as_json() | {
            "tensor_bytes": each.variant.parameter_bytes,
            "verified": each.variant.verification.verified,
            "verification": each.variant.verification.words,
            "refused": refused.get(name),
        }
        if name in ready:
            fp32 = "" if each.is_reference else _reference(each, ready)
            row |= _latency(ready[name], timed[name], plan)
            row |= _energy(ready[name], timed[name], plan)
            row |= {"answers": compared(subject.model, examples, rows_of.get(fp32), rows_of[name])}
            row |= _ratios(timed.get(fp32), timed[name], ready[name].meter)
        rows.append(row)
    return {
        "schema": "wattserve.bench.seed_table",
        "schema_version": SCHEMA_VERSION,
        "environment": environment,
        "model": subject.as_json(),
        "data": examples.as_json() | {"rows_without_label": int((examples.labels < 0).sum())},
        "settings": {
            "batch_size": plan.batch_size,
            "warmup_runs": plan.warmup,
            "timed_runs": plan.iterations,
            "blocks": rounds,
            "meter": config.meter,
        },
        "meters": {
            str(device): meter.as_json() if meter else {"source": None, "reason": why}
            for device, (meter, why) in meters.items()
        },
        "accuracy_reason": no_accuracy(subject.model, examples) or None,
        "reference_reason": subject.no_reference or None,
        "fp32_against_itself": {
            str(ready[name].examined.variant.device): _ratios(timed[name], twin, ready[name].meter)
            for name, twin in twins.items()
        },
        "rows": rows,
    }


def _time(ready: list[_Ready], plan: Plan, rounds: int) -> tuple[dict[str, Timed], dict[str, Timed]]:
    """Every variant's blocks by its name, and those of fp32 once more: how far two of the same come apart
    shows what a difference is worth."""
    names = [each.examined.variant.name for each in ready]
    again = [each for each in ready if each.examined.is_reference]
    twice = ", and fp32 once more" if again else ""
    say(f"timing {', '.join(names)}{twice}: {plan.iterations} runs of each")
    entries = [*ready, *again]
    found = time_side_by_side(
        [each.work for each in entries],
        [each.meter for each in entries],
        [each.no_meter for each in entries],
        plan.iterations,
        rounds,
        plan.seed,
    )
    timed = dict(zip(names, found[: len(names)], strict=True))
    twins = {each.examined.variant.name: twin for each, twin in zip(again, found[len(names) :], strict=True)}
    return timed, twins


def _open(
    config: ServerConfig, device: torch.device, clock: BusyClock, subject: Subject, undo: ExitStack
) -> tuple[Joulemeter | None, str]:
    """The device's meter, or why it has none. Raises MeterError when the main device has not the meter that
    was asked for."""
    is_main = device == subject.device
    try:
        meter = undo.enter_context(opened(config, device, is_main, clock))
    except MeterError as error:
        if is_main:
            raise
        return None, str(error)
    say(f"{device}: {meter.notice}")
    return meter, ""


def _groups(examples: Examples, plan: Plan) -> list[list[Item]]:
    """Batches of rows in the dataset's order: as many as there are runs, or as the dataset has."""
    size = plan.batch_size
    starts = range(0, max(size, len(examples.items) - size + 1), size)
    return [list(examples.items[start : start + size]) for start in starts][: plan.iterations]


def _latency(ready: _Ready, timed: Timed, plan: Plan) -> dict[str, Any]:
    p50, p95 = (timed.percentile_ms(percent) for percent in PERCENTS)
    return {
        "warmup_runs": ready.warmup_runs,
        "timed_runs": len(timed.latencies_ns),
        "latency_p50_ms": p50,
        "latency_p95_ms": p95,
        "latency_mean_ms": float(np.mean(timed.latencies_ns)) / 1e6,
        "sequences_per_run": plan.batch_size,
    }


def _energy(ready: _Ready, timed: Timed, plan: Plan) -> dict[str, Any]:
    meter = ready.meter
    total = timed.energy_mj(plan.batch_size)
    reason = timed.reason or ready.no_meter
    active = None
    if meter is not None and total is not None:
        if meter.idle_watts is None:
            reason = reason or "the idle draw is not known"
        else:
            active = timed.energy_mj(plan.batch_size, meter.idle_watts)
            if active is None:
                reason = reason or "it drew no more than the idle draw that was measured before"
    return {
        "energy_active_mj": active,
        "energy_total_mj": total,
        "energy_quality": meter.source.quality.value if meter is not None and total is not None else None,
        "energy_runs": sum(span.runs for span in timed.spans),
        "energy_seconds": sum(span.seconds for span in timed.spans),
        "energy_blocks": len(timed.spans),
        "energy_reason": reason or None,
    }


def _ratios(fp32: Timed | None, timed: Timed, meter: Joulemeter | None) -> dict[str, Any]:
    if fp32 is None:
        return {"speed_up": None, "energy_ratio": None}
    ratio = None
    if meter is not None and meter.idle_watts is not None:
        ratio = energy_ratio(fp32, timed, meter.idle_watts)
    return {"speed_up": speed_up(fp32, timed), "energy_ratio": ratio}


def _reference(each: Examined, ready: dict[str, _Ready]) -> str:
    """The name of fp32 on the same device; empty where it was refused."""
    for name, other in ready.items():
        if other.examined.is_reference and other.examined.variant.device == each.variant.device:
            return name
    return ""
