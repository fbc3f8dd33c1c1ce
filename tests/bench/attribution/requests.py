"""Who asks for what, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.bench.attribution.world import Bursts, ClosedLoop, Lengths, Poisson, SideBySide, Workload, World


@dataclass(frozen=True, slots=True, order=True)
class Request:
    at_s: float
    number: int
    variant: str
    length: int


class Client:
    """Draws the requests, in the order of their numbers."""

    def __init__(self, world: World, workload: Workload, rng: np.random.Generator) -> None:
        self._names = [law.name for law in world.variants]
        weights = np.array(workload.weights or [1.0] * len(self._names))
        self._bounds = np.cumsum(weights / weights.sum())[:-1]
        self._lengths: Lengths = workload.lengths
        self._workload = workload
        self._rng = rng
        self._count = 0

    def request(self, at_s: float, variant: str | None = None) -> Request:
        """variant: drawn by the workload's weights where it is not named."""
        self._count += 1
        if variant is None:
            variant = self._names[int(np.searchsorted(self._bounds, self._rng.random(), side="right"))]
        return Request(at_s, self._count, variant, self._lengths.draw(self._rng))

    def think(self, mean_s: float) -> float:
        return mean_s * self._rng.exponential() if mean_s else 0.0

    def first(self, start_s: float) -> list[Request]:
        """All requests of an open load; the first of each client of a closed one."""
        arrivals, rng, end_s = self._workload.arrivals, self._rng, start_s + self._workload.seconds
        instants: list[float] = []
        match arrivals:
            case Poisson(rate):
                instants = self._at_random(rate, start_s, end_s)
            case Bursts(every_s, size, within_s):
                at_s = start_s + every_s * rng.uniform(0.1, 1)
                while at_s < end_s:
                    instants += sorted(at_s + within_s * rng.random(size))
                    at_s += every_s * rng.uniform(0.5, 1.5)
            case ClosedLoop(concurrency, think_s):
                instants = [start_s + self.think(think_s) for _ in range(concurrency)]
            case SideBySide():
                return self._side_by_side(arrivals, start_s, end_s)
        return [self.request(self._after_pause(at_s, start_s)) for at_s in instants]

    def newcomers(self, start_s: float, end_s: float) -> list[Request]:
        """The requests of a variant that has been loaded by `start_s`."""
        loading = self._workload.loading
        assert loading is not None
        instants = self._at_random(loading.rate, start_s, end_s)
        return [self.request(at_s, loading.variant) for at_s in instants]

    def _at_random(self, rate: float, start_s: float, end_s: float) -> list[float]:
        instants = []
        at_s = start_s + self._rng.exponential() / rate
        while at_s < end_s:
            instants.append(at_s)
            at_s += self._rng.exponential() / rate
        return instants

    def _side_by_side(self, arrivals: SideBySide, start_s: float, end_s: float) -> list[Request]:
        requests = []
        for at_s in np.arange(start_s, end_s, 1 / arrivals.rate).tolist():
            alone_s = at_s - start_s - arrivals.alone_at_s
            for index, name in enumerate(self._names):
                is_alone = 0 <= alone_s < arrivals.alone_s * len(self._names)
                if not is_alone or index == int(alone_s // arrivals.alone_s):
                    requests.append(self.request(at_s, name))
        return requests

    def _after_pause(self, at_s: float, start_s: float) -> float:
        pause = self._workload.pause
        if pause is None or at_s < start_s + pause.at_s:
            return at_s
        return at_s + pause.for_s
