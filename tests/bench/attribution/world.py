"""What a simulated world is made of. Every parameter is explicit; nothing here is random.

Times are seconds, powers watts, energies joules, unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class VariantLaw:
    """What a batch of one variant takes alone on the device, noise apart.

    Duration: `fixed_s` + tokens / `tokens_per_s` + `quadratic_s` x sequences x length^2.
    Dynamic power (above idle): rises from `low` x `peak_watts` for no tokens, half of the way at
    `half_tokens`, towards `peak_watts`. Above `step_tokens` (None: never) the energy is multiplied
    by `step_factor`, as by another kernel.
    """

    name: str
    fixed_s: float
    tokens_per_s: float
    quadratic_s: float
    peak_watts: float
    low: float
    half_tokens: float
    step_tokens: int | None = None
    step_factor: float = 1.0

    def seconds(self, count: ArrayLike, length: ArrayLike) -> Floats:
        """Of a batch of `count` sequences padded to `length`; arrays broadcast."""
        rows, width = np.asarray(count, np.float64), np.asarray(length, np.float64)
        return self.fixed_s + rows * width / self.tokens_per_s + self.quadratic_s * rows * width**2

    def joules(self, count: ArrayLike, length: ArrayLike) -> Floats:
        """Dynamic energy of a batch of `count` sequences padded to `length`; arrays broadcast."""
        tokens = np.asarray(count, np.float64) * np.asarray(length, np.float64)
        watts = self.peak_watts * (self.low + (1 - self.low) * tokens / (tokens + self.half_tokens))
        energy = watts * self.seconds(count, length)
        if self.step_tokens is None:
            return energy
        return np.where(tokens > self.step_tokens, self.step_factor, 1.0) * energy


@dataclass(frozen=True, slots=True)
class LawChange:
    """From `at_s` after the end of calibration on, for one variant or (None) for all."""

    at_s: float
    variant: str | None
    energy_factor: float
    duration_factor: float


@dataclass(frozen=True, slots=True)
class IdleModel:
    """The device's draw without work.

    `watts` with a random walk of `walk` watts per sqrt(s), and on top `offset_watts` during work and
    for `hold_s` after it, which then decays with time constant `decay_s` (0: drops at once). A device that
    sleeps (asleep_watts is not None) draws so much instead of `watts` until it first works, and again once
    it has rested for `sleeps_after_s`, as a board does in its lowest state of performance.
    """

    watts: float = 70.0
    walk: float = 0.15
    offset_watts: float = 8.0
    hold_s: float = 2.0
    decay_s: float = 3.0
    asleep_watts: float | None = None
    sleeps_after_s: float = 10.0


@dataclass(frozen=True, slots=True)
class CounterModel:
    """Publishes, every `period_s` give or take `jitter_s` (standard deviation), the energy as of `lag_s`
    before, in whole millijoules.

    box_s: it adds up a trailing average of the power over so much time (0: the power itself). sampled_s: it
    looks at the power for the last so many seconds before each publication and takes that for the whole
    time since the one before (0: it looks all the time). declares_average: its meter does."""

    period_s: float = 0.1
    jitter_s: float = 0.002
    lag_s: float = 0.02
    box_s: float = 0.0
    sampled_s: float = 0.0
    declares_average: bool = False

    @property
    def declared_s(self) -> float:
        return self.box_s if self.declares_average else 0.0


@dataclass(frozen=True, slots=True)
class PollModel:
    """Polls every `period_s`, by default as the server does it for a counter of 100 ms, dithered as the
    server dithers them, `late_s` late on average (exponential) and `starved_per_s` times a second by
    `starved_s` (uniform between its two values). Of a pause of hours, which a simulation need not see in
    full, all but the ends is polled every `paused_s`."""

    period_s: float = 0.01
    late_s: float = 0.0005
    starved_per_s: float = 0.02
    starved_s: tuple[float, float] = (0.2, 0.5)
    paused_s: float = 0.25


@dataclass(frozen=True, slots=True)
class ForeignLoad:
    """Another process: episodes of about `watts`, `on_s` long and `off_s` apart on average.

    is_visible: whether the meter counts it as a neighbour while it draws; otherwise, and in worlds without
    foreign load, it cannot tell who else is there. is_listed: it counts it all the time, from the start.
    is_regular: its episodes are exactly so long, so far apart and so strong. use: which part of the device
    it keeps busy in an episode, as the driver tells of each process; None: nobody tells.
    """

    watts: float = 90.0
    on_s: float = 6.0
    off_s: float = 10.0
    is_visible: bool = True
    is_listed: bool = False
    is_regular: bool = False
    use: float | None = None


@dataclass(frozen=True, slots=True)
class World:
    """A device with its sensor, and the server's limits on it.

    ramp_s: first-order time constant with which power follows work. noise: relative deviation of a
    batch's energy that nothing observable reveals; duration_noise: of its duration, independent of
    it. thermal_gain: how much more a batch takes on a device as hot as constant peak power makes it,
    reached with time constant `thermal_s`. slots: how many batches run at once; with k running, the
    device does 1 + overlap_speedup x (k - 1) times the work of one, and every batch draws
    sublinear x (k - 1) less for its work. A batch that starts `cold_after_s` after the last one draws
    `cold_energy` and takes `cold_duration` times as much. turnaround_s: the host's pause between two
    batches of a slot. counts_server: the meter counts the server's own work too, as a host's does.
    """

    variants: tuple[VariantLaw, ...]
    idle: IdleModel = IdleModel()
    counter: CounterModel = CounterModel()
    polls: PollModel = PollModel()
    ramp_s: float = 0.025
    noise: float = 0.04
    duration_noise: float = 0.02
    thermal_gain: float = 0.04
    thermal_s: float = 30.0
    slots: int = 1
    overlap_speedup: float = 0.1
    sublinear: float = 0.0
    cold_after_s: float = 0.5
    cold_energy: float = 1.0
    cold_duration: float = 1.0
    turnaround_s: float = 0.0003
    changes: tuple[LawChange, ...] = ()
    foreign: ForeignLoad | None = None
    counts_server: bool = False

    def law(self, name: str) -> VariantLaw:
        return next(law for law in self.variants if law.name == name)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per request: log-normal around `median`, `sigma` wide in the logarithm, cut to low..high."""

    median: float = 48
    sigma: float = 0.4
    low: int = 8
    high: int = 256

    def draw(self, rng: np.random.Generator) -> int:
        return int(min(max(self.median * np.exp(self.sigma * rng.standard_normal()), self.low), self.high))


@dataclass(frozen=True, slots=True)
class Poisson:
    """Requests come at random, `rate` per second."""

    rate: float


@dataclass(frozen=True, slots=True)
class Bursts:
    """Every `every_s` on average (half to one and a half of it), `size` requests within `within_s`."""

    every_s: float
    size: int
    within_s: float = 0.02


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` clients, each sending its next request about `think_s` after its last answer."""

    concurrency: int
    think_s: float = 0.001


@dataclass(frozen=True, slots=True)
class SideBySide:
    """`rate` times a second, a request of every variant at once; but from `alone_at_s` on for `alone_s` of
    the first variant only, then for as long of the second, and so on."""

    rate: float
    alone_at_s: float = 0.0
    alone_s: float = 0.0


Arrivals = Poisson | Bursts | ClosedLoop | SideBySide


@dataclass(frozen=True, slots=True)
class Pause:
    """From `at_s` on for `for_s` nobody asks; then an open load goes on where it was."""

    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Loading:
    """A variant that is put on the device while the others serve, from `at_s` on; once it is there, it is
    asked for `rate` times a second besides. has_trials: its calibration runs before that."""

    variant: str
    at_s: float
    rate: float
    has_trials: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """weights: how often each variant is asked for; empty: equally often. is_calibrated: variants that are
    there from the start have run their calibration, not only their warm-up. apart_s: nothing runs for so long
    between the calibrations of two variants, as where another device is calibrated by turns."""

    arrivals: Arrivals
    seconds: float
    lengths: Lengths = Lengths()
    max_batch: int = 16
    weights: tuple[float, ...] = ()
    pause: Pause | None = None
    loading: Loading | None = None
    is_calibrated: bool = True
    apart_s: float = 0.0
