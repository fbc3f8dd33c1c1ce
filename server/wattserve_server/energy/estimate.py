"""What is unknown about a device's energy, all of it with its covariance: what `filter` learns.

In joules, and in watts for what draws all the time. It holds
  - the carry: energy of what has been booked already, beyond what was booked for it;
  - the idle draw, one level per class of rest (`idle`);
  - what something else draws on the device, while there is a sign of it (`foreign`);
  - how much more a batch costs after a rest, one relative figure per class of rest;
  - how much more a batch costs that takes longer than it should (`durations`): relatively, so that 1 is as
    much more as it takes longer;
  - the coefficients of every variant's cost law (`costlaw`);
  - the energy of every entry of open batches: its law's prediction, give or take its own deviation; of a
    first run, which no law tells, what the device usually draws in that time, or anything.

Linear algebra only: what enters, what leaves, and what booking does to it. Learns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.costlaw import (
    CLASSES,
    LEAST,
    SIZE,
    SMOOTH,
    Array,
    Coefficients,
    correction_covariance,
    factors_of,
)

CARRY = 0
IDLE = slice(1, 1 + CLASSES)
FOREIGN = 1 + CLASSES
RESTED = slice(2 + CLASSES, 1 + 2 * CLASSES)  # no class for batches without a rest before them
PACE = RESTED.stop
LAWS = PACE + 1

# Relative deviations, before anything is known.
BATCH_NOISE = 0.05  # of one batch from its law
REST_SPREAD = 0.1  # of each class of rest from the common level of the idle draw
SOON_SPREAD = 0.03  # of what it draws within the first second after work from what it draws at work
AWAKE_SPREAD = 0.5  # of what a device draws that has worked, from what it drew before
AFTER_REST = 0.05  # of a batch's cost after a rest from that of one in a row
FIRST_PACE, PACE_SPREAD = 0.5, 0.5  # of the pace: a wait draws nothing, and slow work draws for longer
CORRECTION = 0.1  # of a law from its smooth part
# Of a first run from what the device usually draws in that time: it may have used anything, and what an edge
# says of it is not to be taken for idle draw.
FIRST_RUN = 10.0
FIRST_GAIN, FIRST_FORM = 0.7, 1.0  # of a law that was never heard: as a whole, and of each coefficient alone

ROUNDING = 1e-4  # relative deviation of any sum of joules, at the least: floats are not exact

ROOM = 64  # more entries than this are given room for at a time
LATER = 16  # at the most so many edges change the covariance together
EVEN_OUT = 256  # draws are booked so often until the covariance is made exactly symmetric again

# A law is known once it tells a batch's energy this well (relative deviation).
KNOWN = 0.3


def within(pool_j: float, amounts_j: Array, deviations_j: Array) -> Array:
    """The amounts, and where they are more than the pool holds, what remains of each: who is known less well
    is cut by more, in proportion to the variances, and none below 0."""
    left_j = amounts_j.copy()
    variances = deviations_j**2 + (ROUNDING * amounts_j) ** 2
    for _ in amounts_j:  # each round cuts what is short, or takes all of at least one of them
        short_j = float(left_j.sum()) - pool_j
        weights = np.where(left_j > 0, variances, 0.0)
        if short_j <= 0 or not weights.any():
            break
        left_j = np.maximum(left_j - short_j * weights / weights.sum(), 0.0)
    return left_j


class Estimate:
    """Values `x` and covariance `p`, in the order of this module's slices; the open entries come last.

    What edges take off the covariance is put off: to take off many at once costs little more than one. `p` is
    `_stale`, less the outer product of each column of `_taken` with itself. Both are views of one room, each
    row of which is one of `_taken` and then one of `_stale`: a sum of values has the sum of their rows.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.bases: Array = np.zeros((0, SMOOTH))  # smooth parts that corrections are relative to
        self._hold(np.zeros((LAWS, LATER + LAWS)))
        self._see(np.zeros(LAWS))
        self._put_off = 0  # columns of `_taken` that are in use
        self.size = LAWS  # of what is not a batch
        self.p[RESTED, RESTED] = AFTER_REST**2 * (0.5 + 0.5 * np.eye(CLASSES - 1))
        self.x[PACE], self.p[PACE, PACE] = FIRST_PACE, PACE_SPREAD**2
        self.counts: Array = np.zeros(0)  # of batches, for each open entry
        self._least_j: Array = np.zeros(0)  # of each open entry: what ran used something
        self.is_first_run: NDArray[np.bool_] = np.zeros(0, dtype=bool)  # for each open entry
        self._declared: set[str] = set()  # laws that are not learned
        self.known: set[str] = set()  # variants whose law tells a batch's energy well
        self.unheard_s: Array = np.zeros(0)  # of each variant: since one of its batches came
        self._booked = 0  # draws since the covariance was made symmetric
        self.scatter_alone: Array = np.zeros(0)  # variance of one batch that its entry's sum hides

    # -- what it says

    @property
    def p(self) -> Array:
        """The covariance, a view."""
        self._catch_up()
        return self._stale

    def variances(self, at: slice) -> Array:
        """Of these values."""
        taken = self._taken[at]
        return np.asarray(np.diagonal(self._stale)[at] - np.einsum("ij,ij->i", taken, taken))

    def column(self, at: int) -> Array:
        """The covariance of every value with this one."""
        return np.asarray(self._stale[:, at] - self._taken @ self._taken[at])

    def spread(self, weights: Array) -> Array:
        """The covariance of every value with the sum of all by these weights, in which no law has a part."""
        draws, batches = slice(RESTED.start), slice(self.size, None)
        rows = weights[draws] @ self._rows[draws] + weights[batches] @ self._rows[batches]
        return np.asarray(rows[LATER:] - self._taken @ rows[:LATER])

    @property
    def idle_w(self) -> Array:
        """Watts, one for each class of rest."""
        return self.x[IDLE]

    @property
    def carry_j(self) -> float:
        """Joules of what has been booked, beyond what was booked for it."""
        return float(self.x[CARRY])

    @property
    def batches_j(self) -> Array:
        """Joules of each open entry, in the order in which they were admitted."""
        return np.maximum(self.x[self.size :], self._least_j)

    @property
    def foreign_w(self) -> float:
        """What something else draws on the device, in watts."""
        return float(self.x[FOREIGN])

    @property
    def after_rest(self) -> tuple[float, ...]:
        """How much more a batch costs, relatively, after each class of rest."""
        return (0.0, *self.x[RESTED].tolist())

    @property
    def pace(self) -> float:
        """How much more a batch costs, relatively, for taking longer than it should, relatively."""
        return float(self.x[PACE])

    @property
    def pace_deviation(self) -> float:
        return float(np.sqrt(max(self.variances(slice(PACE, LAWS))[0], 0.0)))

    @property
    def has_first_runs(self) -> bool:
        """Whether one of them is a first run, which may have used anything."""
        return bool(self.is_first_run.any())

    @property
    def learned(self) -> NDArray[np.bool_]:
        """A mask of the laws that nobody has declared."""
        return np.array([name not in self._declared for name in self.names], dtype=bool)

    def knows(self, variant: str) -> bool:
        """Whether there is a law of it, well known or not."""
        return variant in self.names

    @property
    def uncertain(self) -> frozenset[str]:
        """The other variants that have a law."""
        return frozenset(self.names) - self.known

    def laws(self) -> dict[str, Coefficients]:
        laws: dict[str, Coefficients] = {}
        for name, base, theta in zip(self.names, self.bases.tolist(), self.thetas.tolist(), strict=True):
            laws[name] = Coefficients.of(theta[:SMOOTH], base, theta[SMOOTH:])
        return laws

    @property
    def thetas(self) -> Array:
        """The coefficients of every law: [variants, SIZE], a view."""
        return self.x[LAWS : self.size].reshape(-1, SIZE)

    def predict(self, variants: Sequence[str], of: NDArray[np.int64], features: Array) -> Array:
        """What the laws of these variants say of batches, in joules. of: which of them each batch is of.
        features: [batches, SMOOTH]."""
        index = np.array([self.names.index(name) for name in variants])[of]
        return self._told(index, factors_of(self.bases[index], features))

    def _told(self, of: NDArray[np.int64], factors: Array) -> Array:
        """What laws say of batches, by the factors of their coefficients. of: the index of each variant."""
        parts = factors * self.thetas.take(of, axis=0)
        ones = np.ones(SIZE)
        return np.asarray(np.maximum(parts @ ones, LEAST * (parts[:, :SMOOTH] @ ones[:SMOOTH])))

    # -- what enters

    def set_idle(self, watts: float) -> None:
        """A first idea of the idle draw, heard before any work: one level, from which the classes of rest may
        differ, and all of them but the longest may by more: work wakes a device."""
        self.pin(IDLE, watts)
        self.p[IDLE, IDLE] = (REST_SPREAD * watts) ** 2 * (1 + np.eye(CLASSES))
        at_work, after = IDLE.start, IDLE.start + 1
        beside = (REST_SPREAD**2 - SOON_SPREAD**2 / 2) * watts**2
        self.p[at_work, after] += beside
        self.p[after, at_work] += beside
        awake = slice(IDLE.start, IDLE.stop - 1)
        self.p[awake, awake] += (AWAKE_SPREAD * watts) ** 2

    def doubt_carry(self, deviation_j: float) -> None:
        """The pool's origin is uncertain by this much (a first reading, or one after a gap)."""
        self._stale[CARRY, CARRY] += deviation_j**2

    def add_variant(self, name: str, smooth: Array, most: Array) -> None:
        """A new variant: its law's smooth part as it seems to be, and what none exceeds by much."""
        alone = np.diag((FIRST_FORM * np.maximum(smooth, most)) ** 2)
        self.known.discard(name)
        self.put_variant(name, smooth, FIRST_GAIN**2 * np.outer(smooth, smooth) + alone)

    def declare(self, name: str, smooth: Array) -> None:
        """A law that is known for certain."""
        self.put_variant(name, smooth, np.zeros((SMOOTH, SMOOTH)))
        block = self.block(self.names.index(name))
        self.pin(block, self.x[block])
        self._declared.add(name)
        self.known.add(name)

    def put_variant(self, name: str, smooth: Array, covariance: Array) -> None:
        """A variant whose law's smooth part is known this well; replaces what was known before."""
        if name in self.names:
            index = self.names.index(name)
            self.bases[index] = smooth
        else:
            index = len(self.names)
            self.names.append(name)
            self.bases = np.vstack([self.bases, smooth])
            self.unheard_s = np.append(self.unheard_s, 0.0)
            at, across = [self.size] * SIZE, [LATER + self.size] * SIZE
            self._hold(np.insert(np.insert(self._rows, at, 0.0, axis=0), across, 0.0, axis=1))
            self._see(np.insert(self.x, at, 0.0))
            self.size += SIZE
        block = self.block(index)
        self.pin(block, 0.0)
        of_smooth = slice(block.start, block.start + SMOOTH)
        self.x[of_smooth] = smooth
        self.doubt(of_smooth, covariance)
        self.doubt(slice(of_smooth.stop, block.stop), correction_covariance(CORRECTION))

    def admit(
        self,
        variants: Sequence[str],
        features: Array,  # of each: [entries, SMOOTH]
        rests: NDArray[np.int64],  # the class of rest before each
        counts: Array,
        excess: Array,  # by how much longer each took than it should, relatively
    ) -> None:
        """New entries: each is `counts` batches alike, each of them what its law predicts, give or take."""
        place = {name: index for index, name in enumerate(self.names)}
        of = np.fromiter(map(place.__getitem__, variants), dtype=int, count=len(variants))
        self.unheard_s[of] = 0.0
        factors = factors_of(self.bases.take(of, axis=0), features)
        predicted = self._told(of, factors)
        shared = np.zeros((len(of), CLASSES + 1))  # factors of what all variants share: by rest, and the pace
        shared[np.arange(len(of)), rests] = predicted
        shared[:, -1] = predicted * excess
        predicted *= np.maximum(1 + self.pace * excess + np.array(self.after_rest)[rests], LEAST)
        sums = counts * predicted
        new = self._append(sums, counts, LEAST * sums)
        self._follow(of, factors * counts[:, None], shared[:, 1:] * counts[:, None])
        if len(self.known) < len(self.names):
            untold = set(of[self.variances(new) >= (KNOWN * sums) ** 2].tolist())
            self.known |= {name for name in variants if place[name] not in untold}
        self._differ(new, BATCH_NOISE * predicted, self.learned[of])

    def admit_first_runs(self, usual_j: Array) -> None:
        """New entries of one batch each, of which no law tells anything; a device usually draws this much in
        the time that they took."""
        count = len(usual_j)
        new = self._append(usual_j, np.ones(count), np.zeros(count))
        self.is_first_run[-count:] = True
        self._rows[new] = 0.0
        self._stale[:, new] = 0.0
        self._differ(new, FIRST_RUN * usual_j, np.ones(count, dtype=bool))

    def _append(self, joules: Array, counts: Array, least_j: Array) -> slice:
        """Entries of `counts` batches each; where they are. Their covariance is still to be written."""
        old, new = len(self.x), len(self.x) + len(joules)
        if new > len(self._room):
            self._hold(self._rows, new)
        self._see(np.concatenate([self.x, joules]))
        self.counts = np.concatenate([self.counts, counts])
        self._least_j = np.concatenate([self._least_j, least_j])
        self.is_first_run = np.concatenate([self.is_first_run, np.zeros(len(counts), dtype=bool)])
        return slice(old, new)

    def _differ(self, new: slice, scatter_j: Array, is_seen: NDArray[np.bool_]) -> None:
        """Each batch of these entries differs by so much from what is known of it. is_seen: in the counter;
        of a declared law that is what the law says, whatever else the counter holds."""
        counts, variances = self.counts[new.start - self.size :], scatter_j**2
        np.einsum("ii->i", self._stale[new, new])[:] += counts * variances * is_seen + 1e-12
        hidden = variances * (1 - is_seen / counts)
        self.scatter_alone = np.concatenate([self.scatter_alone, hidden])

    def _follow(self, of: NDArray[np.int64], factors: Array, shared: Array) -> None:
        """The last entries are what these factors make of these variants' laws and of what all share."""
        old, order = len(self.x) - len(of), np.argsort(of, kind="stable")  # by variant: slices are quicker
        of, factors, shared = of[order], factors.take(order, axis=0), shared.take(order, axis=0)
        bounds = [0, *(np.flatnonzero(of[1:] != of[:-1]) + 1).tolist(), len(of)]
        runs = [
            (slice(since, until), factors[since:until], self.block(index))
            for (since, until), index in zip(pairwise(bounds), of[bounds[:-1]].tolist(), strict=True)
        ]
        there, rows = self._rows[:old, : LATER + old], np.empty((len(of), LATER + old))
        for mine, by_law, block in runs:
            np.matmul(by_law, there[block], out=rows[mine])
        rows += shared @ there[RESTED.start : LAWS]
        self._rows[old:, : LATER + old][order] = rows
        columns, own = self._stale[:old, old:], np.empty((len(of), len(of)))
        columns[:] = self._stale[old:, :old].T
        for mine, by_law, block in runs:
            np.matmul(by_law, columns[block], out=own[mine])
        own += shared @ columns[RESTED.start : LAWS]
        self._stale[old:, old:][order] = own

    # -- what leaves

    def settle(self, closed: NDArray[np.bool_], booked_j: float) -> None:
        """These open batches (a mask) are booked, with this sum; what they truly were is carried."""
        self._carry(slice(self.size, len(self.x)), closed.astype(float), booked_j)
        self._drop(closed)

    def forget(self, lost: NDArray[np.bool_]) -> None:
        """These open batches (a mask) will never be known."""
        self._drop(lost)

    def book_draw(self, rest_s: Array, booked_j: float) -> None:
        """What the device drew by itself and for others in these seconds is booked."""
        seconds = np.empty(CLASSES + 1)
        seconds[:CLASSES], seconds[-1] = rest_s, rest_s.sum()
        self._carry(slice(IDLE.start, FOREIGN + 1), seconds, booked_j)
        self._booked += 1
        if self._booked % EVEN_OUT == 0:
            self.p[:] = (self.p + self.p.T) / 2

    def restart(self) -> None:
        """After a gap: nothing is carried."""
        self.pin(CARRY, 0.0)

    def learn(self, told: Array) -> None:
        """The covariance becomes less by the outer product of this."""
        if self._put_off == LATER:
            self._catch_up()
        self._taken[:, self._put_off] = told
        self._put_off += 1

    def doubt(self, at: slice, covariance: Array) -> None:
        """These values are known by so much less, and hang together by so much more."""
        self._stale[at, at] += covariance

    def doubt_laws(
        self, which: NDArray[np.bool_], together: float, alone: float, with_open: bool = False
    ) -> None:
        """The smooth parts of these laws (a mask) are known by so much less, in relative variances: of all of
        them together and of each alone; with_open: and the batches that follow laws and are open."""
        smooth = self.thetas[:, :SMOOTH] * which[:, None]
        of, feature = np.nonzero(smooth)
        at, values = LAWS + SIZE * of + feature, smooth[of, feature]
        covariance = (together + alone * (of[:, None] == of)) * np.multiply.outer(values, values)
        width = self._room.shape[1]
        self._room.reshape(-1)[width * at[:, None] + LATER + at] += covariance
        if with_open:
            batches = slice(self.size, None)
            joules = np.where(self.is_first_run, 0.0, self.x[batches])
            beside = together * np.outer(values, joules)
            self._stale[at, batches] += beside
            self._stale[batches, at] += beside.T
            self._stale[batches, batches] += together * np.outer(joules, joules)

    def _catch_up(self) -> None:
        """Take off what was put off. Whole rows of the room lie in one piece, which numpy subtracts in a
        third of the time; and it multiplies two columns sooner than one."""
        if not self._put_off:
            return
        count, columns = len(self.x), max(self._put_off, 2)
        taken, across = self._taken[:, :columns], np.zeros((columns, self._room.shape[1]))
        across[:, LATER : LATER + count] = taken.T
        rows = self._room[:count]
        rows -= np.matmul(taken, across, out=self._scratch[:count])
        taken[:] = 0.0
        self._put_off = 0

    def _carry(self, at: slice, weights: Array, booked_j: float) -> None:
        """A weighted sum of these values, and what was booked for it is none of it any more."""
        rows = self._rows
        spread = weights @ rows[at]
        self.x[CARRY] += float(weights @ self.x[at]) - booked_j
        rows[CARRY] += spread
        rows[:, LATER + CARRY] += spread[LATER:]
        rows[CARRY, LATER + CARRY] += float(spread[LATER:][at] @ weights)

    def pin(self, at: int | slice | NDArray[np.int64], values: float | Array) -> None:
        """These values are known for certain, until something doubts them."""
        self.x[at] = values
        covariance = self.p
        covariance[at, :] = 0.0
        covariance[:, at] = 0.0

    def block(self, index: int) -> slice:
        start = LAWS + index * SIZE
        return slice(start, start + SIZE)

    def _drop(self, mask: NDArray[np.bool_]) -> None:
        keep = np.logical_not(mask)
        self.counts = self.counts[keep]
        self._least_j = self._least_j[keep]
        self.is_first_run = self.is_first_run[keep]
        self.scatter_alone = self.scatter_alone[keep]
        staying = np.flatnonzero(keep) + self.size
        end = self.size + len(staying)
        stay: slice | NDArray[np.int64] = staying
        if len(staying) and staying[-1] - staying[0] < len(staying):  # as a rule: slices are quicker
            stay = slice(int(staying[0]), int(staying[-1]) + 1)
        old = LATER + len(self.x)
        rows, columns = slice(self.size, end), slice(LATER + self.size, LATER + end)
        self._room[rows, :old] = self._room[stay, :old]
        self._room[:end, columns] = self._room[:end, LATER:old][:, stay]
        self._see(np.concatenate([self.x[: self.size], self.x[stay]]))

    def _hold(self, rows: Array, least: int = 0) -> None:
        """Give these rows new room: for their own values, at least so many, and some entries more."""
        count = len(rows)
        size = max(count, least) + ROOM
        self._room = np.zeros((size, LATER + size))
        self._scratch = np.empty_like(self._room)
        self._room[:count, : LATER + count] = rows

    def _see(self, values: Array) -> None:
        """These are the values, and the room holds their rows."""
        self.x, count = values, len(values)
        self._rows: Array = self._room[:count, : LATER + count]
        self._taken: Array = self._rows[:, :LATER]
        self._stale: Array = self._rows[:, LATER:]
