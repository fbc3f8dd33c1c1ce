"""Worlds that nobody tuned for: everything is drawn, from wide ranges, by number and seed."""

from __future__ import annotations

import numpy as np

from tests.bench.attribution.scenarios import Scenario
from tests.bench.attribution.world import (
    Arrivals,
    Bursts,
    ClosedLoop,
    CounterModel,
    IdleModel,
    Lengths,
    Poisson,
    PollModel,
    VariantLaw,
    Workload,
    World,
)

PREFIX = "random world"
SECONDS = 40.0


def random_scenario(number: int, seed: int) -> Scenario:
    rng = np.random.default_rng([seed, 0xA7712, number])
    max_batch = int(rng.choice([4, 8, 16, 32]))
    lengths = Lengths(rng.uniform(16, 128), rng.uniform(0.2, 1.0), 8, int(rng.choice([128, 256, 512])))
    variants = tuple(_law(rng, f"v{i}") for i in range(int(rng.integers(1, 6))))
    weights = tuple(float(w) for w in rng.dirichlet(np.full(len(variants), 2.0)))
    arrivals = _arrivals(rng, variants, weights, lengths)
    workload = Workload(arrivals, SECONDS, lengths, max_batch, weights)
    return Scenario(f"{PREFIX} {number}", _world(rng, variants), workload, None)


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _law(rng: np.random.Generator, name: str) -> VariantLaw:
    tokens_per_s = _log(rng, 30e3, 500e3)
    steps = rng.random() < 0.2
    return VariantLaw(
        name,
        fixed_s=_log(rng, 0.5e-3, 5e-3),
        tokens_per_s=tokens_per_s,
        quadratic_s=rng.uniform(0, 0.5) / (tokens_per_s * 512),
        peak_watts=rng.uniform(80, 500),
        low=rng.uniform(0.15, 0.7),
        half_tokens=_log(rng, 100, 3000),
        step_tokens=int(_log(rng, 200, 2000)) if steps else None,
        step_factor=rng.uniform(0.75, 1.4) if steps else 1.0,
    )


def _arrivals(
    rng: np.random.Generator, variants: tuple[VariantLaw, ...], weights: tuple[float, ...], lengths: Lengths
) -> Arrivals:
    """Open loads by utilisation, as if every request ran alone, so that they do not pile up."""
    alone_s = sum(
        weight * float(law.seconds(1, lengths.median)) for law, weight in zip(variants, weights, strict=True)
    )
    match int(rng.integers(0, 3)):
        case 0:
            return Poisson(min(_log(rng, 0.02, 0.9) / alone_s, 200.0))
        case 1:
            size = int(rng.integers(4, 80))
            return Bursts(max(rng.uniform(0.3, 3.0), 2 * size * alone_s), size)
        case _:
            return ClosedLoop(int(rng.choice([1, 4, 16, 64])), _log(rng, 0.5e-3, 20e-3))


def _world(rng: np.random.Generator, variants: tuple[VariantLaw, ...]) -> World:
    period_s = float(rng.choice([0.02, 0.05, 0.1]))
    is_cold = rng.random() < 0.25
    return World(
        variants,
        idle=IdleModel(
            watts=rng.uniform(15, 120),
            walk=rng.uniform(0, 0.4),
            offset_watts=rng.uniform(0, 15),
            hold_s=rng.uniform(0.3, 5),
            decay_s=rng.uniform(0.5, 5) if rng.random() < 0.5 else 0.0,
        ),
        counter=CounterModel(period_s, rng.uniform(0, 0.04) * period_s, rng.uniform(0, 0.05)),
        polls=PollModel(
            period_s=min(_log(rng, 0.003, 0.03), period_s / 2),
            late_s=_log(rng, 0.0001, 0.003),
            starved_per_s=rng.uniform(0, 0.05),
        ),
        ramp_s=0.0 if rng.random() < 0.2 else rng.uniform(0.002, 0.06),
        noise=rng.uniform(0.02, 0.06),
        thermal_gain=rng.uniform(-0.02, 0.08),
        thermal_s=rng.uniform(10, 60),
        slots=int(rng.choice([1, 2, 3], p=[0.6, 0.2, 0.2])),
        overlap_speedup=rng.uniform(0, 0.3),
        sublinear=rng.uniform(0, 0.05),
        cold_energy=rng.uniform(1.03, 1.2) if is_cold else 1.0,
        cold_duration=rng.uniform(1.0, 1.3) if is_cold else 1.0,
        turnaround_s=_log(rng, 0.0001, 0.002),
    )
