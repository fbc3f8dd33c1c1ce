"""How batches that the counter has begun to hold come into the filter: with what their laws say, with a first
idea where there is no law yet, or not before the counter holds enough of them to have one. And what readers
are told of their laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.calibration import CounterInterval
from wattserve_server.energy.calibrator import Calibrator
from wattserve_server.energy.costlaw import (
    CPU_TIME,
    NODES,
    SMOOTH,
    Array,
    Coefficients,
    LawView,
    features_of,
    of_cpu_time,
)
from wattserve_server.energy.durations import Durations
from wattserve_server.energy.estimate import PACE_SPREAD
from wattserve_server.energy.filter import EnergyFilter
from wattserve_server.energy.firstideas import FirstIdeas
from wattserve_server.energy.openbatches import Entry, OpenBatches, TimedWindow, entries_of

LEAST_SECONDS = 2e-4  # of batches that the counter holds, whatever it holds

# Where nothing is known of what the device usually draws, a first idea of that takes this part of the pool at
# the least. Over a law's first so many edges it is taken anew where so many times as much is left for its
# batches: an idea that is far too high is corrected by the next edge, and one that is far too low never is,
# for what it leaves looks like somebody else's.
FIRST_IDEA, YOUNG, TOO_LOW = 0.2, 16, 4.0

FIRST_PART = 0.2  # so much of a batch must be in the counter before a first idea can be had of it


class Admission:
    """What has been heard outlives the filter. Call `begin` before all else."""

    def __init__(self, ideas: FirstIdeas, durations: Durations) -> None:
        self._ideas, self._durations = ideas, durations
        self._young: dict[str, int] = {}  # by law: edges since it was begun without calibration

    def begin(self, filter_: EnergyFilter, open_: OpenBatches, calibrator: Calibrator) -> None:
        """From now on hand batches to these."""
        self._filter, self._open, self._calibrator = filter_, open_, calibrator
        self._estimate = filter_.estimate

    def admit(
        self, new: list[TimedWindow], edge: CounterInterval, rest_s: Array, pool_j: float
    ) -> list[TimedWindow]:
        """Hand over these, which the counter has begun to hold; returns those that cannot be followed yet:
        where there are any, the edge says nothing. rest_s: of it, by class. pool_j: with what it counted."""
        for batch in new:
            if not self._estimate.knows(batch.law):
                self._ideas.hear(batch)
        unknown = [batch for batch in new if not self._is_foreseen(batch)]
        young = [batch for batch in new if 0 < self._young.get(batch.law, 0) <= YOUNG]
        asked = {id(batch) for batch in unknown + young}
        beside = [batch for batch in new if id(batch) not in asked]
        rest_j = float(rest_s @ self._estimate.idle_w)
        can_follow = not unknown or self._begin_laws(unknown, beside + young, edge, rest_j, pool_j)
        if can_follow and young:
            self._begin_laws(young, beside, edge, rest_j, pool_j)
        held = [] if can_follow else unknown
        kept_back = {id(batch) for batch in held}
        followed = [batch for batch in new if id(batch) not in kept_back]
        for batch in followed:
            self._calibrator.hear_batch(batch)
        self._admit_lawful([batch for batch in followed if not batch.is_lawless])
        if first_runs := [batch for batch in followed if batch.is_lawless]:
            assert self._ideas.usual_w is not None
            self._open.add([Entry([batch], [0.0]) for batch in first_runs])
            seconds = np.array([batch.took_s for batch in first_runs])
            self._estimate.admit_first_runs(self._ideas.usual_w * seconds)
        return held

    def _admit_lawful(self, batches: Sequence[TimedWindow]) -> None:
        entries = entries_of(batches, among=len(self._open))
        if not entries:
            return
        laws = [entry.law for entry in entries]
        features = np.array([entry.features for entry in entries])
        rests = np.array([0 if entry.law == CPU_TIME else entry.rest for entry in entries])
        counts = np.array([len(entry.batches) for entry in entries], dtype=float)
        excess = self._excess(entries, rests, counts)
        by_cpu_time = np.array([law == CPU_TIME for law in laws])
        excess[by_cpu_time] = 0.0  # that law has read it
        if self._filter.foreign.is_open:  # who is kept waiting by others draws nothing for it
            excess[:] = 0.0
        self._open.add(entries)
        self._estimate.admit(laws, features, rests, counts, excess)
        if (change := self._durations.take_change()) and not by_cpu_time.any():
            # Where the counter has told what longer means, the pace explains it.
            unknown_part = min(self._estimate.pace_deviation / PACE_SPREAD, 1.0)
            self._filter.hear_pace(change * unknown_part)

    def _excess(self, entries: Sequence[Entry], rests: NDArray[np.int64], counts: Array) -> Array:
        """By how much longer each took than batches like it do, relatively; of first runs nothing is said."""
        excess, seconds = np.zeros(len(entries)), self._open.own_seconds(entries)
        at = [index for index, entry in enumerate(entries) if not entry.kind.is_first_run]
        if at:
            kinds = [entries[index].kind for index in at]
            features = np.array([features_of(kind) for kind in kinds])
            are_trials = np.array([kind.is_warmup for kind in kinds])
            excess[at] = self._durations.excess(
                [kind.variant for kind in kinds], features, seconds[at], counts[at], are_trials, rests[at] > 0
            )
        return excess

    def laws_told(self, before: LawView) -> LawView:
        """What is known now. Where batches follow the law of CPU time, which knows no work, each variant has
        one for how long its batches take."""
        estimate, response = self._estimate, self._calibrator.response
        laws, pace, second_j = estimate.laws(), estimate.pace, None
        uncertain = frozenset(laws) if response.is_at_its_bounds else estimate.uncertain
        if by_cpu_time := laws.pop(CPU_TIME, None):
            second_j, pace = by_cpu_time.cost_j(of_cpu_time(1.0)), 1.0
            taken = {
                name: Coefficients.of((second_j * law).tolist(), (0.0,) * SMOOTH, (0.0,) * NODES)
                for name, law in self._durations.laws.items()
            }
            laws = taken | laws
            uncertain |= set(taken) if CPU_TIME in uncertain else set()
        return replace(
            before,
            laws=laws,
            uncertain=uncertain,
            after_rest=estimate.after_rest,
            for_time={name: pace * level for name, level in self._durations.levels.items()},
            cpu_second_j=None if CPU_TIME in uncertain else second_j,
        )

    def _is_foreseen(self, batch: TimedWindow) -> bool:
        """Whether there is any idea of what it costs."""
        if batch.is_lawless:
            return self._ideas.usual_w is not None
        return self._estimate.knows(batch.law)

    def _begin_laws(
        self,
        batches: Sequence[TimedWindow],
        beside: Sequence[TimedWindow],
        edge: CounterInterval,
        rest_j: float,
        pool_j: float,
    ) -> bool:
        """A first idea of batches of which little is known; beside: the others that are new. Where it is not
        known what the device usually draws, what nothing else explains says it; False when the counter holds
        too little of them yet."""
        parts = self._parts(batches, edge)
        usual_w = self._ideas.usual_w
        if usual_w is None and float(parts.sum()) < FIRST_PART:
            return False
        known_j = float(self._open.counted(edge.end_s, self._calibrator.response) @ self._estimate.batches_j)
        if usual_w is not None and beside:
            known_j += float(self._parts(beside, edge) @ [self._idea_j(batch, usual_w) for batch in beside])
        left_j = max(pool_j - known_j - rest_j, 0.0)
        seconds = max(float(parts @ [batch.took_s for batch in batches]), LEAST_SECONDS)
        if usual_w is None:
            usual_w = max(left_j, FIRST_IDEA * pool_j, 1e-6) / seconds
            self._ideas.settled(usual_w * seconds, seconds)
        expected_j = float(parts @ [self._idea_j(batch, usual_w) for batch in batches])
        is_far_too_low = left_j > TOO_LOW * expected_j and float(parts.sum()) > FIRST_PART
        for name in dict.fromkeys(batch.law for batch in batches if not batch.is_lawless):
            if not self._estimate.knows(name):
                self._young[name] = 0
                self._estimate.add_variant(name, *self._ideas.law(name, usual_w))
            elif is_far_too_low:
                self._estimate.add_variant(name, *self._ideas.law(name, left_j / seconds))
            self._young[name] += 1
        return True

    def _parts(self, batches: Sequence[TimedWindow], edge: CounterInterval) -> Array:
        """Which part of each the counter holds at an edge."""
        starts_s, ends_s = np.array([(batch.start_s, batch.end_s) for batch in batches]).T
        return self._calibrator.response.counted(edge.end_s, starts_s, ends_s)

    def _idea_j(self, batch: TimedWindow, usual_w: float) -> float:
        if batch.is_lawless or not self._estimate.knows(batch.law):
            return usual_w * batch.took_s
        return float(self._estimate.predict([batch.law], np.array([0]), np.array([batch.features]))[0])
