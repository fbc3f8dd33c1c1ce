"""What polling a sensor showed, as plain values, and what follows from it. Pure: no clock, no meter.

`meters/probe.py` does the polling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, gcd
from statistics import median, pstdev

from wattserve_server.energy.reading import Energy, Reading, Source

# A value that changed in fewer of the polls than this stands still between its updates. One that changed in
# more of them may step too, but faster than the polls could tell.
STEPPED_BELOW = 0.5

# A stepped counter's edge is known to within one poll: a tenth of its period costs accuracy nothing, and no
# sampler gains by reading faster than every 5 ms. Above 50 ms the figures lose a point or two.
_FASTEST_S, _SLOWEST_S = 0.005, 0.05
_CONTINUOUS_S = 0.1
_POLLS_PER_UPDATE = 10
# A tenth of one core's time at the most may go into reading; but see _SLOWEST_S, which wins over it.
_READ_COSTS_PER_POLL = 10


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """A counter against the same board's power, integrated over the same time."""

    window_s: float
    counter_joules: float
    power_joules: float

    @property
    def difference_ratio(self) -> float | None:
        """How much more the counter says than the power, relative to the power; None without any power."""
        if self.power_joules <= 0:
            return None
        return self.counter_joules / self.power_joules - 1


@dataclass(frozen=True, slots=True)
class SensorProbe:
    """What polling the sensor showed; None for what it did not show."""

    duration_s: float
    reads: int
    stepped: bool = False  # the value stands still between updates
    update_period_s: float | None = None  # median
    edge_jitter_s: float | None = None  # standard deviation of it, with what the polls' own spacing adds
    read_cost_p50_s: float | None = None
    read_cost_p99_s: float | None = None
    resolution_uj: int | None = None  # the greatest common divisor of all changes seen
    watts: float | None = None  # drawn between the first and the last update of the probe
    cross_checks: tuple[CrossCheck, ...] = ()
    # What the sensor does not offer or did not show, and why.
    unsupported: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeterPart:
    """One of the meters that a composite meter adds up."""

    source: Source
    energy: Energy  # counted since the composite was opened; the parts sum to the composite
    idle_watts: float | None
    probe: SensorProbe | None = None


def poll_period_s(probe: SensorProbe, usual_s: float) -> float:
    """How often the sampler should read a sensor that was probed; usual_s: the meter's own proposal.

    A continuous value has no edges to find: each poll is one, known exactly, and costs the work of one.
    Every 100 ms is enough to tell batches apart, because the laws do so within an interval.
    """
    if probe.read_cost_p50_s is None:
        return usual_s
    if probe.update_period_s is None:
        return round(max(usual_s, _CONTINUOUS_S), 4)
    affordable_s = _READ_COSTS_PER_POLL * probe.read_cost_p50_s
    wanted_s = probe.update_period_s / _POLLS_PER_UPDATE
    return round(min(max(wanted_s, affordable_s, _FASTEST_S), _SLOWEST_S), 4)


@dataclass(frozen=True, slots=True)
class Changes:
    """At which readings a value changed, and by how much. A step back is no change: it is counted apart."""

    edges: Sequence[Reading]
    gains_uj: Sequence[int]
    steps_back: int


def changes(readings: Sequence[Reading], wraps_at: Energy | None) -> Changes:
    """wraps_at: where the counter starts again from 0, if it does."""
    edges: list[Reading] = []
    gains_uj: list[int] = []
    steps_back = 0
    for before, after in pairwise(readings):
        gain_uj = after.energy.uj - before.energy.uj
        if gain_uj < 0 and wraps_at is not None:
            gain_uj += wraps_at.uj
        if gain_uj < 0:
            steps_back += 1
        elif gain_uj > 0:
            edges.append(after)
            gains_uj.append(gain_uj)
    return Changes(edges, gains_uj, steps_back)


def describe(
    readings: Sequence[Reading],
    costs_ns: Sequence[int],
    duration_ns: int,
    *,
    wraps_at: Energy | None = None,
    cross_checks: tuple[CrossCheck, ...] = (),
    unsupported: Mapping[str, str] | None = None,
) -> SensorProbe:
    """What successful readings, in order, and the costs of all of them say. unsupported: known already."""
    seen = changes(readings, wraps_at)
    notes = dict(unsupported or {})
    stepped = 0 < len(seen.edges) < STEPPED_BELOW * (len(readings) - 1)
    spans_ns = [after.at_ns - before.at_ns for before, after in pairwise(seen.edges)]
    if seen.steps_back:
        times = "once" if seen.steps_back == 1 else f"{seen.steps_back} times"
        notes["steady growth"] = f"the value stepped back {times}"
    if readings and not seen.edges:
        notes["update period"] = f"the value stood still for {duration_ns / 1e9:.3g} s"
    elif readings and not spans_ns:
        notes["update period"] = f"the value changed only once in {duration_ns / 1e9:.3g} s"
    elif readings and not stepped:
        notes["update period"] = (
            "the value changes with every poll: it is continuous, or faster than the probe"
        )
    is_timed = stepped and bool(spans_ns)
    return SensorProbe(
        duration_s=duration_ns / 1e9,
        reads=len(costs_ns),
        stepped=stepped,
        update_period_s=median(spans_ns) / 1e9 if is_timed else None,
        edge_jitter_s=pstdev(spans_ns) / 1e9 if is_timed else None,
        read_cost_p50_s=_percentile(costs_ns, 0.5) / 1e9 if readings else None,
        read_cost_p99_s=_percentile(costs_ns, 0.99) / 1e9 if readings else None,
        resolution_uj=gcd(*seen.gains_uj) or None,
        watts=None if seen.steps_back else _watts(seen),
        cross_checks=cross_checks,
        unsupported=notes,
    )


def check_against_power(
    counter: Sequence[Reading], power: Sequence[Reading], windows_s: Sequence[float] = ()
) -> tuple[CrossCheck, ...]:
    """The counter's energy against integrated power, from the counter's first edge to its last one within
    each window; without windows, to its last one.

    power: energies that were integrated from power, on the same clock. Both must only grow. Between edges,
    so that what has not been published yet does not look like a difference.
    """
    if not power:
        return ()
    inside = (power[0].at_ns, power[-1].at_ns)
    edges = [edge for edge in changes(counter, None).edges if inside[0] <= edge.at_ns <= inside[1]]
    if not edges:
        return ()
    first_ns, last_ns = edges[0].at_ns, counter[-1].at_ns
    ends_ns = [first_ns + round(window_s * 1e9) for window_s in windows_s] or [last_ns]
    checks: list[CrossCheck] = []
    for end_ns in ends_ns:
        within = [edge for edge in edges if edge.at_ns <= end_ns]
        if len(within) < 2 or end_ns > last_ns:
            continue
        first, last = within[0], within[-1]
        checks.append(
            CrossCheck(
                window_s=(last.at_ns - first.at_ns) / 1e9,
                counter_joules=(last.energy - first.energy).joules,
                power_joules=(_uj_at(power, last.at_ns) - _uj_at(power, first.at_ns)) / 1e6,
            )
        )
    return tuple(checks)


def _uj_at(readings: Sequence[Reading], at_ns: int) -> float:
    """The energy at an instant within `readings`, straight between two of them."""
    for before, after in pairwise(readings):
        if before.at_ns <= at_ns <= after.at_ns and after.at_ns > before.at_ns:
            share = (at_ns - before.at_ns) / (after.at_ns - before.at_ns)
            return before.energy.uj + share * (after.energy.uj - before.energy.uj)
    return float(readings[-1].energy.uj)


def _watts(seen: Changes) -> float | None:
    if len(seen.edges) < 2:
        return None
    # The first change is what was drawn before the first edge.
    return sum(seen.gains_uj[1:]) * 1000 / (seen.edges[-1].at_ns - seen.edges[0].at_ns)


def _percentile(values: Sequence[int], share: float) -> int:
    """A value that was really seen."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]
