"""How requests are offered to a server, and what is compared under it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattserve_loadgen.errors import PlanError

_MOST_CONCURRENT = 4096
_MOST_SEQUENCES = 4096
_HIGHEST_RATE = 100_000.0
_HIGHEST_SPEED = 1000.0


@dataclass(frozen=True)
class Shape:
    """What the loads of one shape have in common. A text in braces is a field of the load."""

    needs: tuple[str, ...]  # fields of a Load that must be given
    name: str  # with which a load is told from the others of its sweep
    phrase: str  # a load in the middle of a sentence
    weight: str  # a load in the least space, below `axis`
    axis: str  # what a weight counts, with its unit: an axis label
    short_axis: str
    scheduled: bool = True  # an open loop: a request has an instant at which it is due, whatever is in flight
    is_line: bool = True  # a chart joins loads of this shape that differ in weight alone


CLOSED, POISSON, CONSTANT, RAMP, RECORDED, OFFLINE = (
    "closed", "poisson", "constant", "ramp", "recorded", "offline",
)  # fmt: skip
SHAPES: dict[str, Shape] = {
    # `concurrency` slots; each sends its next request when its answer is in
    CLOSED: Shape(
        needs=("concurrency",),
        name="concurrency {concurrency}",
        phrase="at concurrency {concurrency}",
        weight="{concurrency}",
        axis="concurrency (requests in flight)",
        short_axis="concurrency",
        scheduled=False,
    ),
    # `rate` requests per second on average, at random instants
    POISSON: Shape(
        needs=("rate",),
        name="{rate}/s poisson",
        phrase="at {rate} requests per second (Poisson)",
        weight="{rate}",
        axis="offered requests per second (Poisson)",
        short_axis="per second, Poisson",
    ),
    # `rate` requests per second, evenly spaced
    CONSTANT: Shape(
        needs=("rate",),
        name="{rate}/s constant",
        phrase="at {rate} requests per second (evenly spaced)",
        weight="{rate}",
        axis="offered requests per second (evenly spaced)",
        short_axis="per second, even",
    ),
    # random instants; the rate grows from `rate` to `rate_end` over the window
    RAMP: Shape(
        needs=("rate", "rate_end"),
        name="{rate}-{rate_end}/s ramp",
        phrase="in a ramp from {rate} to {rate_end} requests per second",
        weight="{rate}–{rate_end}",
        axis="ramp, requests per second",
        short_axis="per second, ramp",
        is_line=False,
    ),
    # the instants of the file `trace`, `speed` times as fast
    RECORDED: Shape(
        needs=("trace",),
        name="recorded {trace}",
        phrase="on the recorded arrivals of {trace}",
        weight="×{speed}",
        axis="recorded arrivals, speed",
        short_axis="recorded",
        is_line=False,
    ),
    # everything at once, at most `concurrency` in flight: throughput only
    OFFLINE: Shape(
        needs=("concurrency",),
        name="offline, {concurrency} in flight",
        phrase="offline, {concurrency} in flight",
        weight="{concurrency}",
        axis="offline, requests in flight",
        short_axis="offline",
        scheduled=False,
        is_line=False,
    ),
}


@dataclass(frozen=True)
class Load:
    """One way of offering requests: a shape of SHAPES, and the figures that it needs."""

    shape: str  # `closed`, `poisson`, `constant`, `ramp`, `recorded` or `offline`
    concurrency: int | None = None  # requests in flight at once; None where the load does not set it
    rate: float | None = None  # requests per second
    rate_end: float | None = None  # of a ramp: the rate at its end
    trace: str = ""  # of a recorded load: the file of its instants
    trace_sha256: str = ""  # of that file
    speed: float = 1.0  # of a recorded load: how much faster than it was recorded
    sequences: int = 1  # in each request

    @property
    def scheduled(self) -> bool:
        """Whether it is an open loop."""
        return SHAPES[self.shape].scheduled

    @property
    def name(self) -> str:
        """Unique among the loads of a sweep, and readable: `concurrency 8`, `100/s poisson`."""
        speed = f" x{self.speed:.6g}" if self.shape == RECORDED and self.speed != 1 else ""
        return self._filled(SHAPES[self.shape].name, digits=6) + speed + self._each

    @property
    def phrase(self) -> str:
        """`at concurrency 4`, `at 100 requests per second (Poisson)`."""
        speed = "" if self.speed == 1 else f" at {self.speed:.4g} times their speed"
        return self._filled(SHAPES[self.shape].phrase) + speed + self._each

    @property
    def weight(self) -> str:
        return self._filled(SHAPES[self.shape].weight)

    @property
    def axis(self) -> str:
        return SHAPES[self.shape].axis + self._each

    @property
    def short_axis(self) -> str:
        text = SHAPES[self.shape].short_axis
        return text if self.sequences == 1 else f"{text}, × {self.sequences}"

    @property
    def line(self) -> str:
        """The same for loads whose points a chart joins."""
        return f"{self.shape} {self.sequences}" if SHAPES[self.shape].is_line else self.name

    @property
    def order(self) -> tuple[int, float]:
        """Loads of one shape in the order of their weight."""
        return list(SHAPES).index(self.shape), self.rate or float(self.concurrency or 0) or self.speed

    @property
    def _each(self) -> str:
        return "" if self.sequences == 1 else f", {self.sequences} sequences each"

    def _filled(self, text: str, digits: int = 4) -> str:
        return text.format(**{name: _shown(value, digits) for name, value in vars(self).items()})


def closed(concurrency: int, sequences: int = 1) -> Load:
    return Load(CLOSED, concurrency=concurrency, sequences=sequences)


@dataclass(frozen=True)
class Arm:
    """What is compared: a variant on a server. The first arm of a plan is the baseline."""

    name: str  # unique in the sweep; of a twin `NAME (A/A)`
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
    if load.shape not in SHAPES:
        raise PlanError(f"shape {load.shape!r} is unknown; choose from {', '.join(SHAPES)}")
    missing = [name for name in SHAPES[load.shape].needs if getattr(load, name) in (None, "")]
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


def _shown(value: object, digits: int) -> str:
    """A field of a load in a text; `?` for one that an unchecked load lacks."""
    return "?" if value is None else f"{value:.{digits}g}" if isinstance(value, int | float) else str(value)
