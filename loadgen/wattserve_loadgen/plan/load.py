"""How requests are offered to a server, and what is compared under it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattserve_loadgen.errors import PlanError

CLOSED, POISSON, CONSTANT, RAMP, RECORDED, OFFLINE = (
    "closed",
    "poisson",
    "constant",
    "ramp",
    "recorded",
    "offline",
)
SHAPES = (CLOSED, POISSON, CONSTANT, RAMP, RECORDED, OFFLINE)
_NEEDED = {
    CLOSED: ("concurrency",),
    POISSON: ("rate",),
    CONSTANT: ("rate",),
    RAMP: ("rate", "rate_end"),
    RECORDED: ("trace",),
    OFFLINE: ("concurrency",),
}
_MOST_CONCURRENT = 4096
_MOST_SEQUENCES = 4096
_HIGHEST_RATE = 100_000.0
_HIGHEST_SPEED = 1000.0


@dataclass(frozen=True)
class Load:
    """One way of offering requests.

    closed    `concurrency` slots, each sending its next request when its answer is in; no schedule
    poisson   `rate` requests per second on average, at random instants, whatever is in flight
    constant  `rate` requests per second, evenly spaced
    ramp      random instants whose rate grows from `rate` to `rate_end` over the window
    recorded  the instants of the file `trace`, `speed` times as fast
    offline   everything at once, at most `concurrency` in flight: throughput only
    """

    shape: str
    concurrency: int | None = None
    rate: float | None = None  # requests per second
    rate_end: float | None = None
    trace: str = ""
    trace_sha256: str = ""
    speed: float = 1.0
    sequences: int = 1  # in each request

    @property
    def scheduled(self) -> bool:
        """Whether requests have an instant at which they are due: an open loop."""
        return self.shape in (POISSON, CONSTANT, RAMP, RECORDED)

    @property
    def name(self) -> str:
        """Unique among the loads of a sweep, and readable: `concurrency 8`, `100/s poisson`."""
        text = {
            CLOSED: f"concurrency {self.concurrency}",
            POISSON: f"{_number(self.rate)}/s poisson",
            CONSTANT: f"{_number(self.rate)}/s constant",
            RAMP: f"{_number(self.rate)}-{_number(self.rate_end)}/s ramp",
            RECORDED: f"recorded {self.trace}" + (f" x{_number(self.speed)}" if self.speed != 1 else ""),
            OFFLINE: f"offline, {self.concurrency} in flight",
        }[self.shape]
        return text if self.sequences == 1 else f"{text}, {self.sequences} sequences each"

    @property
    def order(self) -> tuple[int, float]:
        """Loads of one shape in the order of their weight."""
        return SHAPES.index(self.shape), self.rate or float(self.concurrency or 0) or self.speed


def closed(concurrency: int, sequences: int = 1) -> Load:
    return Load(CLOSED, concurrency=concurrency, sequences=sequences)


@dataclass(frozen=True)
class Arm:
    """What is compared: a variant on a server. The first arm of a plan is the baseline."""

    name: str
    variant: str  # as the server calls it
    target: str  # the server's name in this sweep
    twin_of: str = ""  # the arm that this one repeats, to see how far two equal arms differ


def check_loads(loads: Sequence[Load]) -> None:
    """PlanError when one makes no sense, or two are the same."""
    for load in loads:
        _check(load)
    names = [load.name for load in loads]
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise PlanError(f"{twice[0]} is listed twice")


def _check(load: Load) -> None:
    if load.shape not in _NEEDED:
        raise PlanError(f"shape {load.shape!r} is unknown; choose from {', '.join(SHAPES)}")
    missing = [name for name in _NEEDED[load.shape] if getattr(load, name) in (None, "")]
    if missing:
        raise PlanError(f"a load of the shape {load.shape} needs {missing[0].replace('_', '-')}")
    if load.concurrency is not None and not 1 <= load.concurrency <= _MOST_CONCURRENT:
        raise PlanError(f"concurrency {load.concurrency}: it must be from 1 to {_MOST_CONCURRENT}")
    for rate in (load.rate, load.rate_end):
        if rate is not None and not 0 < rate <= _HIGHEST_RATE:
            raise PlanError(f"rate {rate:g}: it must be above 0 and at most {_HIGHEST_RATE:g} per second")
    if not 0 < load.speed <= _HIGHEST_SPEED:
        raise PlanError(f"speed {load.speed:g}: it must be above 0 and at most {_HIGHEST_SPEED:g}")
    if not 1 <= load.sequences <= _MOST_SEQUENCES:
        raise PlanError(f"{load.sequences} sequences in a request: it must be from 1 to {_MOST_SEQUENCES}")


def _number(value: float | None) -> str:
    return f"{value:.6g}" if value is not None else "?"
