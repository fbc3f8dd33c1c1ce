"""The rows of the table: what each measures, and how its lines come from the figures of rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from tests.bench.speed.figures import Figures, Goal, Line, per_round
from tests.bench.speed.options import PLAIN_VARIANTS, TITLES
from tests.bench.speed.scenes import OVERHEAD_BATCHES, SHORT_TOKENS, Turn

BEST = "with the best engine"
LIMIT_GOALS = {"fp32": 0.75, "bf16": 0.70}

BASE_TURNS: Mapping[str, Sequence[tuple[str, int]]] = {
    "limit": (("limit", 0), ("sorted", 0), ("arrival", 0), ("server", 32), ("server", 64)),
    "latency": (("alone", 0),),
    "tail": (("server", 32),),
    "padding": (("server", 32),),
    "int8": (("server", 32), ("short", 0)),
}
"""By row of those that one scene with DistilBERT-base serves."""


INT8_GOALS = {"int8": 1.0, "int8-static": 1.3}
"""By kind: its rate over bf16's at least."""

CALL_GOAL = 1.5
"""CPU time of a call that computes nothing, over an empty grpc.aio call's at the most."""


def base_turns(rows: frozenset[str], variants: Sequence[str]) -> list[Turn]:
    """Those that the rows need, each once."""
    turns: dict[Turn, None] = {}
    for variant in variants:
        for row, kinds in BASE_TURNS.items():
            if row in rows and (variant in PLAIN_VARIANTS or row == "int8"):
                turns |= dict.fromkeys(Turn(kind, variant, size) for kind, size in kinds)
    return list(turns)


def tiny_turns() -> list[Turn]:
    kinds = (("limit", 0), ("sorted", 0), ("arrival", 0), ("server", 64))
    return [Turn(kind, "fp32", size) for kind, size in kinds]


def engine_lines(figures: Figures) -> list[Line]:
    lines = []
    for variant in PLAIN_VARIANTS:
        for size in OVERHEAD_BATCHES:
            name = f"base.{variant}.bare{size}"
            if name in figures:
                whole, bare = figures[f"base.{variant}.whole{size}"], figures[name]
                shape = f"{size} x {SHORT_TOKENS} tokens"
                threads = f"{figures[f'{name}.threads'][-1]:.0f} threads"
                lines.append(
                    Line(
                        "engine",
                        f"engine over the bare forward, {TITLES['base']} {variant}, {shape}",
                        [100 * (ratio - 1) for ratio in per_round(whole, bare)],
                        (name, f"base.{variant}.whole{size}"),
                        (Goal(3.0, is_floor=False),),
                        "+.1f",
                        " %",
                        f"{_ms(whole)} of {_ms(bare)}, {threads}",
                    )
                )
    return lines


def limit_lines(figures: Figures, row: str, model: str, concurrencies: Sequence[int]) -> list[Line]:
    """Of the rows `limit` and `tiny`."""
    lines = []
    for variant in PLAIN_VARIANTS:
        name, title = f"{model}.{variant}", f"{TITLES[model]} {variant}"
        limit = f"{name}.limit"
        if limit not in figures:
            continue
        if model == "tiny":
            goals: tuple[Goal, ...] = (Goal(0.55, True),)
        else:
            goals = (Goal(LIMIT_GOALS[variant], True), Goal(0.90, True, BEST))
        server = [(f"server{number}", f"{title}, concurrency {number}") for number in concurrencies]
        lines += [
            *(
                _ratio(
                    figures, row, f"server / sorted limit of torch, {words}", f"{name}.{turn}", limit, goals
                )
                for turn, words in server
            ),
            *(
                _ratio(figures, row, f"own engine, {words} / sorted limit of torch, {title}", own, limit)
                for own, words in ((f"{name}.sorted", "sorted"), (f"{name}.arrival", "arrival order"))
            ),
            *(
                _ratio(
                    figures, row, f"server / own engine, sorted, {words}", f"{name}.{turn}", f"{name}.sorted"
                )
                for turn, words in server
            ),
        ]
    return lines


def latency_lines(figures: Figures) -> list[Line]:
    lines = []
    for variant in PLAIN_VARIANTS:
        name, title = f"base.{variant}.alone", f"{TITLES['base']} {variant}"
        if f"{name}.server_ms" not in figures:
            continue
        server = figures[f"{name}.server_ms"]
        for who, words in (("engine", "own engine"), ("torch", "plain torch")):
            detail = f"{_median(server):.2f} of {_median(figures[f'{name}.{who}_ms']):.2f} ms"
            over, allowed = figures[f"{name}.over_{who}_ms"], figures[f"{name}.of_allowed_{who}"]
            subject = f"one request at a time, {title}"
            lines += [
                Line(
                    "latency",
                    f"{subject}: latency / (1.05 x bare forward of {words} + 1 ms)",
                    allowed,
                    (name,),
                    (Goal(1.0, is_floor=False),),
                    detail=detail,
                ),
                Line(
                    "latency",
                    f"{subject}: latency - bare forward of {words}",
                    over,
                    (name,),
                    (),
                    "+.2f",
                    " ms",
                ),
            ]
    return lines


def tail_lines(figures: Figures) -> list[Line]:
    return [
        Line(
            "tail",
            f"p99 / p50, {TITLES['base']} {variant}, concurrency 32",
            tail,
            (f"base.{variant}.server32",),
            (Goal(2.0, is_floor=False),),
            detail=f"p50 {_median(figures[f'base.{variant}.server32.p50_ms']):.0f} ms",
        )
        for variant, tail in _by_variant(figures, "base.{}.server32.tail")
    ]


def padding_lines(figures: Figures) -> list[Line]:
    return [
        Line(
            "padding",
            f"computed tokens / real tokens, {TITLES['base']} {variant}, concurrency 32",
            padding,
            (f"base.{variant}.server32",),
            (Goal(1.05, is_floor=False),),
            ".3f",
        )
        for variant, padding in _by_variant(figures, "base.{}.server32.padding")
    ]


def metering_lines(figures: Figures, model: str, variant: str, concurrency: int) -> list[Line]:
    name = f"metering.{model}.{variant}.pair{concurrency}"
    on, off = figures[f"{name}.estimate"], figures[f"{name}.none"]
    what = f"energy accounting on / off, {TITLES[model]} {variant}, concurrency {concurrency}"
    return [
        Line("energy", what, per_round(on, off), (name,), (Goal(0.99, True),), ".3f", detail=_rates(on, off))
    ]


def int8_lines(figures: Figures) -> list[Line]:
    lines = []
    for kind, least in INT8_GOALS.items():
        for other, goals in (("bf16", (Goal(least, True),)), ("fp32", ())):
            above, below = f"base.{kind}.server32", f"base.{other}.server32"
            if above in figures and below in figures:
                what = f"server, {kind} / {other}, {TITLES['base']}, concurrency 32"
                lines.append(_ratio(figures, "int8", what, above, below, goals))
                own_ms, other_ms = figures[f"{above}.cpu_ms"], figures[f"{below}.cpu_ms"]
                detail = f"{_median(own_ms):.2f} of {_median(other_ms):.2f} ms"
                what = f"server CPU for each answer, {kind} / {other}"
                lines.append(Line("int8", what, per_round(own_ms, other_ms), (above, below), detail=detail))
    for variant, server in _by_variant(figures, "base.{}.short.server_ms", (*PLAIN_VARIANTS, *INT8_GOALS)):
        what = f"latency of 1 x {SHORT_TOKENS} tokens, {TITLES['base']} {variant}"
        detail = f"bare forward of own engine {_median(figures[f'base.{variant}.short.engine_ms']):.2f} ms"
        if f"base.{variant}.short.torch_ms" in figures:
            detail += f", of plain torch {_median(figures[f'base.{variant}.short.torch_ms']):.2f} ms"
        lines.append(Line("int8", what, server, (f"base.{variant}.short",), (), ".2f", " ms", detail))
    return lines


def echo_lines(figures: Figures, concurrency: int) -> list[Line]:
    ours, empty = figures["echo.Predict.ours"], figures["echo.Predict.empty"]
    what = f"no compute, server / empty grpc.aio call, unary, concurrency {concurrency}"
    goals = (Goal(0.7, True),)
    return [Line("echo", what, per_round(ours, empty), ("echo",), goals, detail=_rates(ours, empty))]


def call_lines(figures: Figures, concurrency: int) -> list[Line]:
    """By kind of call."""
    lines = []
    for name, ours in figures.items():
        if not (name.startswith("echo.") and name.endswith(".ours.cpu_us")):
            continue
        kind = name.split(".")[1]
        empty = figures[f"echo.{kind}.empty.cpu_us"]
        lines.append(
            Line(
                "calls",
                f"server CPU per call that computes nothing, {kind}, concurrency {concurrency} / empty "
                "grpc.aio call",
                per_round(ours, empty),
                ("echo",),
                (Goal(CALL_GOAL, is_floor=False),),
                detail=f"{_median(ours):.0f} of {_median(empty):.0f} us",
            )
        )
    return lines


def against_lines(figures: Figures) -> list[Line]:
    lines = []
    for variant, this in _by_variant(figures, "against.{}.pair32.this", (*PLAIN_VARIANTS, *INT8_GOALS)):
        other = figures[f"against.{variant}.pair32.other"]
        subject, turns = (
            f"this server / the other tree's, {TITLES['base']} {variant}",
            (f"against.{variant}.pair32",),
        )
        what, detail = f"{subject}, rate at 32", _rates(this, other)
        lines.append(Line("against", what, per_round(this, other), turns, detail=detail))
        this, other = (figures[f"against.{variant}.latency.{who}_ms"] for who in ("this", "other"))
        detail = f"{_median(this):.2f} of {_median(other):.2f} ms"
        what, turns = f"{subject}, latency at 1", (f"against.{variant}.latency",)
        lines.append(Line("against", what, per_round(this, other), turns, detail=detail))
    return lines


def _ratio(
    figures: Figures, row: str, what: str, above: str, below: str, goals: tuple[Goal, ...] = ()
) -> Line:
    """Of the rates of two turns."""
    rates, others = figures[above], figures[below]
    return Line(row, what, per_round(rates, others), (above, below), goals, detail=_rates(rates, others))


def _by_variant(
    figures: Figures, pattern: str, variants: Sequence[str] = PLAIN_VARIANTS
) -> list[tuple[str, Sequence[float]]]:
    """Of those that were measured."""
    names = {variant: pattern.format(variant) for variant in variants}
    return [(variant, figures[name]) for variant, name in names.items() if name in figures]


def _rates(above: Sequence[float], below: Sequence[float]) -> str:
    return f"{_median(above):,.0f} of {_median(below):,.0f} per second"


def _ms(seconds: Sequence[float]) -> str:
    return f"{_median(seconds) * 1e3:.2f} ms"


_median: Callable[[Sequence[float]], float] = statistics.median
