"""What is asked of a simulated server: lengths, and when requests come. The same for the same seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattserve_loadgen.plan.arrivals import poisson
from wattserve_server.engine.policy import NORMAL_PRIORITY


@dataclass(frozen=True)
class Lengths:
    """Tokens of sequences: lognormal, rounded, within bounds; or those of a recording, over and over."""

    name: str
    mu: float = 0.0
    sigma: float = 0.0
    most: int = 512
    recorded: tuple[int, ...] = ()

    def draw(self, count: int, seed: str) -> list[int]:
        if self.recorded:
            return [self.recorded[number % len(self.recorded)] for number in range(count)]
        source = random.Random(f"{seed} {self.name}")
        return [
            min(self.most, max(3, round(source.lognormvariate(self.mu, self.sigma)))) for _ in range(count)
        ]


SST2 = Lengths("SST-2", 3.15, 0.6, 128)  # as in the speed benchmark
QUERIES = Lengths("queries", 2.2, 0.45, 32)
DOCUMENTS = Lengths("documents", 3.6, 1.0, 512)


def recorded_lengths(path: Path) -> Lengths:
    """Of a file with the tokens of one sequence per line. Raises ValueError for any other line."""
    tokens = []
    for number, line in enumerate(path.read_text().split(), start=1):
        if not line.isdecimal() or not int(line):
            raise ValueError(f"{path}: line {number}: {line[:40]!r} is no number of tokens")
        tokens.append(int(line))
    if not tokens:
        raise ValueError(f"{path}: holds no length")
    return Lengths(path.name, recorded=tuple(tokens))


@dataclass(frozen=True)
class Kind:
    """A class of requests, and its share of all of them. deadline_ms: counted from when it is sent."""

    variant: str = "a"
    priority: int = NORMAL_PRIORITY
    deadline_ms: float | None = None
    share: float = 1.0


def kinds_of(count: int, kinds: Sequence[Kind], seed: str) -> list[Kind]:
    source = random.Random(f"{seed} kinds")
    return source.choices(kinds, [kind.share for kind in kinds], k=count)


def at_random(rate: float, count: int, seed: str) -> list[int]:
    """Instants (ns) of `count` arrivals of a Poisson process. rate: per second."""
    spare = count + 10 * math.sqrt(count) + 10
    return [int(instant) for instant in poisson(rate, spare / rate, seed)[:count]]


def in_bursts(rate: float, count: int, burst: int, seed: str) -> list[int]:
    """Bursts of `burst` requests at one instant, the bursts at random."""
    instants = at_random(rate / burst, -(-count // burst), f"{seed} bursts")
    return [instant for instant in instants for _ in range(burst)][:count]
