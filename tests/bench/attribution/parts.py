"""Two devices that every batch runs on, such as a board and its host: each with its sensor, and their sum."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from tests.bench.attribution.device import Batch, History
from tests.bench.attribution.drive import Checks, Outcome
from tests.bench.attribution.realise import START_NS, Realisation, truth_of, windows_of
from tests.bench.attribution.sensor import Published, publish
from tests.bench.attribution.trace import Trace
from tests.bench.attribution.world import Floats, World


def host_of(board: Realisation, world: World, seed: int) -> Realisation:
    """What the same batches draw on `world`, which does nothing else: one batch at a time."""
    rng = np.random.default_rng([seed, 0x4057])
    batches = [_on_host(batch, world, rng) for batch in board.history.batches]
    steps = [(0.0, 0.0)]
    for batch in batches:
        steps += [(batch.start_s, batch.watts), (batch.end_s, 0.0)]
    history = replace(board.history, batches=batches, steps=steps)
    trace = Trace(world, history, rng)
    return _of(board, world, history, trace, publish(trace, world.counter, history.end_s, rng))


def _on_host(batch: Batch, world: World, rng: np.random.Generator) -> Batch:
    noise = float(np.exp(world.noise * rng.standard_normal() - world.noise**2 / 2))
    law = world.law(batch.variant)
    count, length = len(batch.lengths), batch.padded_length
    watts = float(law.joules(count, length) / law.seconds(count, length)) * noise
    seconds = batch.end_s - batch.start_s
    return replace(batch, noise=noise, watts=watts, joules=watts * seconds)


def sum_of(board: Realisation, host: Realisation) -> Realisation:
    """Both as one device, whose counter steps when the board's does, as a sum of meters does."""
    world = replace(board.world, foreign=host.world.foreign, counts_server=host.world.counts_server)
    published = board.published
    at = np.searchsorted(host.published.at_s, published.at_s, side="right") - 1
    power_at = np.searchsorted(host.published.power_at_s, published.power_at_s, side="right") - 1
    published = replace(
        published,
        millijoules=published.millijoules + host.published.millijoules[np.maximum(at, 0)],
        power_watts=published.power_watts + host.published.power_watts[np.maximum(power_at, 0)],
    )
    whole = _of(board, world, board.history, _Both(board.trace, host.trace), published)
    ours, theirs = board.requests, host.requests
    requests = replace(
        ours,
        true_uj=ours.true_uj + theirs.true_uj,
        expected_uj=ours.expected_uj + theirs.expected_uj,
        exact_uj=ours.exact_uj + theirs.exact_uj,
    )
    return replace(whole, requests=requests)


class _Both(Trace):
    """The energy of two devices."""

    def __init__(self, one: Trace, other: Trace) -> None:
        self._traces = one, other
        self.foreign = other.foreign

    def work(self, times: Floats) -> Floats:
        return self._traces[0].work(times) + self._traces[1].work(times)

    def idle(self, times: Floats) -> Floats:
        return self._traces[0].idle(times) + self._traces[1].idle(times)

    def total(self, times: Floats) -> Floats:
        return self._traces[0].total(times) + self._traces[1].total(times)


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


def added(whole: Realisation, board: Outcome, host: Outcome) -> Outcome:
    """What two accountants said of the same requests: a receipt has the sum of both figures, and errors
    that have nothing to do with each other. The board's polls stand for both."""
    polled_s = (np.array(board.poll_ns) - START_NS) / 1e9
    seen = np.searchsorted(whole.published.at_s, polled_s, side="right") - 1
    return replace(
        board,
        got_uj=board.got_uj + host.got_uj,
        deviation_uj=np.hypot(board.deviation_uj, host.deviation_uj),
        provisional_uj=board.provisional_uj + host.provisional_uj,
        latency_s=np.maximum(board.latency_s, host.latency_s),
        is_charged=board.is_charged & host.is_charged,
        is_warned=board.is_warned | host.is_warned,
        idle_uj=board.idle_uj + host.idle_uj,
        unattributed_uj=board.unattributed_uj + host.unattributed_uj,
        gap_uj=board.gap_uj + host.gap_uj,
        warmup_uj=board.warmup_uj + host.warmup_uj,
        booked_uj=board.booked_uj + host.booked_uj,
        measured_uj=board.measured_uj + host.measured_uj,
        cpu_s=board.cpu_s + host.cpu_s,
        checks=_both(board.checks, host.checks),
        poll_uj=(1000 * whole.published.millijoules[seen]).tolist(),
    )


def _both(one: Checks, other: Checks) -> Checks:
    worst = max(one.worst_residual_uj, other.worst_residual_uj)
    return Checks(worst, one.violations + other.violations, one.first or other.first)
