"""What turns say: a line for each server, ratios of what ran in one round, how far answers are off. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.bench.speed.figures import per_round

P99_SAMPLES = 662
"""With fewer, a 99th percentile is not shown (docs/measuring.md)."""

TOLERANCE = {"fp32": 2e-3, "bf16": 0.05}
"""How far a logit may be from plain torch's in fp32, as a part of the largest logit of all."""

HEAD = (
    "model", "variant", "server", "answers/s: median (range)", "ours / it: median (range)", "p50, ms",
    "p99, ms",    "server CPU, ms", "client CPU, ms", "logits off by", "cores that others kept busy",
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """server_ms, client_ms: of CPU time, for each answer. off: the largest difference of a logit, as a part
    of the largest logit."""

    rate: float
    latencies: list[float]
    server_ms: float
    client_ms: float
    off: float
    foreign_cores: float


@dataclass(frozen=True)
class Cell:
    """A model in one precision: the turns of each server, a turn for each round; why the others have none."""

    model: str
    variant: str
    turns: Mapping[str, Sequence[Turn]]
    missing: Mapping[str, str]


def difference(answers: Sequence[NDArray[np.float32]], plain: Sequence[Sequence[float]]) -> float:
    """The largest, as a part of the largest logit of all; infinite where one is no number."""
    expected = np.array(plain)
    off = np.abs(np.stack(answers) - expected).max() / np.abs(expected).max()
    return float(off) if np.isfinite(off) else float("inf")


def lines(cell: Cell, ours: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, turns in cell.turns.items():
        rates = [turn.rate for turn in turns]
        latencies = [latency * 1e3 for turn in turns for latency in turn.latencies]
        ratios = per_round([turn.rate for turn in cell.turns[ours]], rates) if name != ours else []
        found.append(
            (
                cell.model,
                cell.variant,
                name,
                _spread(rates, ".1f" if max(rates) < 100 else ".0f"),
                _spread(ratios, ".2f") if ratios else "",
                f"{np.quantile(latencies, 0.5):.1f}",
                f"{np.quantile(latencies, 0.99):.1f}" if len(latencies) >= P99_SAMPLES else "too few",
                f"{statistics.median(turn.server_ms for turn in turns):.2f}",
                f"{statistics.median(turn.client_ms for turn in turns):.2f}",
                f"{max(turn.off for turn in turns):.1e}",
                f"{statistics.median(turn.foreign_cores for turn in turns):.2f}",
            )
        )
    return found


def table(cells: Sequence[Cell], ours: str) -> str:
    rows = [HEAD, tuple("---" for _ in HEAD), *(line for cell in cells for line in lines(cell, ours))]
    said = [
        f"- {cell.model} {cell.variant}: {why}" for cell in cells for why in cell.missing.values()
    ]  # a peer that could not be measured
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), *(["", *said] if said else [])]) + "\n"


def record(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Every turn, for programs; of the latencies, p50 in milliseconds."""
    return [
        {
            "model": cell.model,
            "variant": cell.variant,
            "missing": dict(cell.missing),
            "turns": {
                name: [
                    asdict(turn) | {"latencies": len(turn.latencies), "p50_ms": _p50_ms(turn)}
                    for turn in turns
                ]
                for name, turns in cell.turns.items()
            },
        }
        for cell in cells
    ]


def _p50_ms(turn: Turn) -> float:
    return float(np.quantile(turn.latencies, 0.5) * 1e3)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
