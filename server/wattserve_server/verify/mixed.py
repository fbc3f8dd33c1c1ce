"""Solo against mixed: each variant alone gives joules per request from the counter itself; the receipts of
the same requests in a mixed run must agree. And closure: what the server says of these runs against the
independent reader.

Requests go one at a time, with pauses: batches are then the same in both runs, and only the company differs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wattserve_common.stats import Interval, mean_interval, ratio_interval
from wattserve_server.energy.ledger import Ledger
from wattserve_server.verify.rig import Asked, Rig, Shape
from wattserve_server.verify.verdicts import Status, Verdict, not_measured, within

BUSY = (0.8, 0.3)  # of the time, by turns
REST_S, STILL_S = 1.6, 0.8  # between runs; how long of it the counter may still show the run before
LEAST_BLOCKS, MOST_BLOCKS = 4, 12
LEAST_RUN_S = 1.0
MIXED_RUNS = 1.5  # how much longer than all solo runs together the mixed one is, at 1: as long

CLOSURE_BOUND, SOLO_BOUND = 1.0, 3.0  # per cent
MOST_WITHHELD = 0.01  # of a variant's receipts: beyond it, those that are told may be a choice
CLOSURE = "closure"
SOLO = "solo against mixed"
TOGETHER = f"{SOLO}: all together, by the counter"


@dataclass(frozen=True)
class Company:
    """Of one variant. ratio: receipts of the mixed run over the counter's joules alone, by blocks."""

    alone_j: float  # per request, by the counter
    mixed_j: float | None  # per request, by the receipts; None where none had a figure
    ratio: Interval | None
    common_error: float  # relative half-width of what all blocks share: the idle draw taken off
    requests: int  # of the mixed runs
    withheld: int  # of their receipts


@dataclass(frozen=True)
class Mixed:
    blocks: int
    idle_w: float | None  # that joules are above: declared, or that of the rests
    by_variant: dict[str, Company] = field(default_factory=dict)
    closure: Interval | None = None  # what the server accounts for over what the reader saw, by blocks
    company: Interval | None = None  # the mixed runs over their requests alone, both by the counter
    runs: tuple[tuple[str, float, float], ...] = ()  # variant, or "" for a mixed one, its start and its end
    reason: str = ""  # why nothing was measured


_Mark = tuple[float, float]  # seconds and joules of an update in a rest


@dataclass
class _Block:
    runs: dict[str, tuple[_Mark, _Mark, list[Asked]]]  # each variant's alone, and, under "", the mixed one
    everything: list[Asked]
    before: Ledger
    after: Ledger


async def measure_mixed(rig: Rig, seconds: float) -> Mixed:
    """Takes about `seconds`."""
    parts = len(rig.variants) * (1 + MIXED_RUNS)
    rests_s = (len(rig.variants) + 1) * REST_S
    blocks = int(min(max(seconds / (rests_s + parts * LEAST_RUN_S * 2), LEAST_BLOCKS), MOST_BLOCKS))
    run_s = max((seconds / blocks - rests_s) / parts, LEAST_RUN_S)
    chance = random.Random(0)
    rests = _Rests(rig)
    took_s = await _durations(rig)
    await rests.rest()
    done = [
        await _block(rig, rests, took_s, run_s, BUSY[index % len(BUSY)], chance) for index in range(blocks)
    ]
    return mixed_of(rig, done, rests.watts)


class _Rests:
    """Rests between runs: where the counter stood, and what was drawn in them."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.watts: list[float] = []
        self.mark: _Mark | None = None

    async def rest(self) -> None:
        since_ns = self._rig.now_ns()
        await self._rig.rest(REST_S)
        spell = self._rig.readings.spell(since_ns + round(STILL_S * 1e9), self._rig.now_ns())
        self.mark = spell.last_edge()
        if (watts := spell.watts()) is not None:
            self.watts.append(watts)


async def _durations(rig: Rig) -> dict[tuple[str, Shape], float]:
    """Seconds that each kind of request takes."""
    found = {}
    everything: list[Asked] = []
    for variant in rig.variants:
        for shape in rig.shapes:
            asked = [await rig.ask(variant, shape) for _ in range(3)]
            found[variant, shape] = min(each.done_ns - each.sent_ns for each in asked) / 1e9
            everything += asked
    await rig.until_settled(everything)  # else the first block's accounts would be charged for them
    return found


async def _block(
    rig: Rig,
    rests: _Rests,
    took_s: dict[tuple[str, Shape], float],
    run_s: float,
    busy: float,
    chance: random.Random,
) -> _Block:
    """Every variant alone, and all of them mixed, in an order of chance."""
    runs: dict[str, tuple[_Mark, _Mark, list[Asked]]] = {}
    everything: list[Asked] = []
    before = rig.ledger()
    for run in chance.sample([*rig.variants, ""], len(rig.variants) + 1):
        mark = rests.mark
        members = [run] if run else list(rig.variants)
        seconds = run_s if run else MIXED_RUNS * run_s * len(rig.variants)
        asked = await _play(rig, members, took_s, seconds, busy, chance)
        await rests.rest()
        everything += asked
        if mark is not None and rests.mark is not None:
            runs[run] = (mark, rests.mark, asked)
    await rig.until_settled(everything)
    return _Block(runs, everything, before, rig.ledger())


async def _play(
    rig: Rig,
    variants: Sequence[str],
    took_s: dict[tuple[str, Shape], float],
    seconds: float,
    busy: float,
    chance: random.Random,
) -> list[Asked]:
    """Whole decks, each with every kind of request once, until the time is over; pauses of chance leave the
    device busy for that part of the time."""
    deck = [(variant, shape) for variant in variants for shape in rig.shapes]
    pause_s = sum(took_s[card] for card in deck) / len(deck) * (1 - busy) / busy
    until_ns = rig.now_ns() + round(seconds * 1e9)
    asked: list[Asked] = []
    while not asked or rig.now_ns() < until_ns:
        for variant, shape in chance.sample(deck, len(deck)):
            await rig.rest(chance.expovariate(1 / pause_s))
            asked.append(await rig.ask(variant, shape))
    return asked


def mixed_of(rig: Rig, blocks: Sequence[_Block], rests_w: Sequence[float]) -> Mixed:
    declared_w = rig.declared_idle_w
    idle = mean_interval(rests_w) if declared_w is None else Interval(declared_w, declared_w, declared_w, 1)
    if idle is None:
        return Mixed(len(blocks), None, reason="the counter did not change twice in a rest")
    by_variant = {}
    for variant in rig.variants:
        company = _company(variant, [block for block in blocks if {variant, ""} <= block.runs.keys()], idle)
        if company is not None:
            by_variant[variant] = company
    closures = [closure for block in blocks if (closure := _closure(rig, block)) is not None]
    whole = [pair for block in blocks if (pair := _whole(rig, block, idle.mean)) is not None]
    runs = [
        (run, asked[0].sent_ns / 1e9, asked[-1].done_ns / 1e9)
        for block in blocks
        for run, (_, _, asked) in block.runs.items()
    ]
    return Mixed(
        len(blocks), idle.mean, by_variant, mean_interval(closures), ratio_interval(whole), tuple(runs)
    )


def _company(variant: str, blocks: Sequence[_Block], idle: Interval) -> Company | None:
    alone: list[float] = []
    told: list[float | None] = []
    rested_s: list[float] = []
    withheld = requests = 0
    for block in blocks:
        alone_j, took_s, count = _by_counter(block, variant, idle.mean)
        alone.append(alone_j / count)
        rested_s.append(took_s / count)
        mine = [each for each in block.runs[""][2] if each.variant == variant]
        requests += len(mine)
        withheld += sum(each.settled_uj is None for each in mine)
        told.append(_per_request_j(mine))
    if not alone:
        return None
    mean_j = float(np.mean(alone))
    figures = [each for each in told if each is not None]
    pairs = [(each, mine) for each, mine in zip(told, alone, strict=True) if each is not None]
    half_w = idle.mean - idle.low if idle.low is not None else abs(idle.mean)
    common = half_w * float(np.mean(rested_s)) / mean_j if mean_j > 0 else 1.0
    return Company(
        mean_j,
        float(np.mean(figures)) if figures else None,
        ratio_interval(pairs),
        common,
        requests,
        withheld,
    )


def _by_counter(block: _Block, run: str, idle_w: float) -> tuple[float, float, int]:
    """Joules above idle of a run, its seconds with the rests around it, and its requests."""
    (from_s, from_j), (to_s, to_j), asked = block.runs[run]
    return to_j - from_j - idle_w * (to_s - from_s), to_s - from_s, len(asked)


def _whole(rig: Rig, block: _Block, idle_w: float) -> tuple[float, float] | None:
    """What the mixed run cost, and what its requests cost alone, both by the counter."""
    if not {*rig.variants, ""} <= block.runs.keys():
        return None
    mixed_j, _, _ = _by_counter(block, "", idle_w)
    alone_j = 0.0
    for variant in rig.variants:
        variant_j, _, count = _by_counter(block, variant, idle_w)
        alone_j += variant_j / count * sum(each.variant == variant for each in block.runs[""][2])
    return mixed_j, alone_j


def _per_request_j(asked: Sequence[Asked]) -> float | None:
    """The mean over the shapes, each of which was asked as often, of those receipts that tell; None where a
    shape has none."""
    by_shape: dict[Shape, list[float]] = defaultdict(list)
    for each in asked:
        if (settled_uj := each.settled_uj) is not None:
            by_shape[each.shape].append(settled_uj / 1e6)
    if not asked or set(by_shape) != {each.shape for each in asked}:
        return None
    return float(np.mean([np.mean(values) for values in by_shape.values()]))


def _closure(rig: Rig, block: _Block) -> float | None:
    """What receipts and the other accounts say together, over what the reader saw, from rest to rest."""
    before, after = block.before, block.after
    if before.until_ns is None or after.until_ns is None:
        return None
    from_j, to_j = rig.readings.shown_j(before.until_ns), rig.readings.shown_j(after.until_ns)
    if from_j is None or to_j is None or to_j <= from_j:
        return None
    receipts_uj = sum(each.settled_uj or 0 for each in block.everything)
    others_uj = _others_uj(after) - _others_uj(before)
    return (receipts_uj + others_uj) / 1e6 / (to_j - from_j)


def _others_uj(ledger: Ledger) -> int:
    """All accounts but what receipts hold."""
    accounts = (ledger.warmup_uj, ledger.idle_uj, ledger.unattributed_uj, ledger.gap_uj, ledger.pending_uj)
    return sum(accounts)


def verdicts_of(mixed: Mixed, took_s: float) -> list[Verdict]:
    if mixed.reason:
        return [not_measured(CLOSURE, mixed.reason), not_measured(SOLO, mixed.reason)]
    verdicts = [_closure_verdict(mixed, took_s)]
    if mixed.company is not None:
        verdicts.append(_ratio_verdict(TOGETHER, mixed.company, SOLO_BOUND, took_s))
    for variant, company in mixed.by_variant.items():
        verdicts.append(_solo_verdict(f"{SOLO}: {variant}", company, took_s))
    return verdicts


def _closure_verdict(mixed: Mixed, took_s: float) -> Verdict:
    closure = mixed.closure
    if closure is None:
        return not_measured(CLOSURE, "the reader and the ledger had no interval in common")
    return _ratio_verdict(CLOSURE, closure, CLOSURE_BOUND, took_s)


def _ratio_verdict(name: str, ratio: Interval, bound: float, took_s: float) -> Verdict:
    low, high = (None if end is None else 100 * (end - 1) for end in (ratio.low, ratio.high))
    return within(name, 100 * (ratio.mean - 1), low, high, bound, "%", took_s)


def _solo_verdict(name: str, company: Company, took_s: float) -> Verdict:
    if company.ratio is None:
        return not_measured(name, f"none of {company.requests} receipts could be compared")
    mean = 100 * (company.ratio.mean - 1)
    if company.ratio.high is None:
        return within(name, mean, None, None, SOLO_BOUND, "%", took_s)
    half = 100 * ((company.ratio.high - company.ratio.mean) ** 2 + company.common_error**2) ** 0.5
    verdict = within(name, mean, mean - half, mean + half, SOLO_BOUND, "%", took_s)
    share = company.withheld / company.requests if company.requests else 1.0
    if verdict.status is Status.HELD and share > MOST_WITHHELD:
        why = f"{company.withheld} of {company.requests} receipts had no figure; of the others: {verdict.why}"
        return Verdict(name, Status.UNDECIDED, why, "%", mean, mean - half, mean + half, SOLO_BOUND)
    return verdict
