"""One draw of a scenario: of each device its history, its sensors and the truth per request."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.bench.attribution.device import Batch, History, simulate
from tests.bench.attribution.sensor import Published, publish
from tests.bench.attribution.shapley import exact_shares, rule_shares
from tests.bench.attribution.trace import Trace
from tests.bench.attribution.world import Floats, Workload, World
from wattserve_server.energy.receipt import Line, Receipt, Window

START_NS = 7_000_000_123
"""The monotonic clock at the start of the simulation."""


def to_ns(instant_s: float) -> int:
    return START_NS + round(instant_s * 1e9)


@dataclass(frozen=True, slots=True)
class Requests:
    """The truth, one entry per measured request, in the order in which their batches end.

    batch: index of its batch among the measured ones. true_uj: its share, by the rule that receipts
    name, of what the batch drew. expected_uj: the same without the noise that nobody can foresee.
    exact_uj: its exact Shapley value. variant: its index.
    """

    batch: np.ndarray
    variant: np.ndarray
    true_uj: Floats
    expected_uj: Floats
    exact_uj: Floats


@dataclass(frozen=True, slots=True)
class Realisation:
    """batches: the measured ones, by end. windows: what the server would hand over, of all, by end."""

    name: str
    world: World
    workload: Workload
    history: History
    batches: list[Batch]
    windows: list[Window]
    requests: Requests
    trace: Trace
    published: Published
    poll_rng: np.random.Generator


def realise(name: str, world: World, workload: Workload, seed: int) -> Realisation:
    return realise_several(name, [world], workload, seed)[0]


def realise_several(
    name: str, worlds: Sequence[World], workload: Workload, seed: int
) -> tuple[Realisation, ...]:
    """Of devices that take their requests from one queue; each has those that it ran. The first one's polls
    and noise are those of it alone."""
    streams = np.random.SeedSequence([seed, zlib.crc32(name.encode())]).spawn(5 * len(worlds))
    rngs = [np.random.default_rng(stream) for stream in streams]
    histories = simulate(worlds, workload, rngs[::5], rngs[1])
    return tuple(
        _realisation(name, world, workload, history, rngs[5 * index : 5 * index + 5])
        for index, (world, history) in enumerate(zip(worlds, histories, strict=True))
    )


def _realisation(
    name: str, world: World, workload: Workload, history: History, rngs: Sequence[np.random.Generator]
) -> Realisation:
    _, _, trace_rng, counter_rng, poll_rng = rngs
    trace = Trace(world, history, trace_rng)
    measured = [batch for batch in history.batches if not batch.is_calibration]
    return Realisation(
        name,
        world,
        workload,
        history,
        measured,
        windows_of(history.batches),
        truth_of(world, measured),
        trace,
        publish(trace, world.counter, history.end_s, counter_rng),
        poll_rng,
    )


def windows_of(batches: list[Batch]) -> list[Window]:
    """Of batches by their end; each knows for how long its lane had done nothing before it."""
    rested_s: dict[int, float] = {}
    worked_s: dict[int, float] = {}
    for batch in sorted(batches, key=lambda batch: batch.start_s):
        before_s = worked_s.get(batch.lane, 0.0)
        rested_s[id(batch)] = max(batch.start_s - before_s, 0.0)
        worked_s[batch.lane] = max(before_s, batch.end_s)
    return [_window(batch, to_ns(rested_s[id(batch)]) - to_ns(0.0)) for batch in batches]


def _window(batch: Batch, rested_ns: int) -> Window:
    lines: tuple[Line, ...] = ()
    if not batch.is_calibration:
        receipt = Receipt("r", "", batch.variant, "simulated", 0)
        size, padded = len(batch.lengths), batch.padded_length
        lines = tuple(Line(receipt, length, padded, size, windows=1) for length in batch.lengths)
        receipt.lines.extend(lines)
    start_ns, end_ns = to_ns(batch.start_s), to_ns(batch.end_s)
    return Window(
        batch.variant,
        start_ns,
        end_ns,
        batch.lengths,
        batch.padded_length,
        lines,
        is_first_run=batch.is_first_run,
        rested_ns=rested_ns,
        lane=batch.lane,
    )


def truth_of(world: World, batches: list[Batch]) -> Requests:
    index = {law.name: i for i, law in enumerate(world.variants)}
    sizes = np.array([len(batch.lengths) for batch in batches], dtype=int)
    laws = [world.variants[index[batch.variant]] for batch in batches]
    energy = 1e6 * np.repeat([batch.joules for batch in batches], sizes)
    shares = np.concatenate([rule_shares(law, b.lengths) for law, b in zip(laws, batches, strict=True)])
    exact = np.concatenate([exact_shares(law, b.lengths) for law, b in zip(laws, batches, strict=True)])
    noise = np.repeat([batch.noise for batch in batches], sizes)
    variant = np.repeat([index[batch.variant] for batch in batches], sizes)
    return Requests(
        np.repeat(np.arange(len(batches)), sizes),
        variant,
        energy * shares,
        energy * shares / noise,
        energy * exact,
    )
