"""Several devices with a sensor each, and what they say together: boards, each of which runs some of the
batches, and their host, which all batches run on."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from tests.bench.attribution.device import Batch, History
from tests.bench.attribution.drive import Checks, Outcome
from tests.bench.attribution.realise import START_NS, Realisation, Requests, truth_of, windows_of
from tests.bench.attribution.sensor import Published, publish
from tests.bench.attribution.trace import Trace
from tests.bench.attribution.world import Floats, World

BY_REQUEST = ("got_uj", "deviation_uj", "provisional_uj", "latency_s", "is_charged", "is_warned")
"""What an outcome has one entry of for each request."""


def together(boards: Sequence[Realisation]) -> Realisation:
    """What these boards ran, each a lane of its own, as one device has it whose counter steps when the first
    one's does."""
    first = boards[0]
    if len(boards) == 1:
        return first
    batches = [
        replace(batch, lane=lane) for lane, board in enumerate(boards) for batch in board.history.batches
    ]
    batches.sort(key=lambda batch: batch.end_s)
    history = replace(first.history, batches=batches, steps=steps_of(batches))
    published = _sum_of_counters([board.published for board in boards])
    whole = _of(first, first.world, history, _Sum([board.trace for board in boards]), published)
    order, each = _by_end(boards), [board.requests for board in boards]
    truth = {name: np.concatenate([getattr(one, name) for one in each])[order] for name in _TRUTHS}
    return replace(whole, requests=Requests(whole.requests.batch, **truth))


_TRUTHS = tuple(field.name for field in fields(Requests) if field.name != "batch")


def _by_end(boards: Sequence[Realisation]) -> np.ndarray:
    """The order of their requests, one board's after the other's, by the ends of the batches of all."""
    ends_s = [np.array([batch.end_s for batch in board.batches])[board.requests.batch] for board in boards]
    return np.argsort(np.concatenate(ends_s), kind="stable")


def host_of(boards: Realisation, world: World, seed: int) -> Realisation:
    """What the same batches draw on `world`, which does nothing else."""
    rng = np.random.default_rng([seed, 0x4057])
    batches = [_on_host(batch, world, rng) for batch in boards.history.batches]
    history = replace(boards.history, batches=batches, steps=steps_of(batches))
    trace = Trace(world, history, rng)
    return _of(boards, world, history, trace, publish(trace, world.counter, history.end_s, rng))


def _on_host(batch: Batch, world: World, rng: np.random.Generator) -> Batch:
    noise = float(np.exp(world.noise * rng.standard_normal() - world.noise**2 / 2))
    law = world.law(batch.variant)
    count, length = len(batch.lengths), batch.padded_length
    watts = float(law.joules(count, length) / law.seconds(count, length)) * noise
    seconds = batch.end_s - batch.start_s
    return replace(batch, noise=noise, watts=watts, joules=watts * seconds)


def steps_of(batches: Sequence[Batch]) -> list[tuple[float, float]]:
    """What batches draw together that may overlap; exactly nothing where none runs."""
    events = [(batch.start_s, True, index) for index, batch in enumerate(batches)]
    events += [(batch.end_s, False, index) for index, batch in enumerate(batches)]
    steps, running = [(0.0, 0.0)], dict[int, float]()
    for at_s, begins, index in sorted(events):
        if begins:
            running[index] = batches[index].watts
        else:
            del running[index]
        steps.append((at_s, sum(running.values())))
    return steps


def sum_of(boards: Realisation, host: Realisation) -> Realisation:
    """Both as one device, whose counter steps when the boards' does, as a sum of meters does."""
    world = replace(boards.world, foreign=host.world.foreign, counts_server=host.world.counts_server)
    published = _sum_of_counters([boards.published, host.published])
    whole = _of(boards, world, boards.history, _Sum([boards.trace, host.trace]), published)
    ours, theirs = boards.requests, host.requests
    requests = replace(
        ours,
        true_uj=ours.true_uj + theirs.true_uj,
        expected_uj=ours.expected_uj + theirs.expected_uj,
        exact_uj=ours.exact_uj + theirs.exact_uj,
    )
    return replace(whole, requests=requests)


def _sum_of_counters(each: Sequence[Published]) -> Published:
    """What they show together, seen when the first of them steps."""
    first = each[0]

    def seen(of: Published) -> tuple[np.ndarray, Floats]:
        at = np.searchsorted(of.at_s, first.at_s, side="right") - 1
        power_at = np.searchsorted(of.power_at_s, first.power_at_s, side="right") - 1
        return of.millijoules[np.maximum(at, 0)], of.power_watts[np.maximum(power_at, 0)]

    millijoules, watts = zip(*(seen(of) for of in each), strict=True)
    return replace(first, millijoules=np.sum(millijoules, axis=0), power_watts=np.sum(watts, axis=0))


class _Sum(Trace):
    """The energy of several devices; of what else draws, what draws on the last of them."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._traces = traces
        self.foreign = traces[-1].foreign

    def work(self, times: Floats) -> Floats:
        return np.asarray(sum(trace.work(times) for trace in self._traces))

    def idle(self, times: Floats) -> Floats:
        return np.asarray(sum(trace.idle(times) for trace in self._traces))

    def total(self, times: Floats) -> Floats:
        return np.asarray(sum(trace.total(times) for trace in self._traces))


def _of(board: Realisation, world: World, history: History, trace: Trace, shown: Published) -> Realisation:
    """The same requests on another device, with windows, receipts and polls of its own."""
    measured = [batch for batch in history.batches if not batch.is_calibration]
    return replace(
        board,
        world=world,
        history=history,
        batches=measured,
        windows=windows_of(history.batches),
        requests=truth_of(world, measured),
        trace=trace,
        published=shown,
        poll_rng=copy.deepcopy(board.poll_rng),
    )


def told_together(whole: Realisation, boards: Sequence[Realisation], each: Sequence[Outcome]) -> Outcome:
    """What the accountants of these boards said, each of the requests that its board ran."""
    if len(each) == 1:
        return each[0]
    order = _by_end(boards)
    told = {name: np.concatenate([getattr(one, name) for one in each])[order] for name in BY_REQUEST}
    return replace(_in_all(whole, each), **told)


def added(whole: Realisation, board: Outcome, host: Outcome) -> Outcome:
    """What two accountants said of the same requests: a receipt has the sum of both figures, and errors
    that have nothing to do with each other."""
    return replace(
        _in_all(whole, [board, host]),
        got_uj=board.got_uj + host.got_uj,
        deviation_uj=np.hypot(board.deviation_uj, host.deviation_uj),
        provisional_uj=board.provisional_uj + host.provisional_uj,
        latency_s=np.maximum(board.latency_s, host.latency_s),
        is_charged=board.is_charged & host.is_charged,
        is_warned=board.is_warned | host.is_warned,
    )


def _in_all(whole: Realisation, each: Sequence[Outcome]) -> Outcome:
    """What accountants booked together. The first one's polls stand for all."""
    first = each[0]
    polled_s = (np.array(first.poll_ns) - START_NS) / 1e9
    seen = np.searchsorted(whole.published.at_s, polled_s, side="right") - 1
    checks = [one.checks for one in each]
    return replace(
        first,
        idle_uj=sum(one.idle_uj for one in each),
        unattributed_uj=sum(one.unattributed_uj for one in each),
        gap_uj=sum(one.gap_uj for one in each),
        warmup_uj=sum(one.warmup_uj for one in each),
        booked_uj=sum(one.booked_uj for one in each),
        measured_uj=sum(one.measured_uj for one in each),
        cpu_s=sum(one.cpu_s for one in each),
        checks=Checks(
            max(one.worst_residual_uj for one in checks),
            sum(one.violations for one in checks),
            next((one.first for one in checks if one.first), ""),
        ),
        poll_uj=(1000 * whole.published.millijoules[seen]).tolist(),
    )
