"""What a language model did in a cell: when its tokens came, and what they cost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.model.cells import GeneratedCell, Percentiles, Record, RecordedGeneration
from wattserve_loadgen.plan.load import OFFLINE, Load

Stamps = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GeneratedSamples:
    """Of the answered requests of a cell's window, in nanoseconds."""

    # time to first token, in the order of the schedule or of sending; none of an offline load
    ttft_ns: Stamps
    tpot_ns: Stamps  # time per output token behind the first, of each request with two or more, in that order
    itl_ns: Stamps  # from a message with tokens to the next, in the order in which they came


def generated_samples(load: Load, window: Sequence[Record]) -> GeneratedSamples | None:
    """None where nothing was generated. `window`: its records, in any order."""
    answered = sorted((record for record in window if record.ok), key=lambda record: record.begun_ns)
    told = [record.generation for record in answered if record.generation is not None]
    if not told:
        return None
    ttft = [record.ttft_ns for record in answered if load.shape != OFFLINE and record.ttft_ns is not None]
    tpot = [time for one in told if (time := one.time_per_token_ns) is not None]
    return GeneratedSamples(_stamps(ttft), _stamps(np.round(tpot)), _gaps(told))


def measure_generated(
    records: Sequence[Record],
    samples: GeneratedSamples | None,
    *,
    ended: npt.NDArray[np.bool_],
    seconds: float,
    active_uj_per_request: float | None,
    latency_ns: float | None,
    percentiles: Callable[[Stamps], Percentiles],
) -> GeneratedCell | None:
    """`records`: all of the cell, of which `ended` ended within its window of `seconds`."""
    if samples is None:
        return None
    answers = [
        (record, record.generation, in_time)
        for record, in_time in zip(records, ended.tolist(), strict=True)
        if record.ok and record.generation is not None
    ]
    told = [one for record, one, _ in answers if record.in_window]
    settled = [one for record, one, _ in answers if record.in_window and record.energy_uj is not None]
    written = sum(one.output_tokens for one in settled)
    done = sum(one.output_tokens for _, one, in_time in answers if in_time)
    active = active_uj_per_request
    per_token = delay = None
    if active is not None and written:
        per_token = active * len(settled) / written
    if active is not None and latency_ns is not None:
        delay = active * latency_ns / 1e9
    return GeneratedCell(
        mean_prompt_tokens=mean([one.prompt_tokens for one in told]) or 0.0,
        mean_output_tokens=mean([one.output_tokens for one in told]) or 0.0,
        output_tokens_per_second=done / seconds if seconds > 0 else None,
        ttft=percentiles(samples.ttft_ns),
        tpot=percentiles(samples.tpot_ns),
        itl=percentiles(samples.itl_ns),
        active_uj_per_output_token=per_token,
        prompt_uj_per_request=mean([one.prompt_uj for one in told if one.prompt_uj is not None]),
        output_uj_per_request=mean([one.output_uj for one in told if one.output_uj is not None]),
        overhead_uj_per_request=mean([one.overhead_uj for one in told if one.overhead_uj is not None]),
        energy_delay_uj_seconds=delay,
    )


def _gaps(told: Sequence[RecordedGeneration]) -> Stamps:
    """A step serves many requests: in this order its gaps stand side by side, and are seen to be one."""
    gaps = [_stamps(one.gaps_ns) for one in told]
    came = [one.first_token_ns + np.cumsum(own) for one, own in zip(told, gaps, strict=True)]
    in_order: Stamps = np.concatenate(gaps)[np.argsort(np.concatenate(came), kind="stable")]
    return in_order


def _stamps(values: npt.ArrayLike) -> Stamps:
    return np.asarray(values, dtype=np.int64)


def mean(values: Sequence[int]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None
