"""The table of precision, latency, energy, accuracy and size, measured side by side in one process.

The offline twin of a loadgen sweep: no server, no queue, one caller. A figure that was not measured is
absent, and a footnote says why.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattserve_server.config import ServerConfig
from wattserve_server.console import say
from wattserve_server.engine.rows import Examples
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.tuning import tune
from wattserve_server.engine.variants.verification import verify
from wattserve_server.errors import ConfigError
from wattserve_tools.inspect.accuracy import answers, compared, no_accuracy
from wattserve_tools.inspect.blocks import (
    Timed,
    Work,
    energy_ratio,
    rounds_for,
    speed_up,
    time_side_by_side,
)
from wattserve_tools.inspect.joules import (
    BELOW_IDLE,
    IDLE_UNKNOWN,
    LEAST_BLOCK_S,
    BusyClock,
    Joulemeter,
    meters_as_json,
    open_meters,
)
from wattserve_tools.inspect.report import SCHEMA_VERSION, environment
from wattserve_tools.inspect.subject import Subject, reference_of, try_out


@dataclass(frozen=True)
class SeedPlan:
    batch_size: int  # rows in a run
    warmup: int  # runs before, untimed
    iterations: int  # timed runs of each variant
    seed: int


def measure(config: ServerConfig, subject: Subject, examples: Examples, plan: SeedPlan) -> dict[str, Any]:
    """The whole result as plain values: `rows`, and what a reader must know of how they came about. Raises
    ConfigError where no variant could be measured."""
    examined = list(subject.build())
    clocks = {entry.variant.device: BusyClock() for entry in examined}
    machine = environment(list(clocks), plan.seed)  # now: its load average is that of others
    refused: dict[str, str] = {}
    works: dict[str, Work] = {}
    with ExitStack() as undo:
        meters = open_meters(config, clocks, subject.device, undo)
        for device, meter in meters.items():
            if isinstance(meter, Joulemeter):
                say(f"{device}: {meter.notice}")
        for variant in (entry.variant for entry in examined):
            try_out(variant)
            tune(variant)
            try:
                variant.verification = verify(variant)
            except ConfigError as error:
                refused[variant.name] = str(error).partition("; --no-verify")[0]  # that flag is the server's
                continue
            say(f"warming up {variant.name} on {variant.device}")
            prepared = [variant.prepare(items) for items in _groups(examples, plan)]
            work = Work(variant, prepared, clocks[variant.device], meters[variant.device])
            work.warm_up(plan.warmup)
            works[variant.name] = work
        if not works:
            whys = "; ".join(refused.values())
            raise ConfigError(f"seed-table: no variant of {subject.model.name} is what it says: {whys}")
        reading = [meter for meter in meters.values() if isinstance(meter, Joulemeter) and not meter.reason]
        block_s = max((meter.block_s for meter in reading), default=LEAST_BLOCK_S)
        rounds = rounds_for(plan.iterations, block_s)
        ready = [entry for entry in examined if entry.variant.name in works]
        # fp32 once more: how far two of the same come apart shows what a difference is worth.
        again = [entry.variant for entry in ready if entry.is_reference]
        twice = ", and fp32 once more" if again else ""
        say(f"timing {', '.join(works)}{twice}: {plan.iterations} runs of each")
        entrants = [*works.values(), *(works[variant.name] for variant in again)]
        blocks = time_side_by_side(entrants, plan.iterations, rounds, plan.seed)
    timed = dict(zip(works, blocks, strict=False))
    twins = zip(again, blocks[len(works) :], strict=True)
    say("answering the whole dataset for accuracy")
    rows_of = {entry.variant.name: answers(entry.variant, examples) for entry in ready}
    rows = []
    for entry in examined:
        name = entry.variant.name
        row = entry.as_json() | {
            "tensor_bytes": entry.variant.parameter_bytes,
            "verified": entry.variant.verification.verified,
            "verification": entry.variant.verification.words,
            "refused": refused.get(name),
        }
        if name in works:
            fp32 = None if entry.is_reference else reference_of(entry, ready)
            fp32_name = fp32.variant.name if fp32 else ""
            row |= _latency(works[name], timed[name], plan)
            row |= _energy(works[name], timed[name], plan)
            row |= {"answers": compared(subject.model, examples, rows_of.get(fp32_name), rows_of[name])}
            row |= _ratios(timed.get(fp32_name), timed[name], works[name].meter)
        rows.append(row)
    return {
        "schema": "wattserve.bench.seed_table",
        "schema_version": SCHEMA_VERSION,
        "environment": machine,
        "model": subject.as_json(),
        "data": examples.as_json() | {"rows_without_label": int((examples.labels < 0).sum())},
        "settings": {
            "batch_size": plan.batch_size,
            "warmup_runs": plan.warmup,
            "timed_runs": plan.iterations,
            "blocks": rounds,
            "meter": config.meter,
        },
        "meters": meters_as_json(meters),
        "accuracy_reason": no_accuracy(subject.model, examples) or None,
        "reference_reason": subject.no_reference or None,
        "fp32_against_itself": {
            str(variant.device): _ratios(timed[variant.name], twin, works[variant.name].meter)
            for variant, twin in twins
        },
        "rows": rows,
    }


def _groups(examples: Examples, plan: SeedPlan) -> list[list[Item]]:
    """Batches of rows in the dataset's order: as many as there are runs, or as the dataset has."""
    size = plan.batch_size
    starts = range(0, max(size, len(examples.items) - size + 1), size)
    return [list(examples.items[start : start + size]) for start in starts][: plan.iterations]


def _latency(work: Work, timed: Timed, plan: SeedPlan) -> dict[str, Any]:
    return {
        "warmup_runs": work.warmup_runs,
        "timed_runs": len(timed.latencies_ns),
        "latency_p50_ms": timed.percentile_ms(50.0),
        "latency_p95_ms": timed.percentile_ms(95.0),
        "latency_mean_ms": float(np.mean(timed.latencies_ns)) / 1e6,
        "sequences_per_run": plan.batch_size,
    }


def _energy(work: Work, timed: Timed, plan: SeedPlan) -> dict[str, Any]:
    total = timed.energy_mj(plan.batch_size)
    active = quality = None
    reason = timed.reason
    if isinstance(work.meter, Joulemeter) and total is not None:
        quality = work.meter.source.quality.value
        if work.meter.idle_watts is None:
            reason = reason or IDLE_UNKNOWN
        else:
            active = timed.energy_mj(plan.batch_size, work.meter.idle_watts)
            if active is None:
                reason = reason or BELOW_IDLE
    return {
        "energy_active_mj": active,
        "energy_total_mj": total,
        "energy_quality": quality,
        "energy_runs": sum(span.runs for span in timed.spans),
        "energy_seconds": sum(span.seconds for span in timed.spans),
        "energy_blocks": len(timed.spans),
        "energy_reason": reason or None,
    }


def _ratios(fp32: Timed | None, timed: Timed, meter: Joulemeter | str) -> dict[str, Any]:
    if fp32 is None:
        return {"speed_up": None, "energy_ratio": None}
    ratio = None
    if isinstance(meter, Joulemeter) and meter.idle_watts is not None:
        ratio = energy_ratio(fp32, timed, meter.idle_watts)
    return {"speed_up": speed_up(fp32, timed), "energy_ratio": ratio}
