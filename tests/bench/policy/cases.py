"""The cases of the simulation: a device, what is asked of it and how, run under one rule."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.policy.traffic import (
    DOCUMENTS,
    QUERIES,
    SST2,
    Kind,
    Lengths,
    at_random,
    in_bursts,
    kinds_of,
)
from tests.bench.policy.world import Device, MakeRule, Request, Run, World
from wattserve_server.engine.policy import FIRST_PRIORITY, LAST_PRIORITY, BatchLimits

# Fitted to what was measured on two cores (AMD Zen 5, torch 2.13): DistilBERT-base, packed, batches of 32,
# 270 and 145 sequences/s; 1 x 32 tokens 11.2 ms in fp32, and 0.9 ms in a model 128 wide with 4 layers.
# The demo model's are assumed, between the two.
BF16 = Device("base bf16", overhead_ms=2.0, token_us=122, width=768)
FP32 = Device("base fp32", overhead_ms=3.5, token_us=224, width=768)
TINY = Device("tiny fp32", overhead_ms=0.6, token_us=6.2, width=128)
DEMO = Device("demo fp32", overhead_ms=3.0, token_us=40, width=256)
GPU = Device("GPU, assumed", overhead_ms=0.6, token_us=1.5, width=768, max_tokens=32768)

Devices = tuple[tuple[str, Device], ...]  # by variant

BASE: Devices = (("a", BF16),)
MIXED: Devices = (("a", BF16), ("b", FP32))
SMALL: Devices = (("a", TINY),)
SMALLER: Devices = (("a", DEMO),)


@dataclass(frozen=True)
class Case:
    """One of: slots, a closed loop of so many; load, a Poisson process at that share of what the device can
    do (packed in order of arrival, or padded in order of length), in bursts of `burst`; arrivals_ns,
    recorded. front_ms: of the front end, per request.
    """

    name: str
    lengths: Lengths = SST2
    devices: Devices = BASE
    kinds: tuple[Kind, ...] = (Kind(),)
    slots: int = 0
    load: float = 0.0
    burst: int = 1
    arrivals_ns: tuple[int, ...] = ()
    max_sequences: int = 32
    front_ms: float = 0.3


def cases() -> list[Case]:
    two, unequal = (Kind("a"), Kind("b")), (Kind("a", share=10), Kind("b"))
    first, last = Kind(priority=FIRST_PRIORITY, share=0.1), Kind(priority=LAST_PRIORITY, share=0.1)
    levels = (first, Kind(share=0.8), last)
    timed = (Kind(deadline_ms=400, share=0.3), Kind(share=0.7))
    made = [Case(f"SST-2, {slots} slots", slots=slots) for slots in (2, 4, 8, 32, 64)]
    made += [Case(f"demo, {slots} slots", devices=SMALLER, slots=slots) for slots in (2, 4, 8, 32)]
    made += [Case(f"{lengths.name}, 32 slots", lengths, slots=32) for lengths in (QUERIES, DOCUMENTS)]
    for lengths in (SST2, QUERIES, DOCUMENTS):
        made += [Case(f"{lengths.name}, Poisson {load:g}", lengths, load=load) for load in (0.6, 0.9)]
        made.append(Case(f"{lengths.name}, bursts of 64, 0.6", lengths, load=0.6, burst=64))
    return [
        *made,
        Case("tiny, SST-2, 64 slots", devices=SMALL, slots=64, front_ms=0.2),
        Case("tiny, documents, 64 slots", DOCUMENTS, devices=SMALL, slots=64, front_ms=0.2),
        Case("two variants, 32 slots", devices=MIXED, kinds=two, slots=32),
        Case("two variants, Poisson 0.9", devices=MIXED, kinds=two, load=0.9),
        Case("two variants, 10 : 1, Poisson 0.9", devices=MIXED, kinds=unequal, load=0.9),
        Case("three priorities, Poisson 0.95", kinds=levels, load=0.95),
        Case("30 % with a deadline of 400 ms, Poisson 0.95", kinds=timed, load=0.95),
        Case("30 % with a deadline of 400 ms, bursts of 64, 0.8", kinds=timed, load=0.8, burst=64),
    ]


def pipelining() -> list[Case]:
    """Whether smaller batches pay, since the front end answers one while the device runs another."""
    return [
        Case(
            f"{device.name}, {slots} slots, front end {front:g} ms, batches of up to {most}",
            devices=(("a", device),),
            slots=slots,
            max_sequences=most,
            front_ms=front,
        )
        for device in (BF16, TINY, GPU)
        for slots in (32, 64)
        for front in (0.2, 0.4)
        for most in (slots, slots // 2, slots // 4)
    ]


def run_case(case: Case, make_rule: MakeRule, packs: bool, count: int, seed: int) -> Run:
    """`count` requests of one sequence each. For one seed, cases of the same lengths meet the same ones."""
    text = str(seed)
    lengths = case.lengths.draw(count, text)
    devices = dict(case.devices)
    kinds = kinds_of(count, case.kinds, text)
    limits = BatchLimits(case.max_sequences, min(device.max_tokens for device in devices.values()))
    instants = _instants(case, devices, lengths, packs, kinds, text)
    upcoming = iter(range(min(case.slots, count), count))

    def send(number: int, sent_ns: int) -> None:
        kind = kinds[number]
        deadline_ns = None if kind.deadline_ms is None else sent_ns + int(kind.deadline_ms * 1e6)
        world.send(Request(number, kind.variant, kind.priority, deadline_ns, sent_ns), lengths[number])

    def send_next(_: Request) -> None:
        if case.slots and (number := next(upcoming, None)) is not None:
            send(number, world.now_ns)

    world = World(devices, packs, limits, make_rule, case.front_ms, send_next)
    for number, sent_ns in enumerate(instants):
        send(number, sent_ns)
    return world.until_quiet()


def _instants(
    case: Case, devices: dict[str, Device], lengths: list[int], packs: bool, kinds: list[Kind], seed: str
) -> list[int]:
    if case.slots:
        return [0] * min(case.slots, len(lengths))
    if case.arrivals_ns:
        return list(case.arrivals_ns[: len(lengths)])
    spent_s = 0.0  # by all of them, variant by variant
    for variant, device in devices.items():
        theirs = [length for length, kind in zip(lengths, kinds, strict=True) if kind.variant == variant]
        spent_s += len(theirs) / device.sequences_per_s(theirs, packs) if theirs else 0.0
    rate = case.load * len(lengths) / spent_s
    if case.burst == 1:
        return at_random(rate, len(lengths), seed)
    return in_bursts(rate, len(lengths), case.burst, seed)
