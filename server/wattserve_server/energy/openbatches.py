"""The batches that the counter has begun to hold and that are not settled yet.

One entry is one batch, or several alike: when hundreds of tiny batches fall into one interval, those of one
variant and shape are followed together, so that the filter stays small. Times in seconds since the ledger's
origin. Knows no energy but what it is told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.costlaw import CPU_TIME, Array, Features, features_of, of_cpu_time, rest_class
from wattserve_server.energy.device import Response
from wattserve_server.energy.durations import own_seconds
from wattserve_server.energy.receipt import Window

# With more new batches than this at one edge, or more open entries, those alike are followed together.
MOST_APART, MOST_OPEN_APART = 64, 128

ALIKE_STEPS = 12  # classes of a step's cache, for each doubling of it

TAIL = 1e-4  # a settled batch is remembered until all but this part of it has been counted


@dataclass(frozen=True, slots=True)
class TimedWindow:
    """A window with its bounds in seconds since the ledger's origin."""

    window: Window
    start_s: float
    end_s: float
    cpu_s: float | None = None  # its CPU time, where that is what the counter counts
    features: Features = field(init=False, repr=False, compare=False)  # what its law reads

    def __post_init__(self) -> None:
        features = features_of(self.window) if self.cpu_s is None else of_cpu_time(self.cpu_s)
        object.__setattr__(self, "features", features)

    @property
    def took_s(self) -> float:
        """What tells how much it used: its CPU time, or for how long it ran."""
        return self.end_s - self.start_s if self.cpu_s is None else self.cpu_s

    @property
    def law(self) -> str:
        """The name of the cost law that it follows."""
        return self.window.variant if self.cpu_s is None else CPU_TIME

    @property
    def is_lawless(self) -> bool:
        """A first run may have used anything, but for its CPU time."""
        return self.window.is_first_run and self.cpu_s is None


@dataclass(slots=True)
class Entry:
    """Batches of one variant and shape, which follow one law."""

    batches: list[TimedWindow]
    idle_share_j: list[float] = field(default_factory=list)  # idle draw while each ran
    warning: str = ""  # what else drew on the device with them

    @property
    def kind(self) -> Window:
        """Any of their windows: they are alike."""
        return self.batches[0].window

    @property
    def law(self) -> str:
        return self.batches[0].law

    @property
    def features(self) -> Array:
        """What the law reads, in the mean."""
        features = [batch.features for batch in self.batches]
        return np.array(features[0] if len(features) == 1 else np.mean(features, axis=0))

    @property
    def rest(self) -> int:
        """The class of rest before it."""
        return rest_class(self.kind.rested_ns / 1e9)


def entries_of(batches: Sequence[TimedWindow], among: int = 0) -> list[Entry]:
    """Entries for batches that are new at one edge; `among` entries are open already."""
    if len(batches) <= MOST_APART and among <= MOST_OPEN_APART:
        return [Entry([batch], [0.0]) for batch in batches]
    alike: dict[tuple[str | int, ...], Entry] = {}
    for batch in batches:
        window = batch.window
        key: tuple[str | int, ...] = (
            batch.law, window.variant, *_shape(window),
            rest_class(window.rested_ns / 1e9), window.is_warmup,
        )  # fmt: skip
        entry = alike.setdefault(key, Entry([]))
        entry.batches.append(batch)
        entry.idle_share_j.append(0.0)
    return list(alike.values())


def share_by_active(entries: Sequence[Entry], amounts_j: Array, idle_j: float) -> None:
    """Idle energy of an interval, to the batches charged in it by what they are charged; those of a warm-up
    have no receipts to show it."""
    weights = [
        0.0 if entry.kind.is_warmup else float(amount_j)
        for entry, amount_j in zip(entries, amounts_j, strict=True)
    ]
    whole_j = math.fsum(weights)
    for entry, weight_j in zip(entries, weights, strict=True):
        if weight_j > 0:
            entry.idle_share_j = [idle_j * weight_j / whole_j / len(entry.batches)] * len(entry.batches)


def _shape(window: Window) -> tuple[int, ...]:
    """What windows have in common that are alike. Steps whose attention and cache differ by little are: the
    cache grows with each."""
    if not window.work:
        return window.computed_tokens, window.padded_length
    features = features_of(window)
    doublings = (round(ALIKE_STEPS * math.log2(1 + much)) for much in (features.squares, features.read))
    return window.computed_tokens, int(features.logits), *doublings


class OpenBatches:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._starts = self._ends = self._lanes = np.zeros(0)
        self._set([])

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entries: Sequence[Entry]) -> None:
        batches = [batch for entry in entries for batch in entry.batches]
        self._starts = np.append(self._starts, [batch.start_s for batch in batches])
        self._ends = np.append(self._ends, [batch.end_s for batch in batches])
        self._lanes = np.append(self._lanes, [batch.window.lane for batch in batches])
        self._set([*self.entries, *entries])

    def take(self, mask: NDArray[np.bool_]) -> list[Entry]:
        """Remove and return the entries where the mask is true."""
        kept = np.logical_not(mask)[self._owner]
        self._starts, self._ends, self._lanes = self._starts[kept], self._ends[kept], self._lanes[kept]
        taken = [entry for entry, is_taken in zip(self.entries, mask.tolist(), strict=True) if is_taken]
        self._set(
            [entry for entry, is_taken in zip(self.entries, mask.tolist(), strict=True) if not is_taken]
        )
        return taken

    def counted(self, at_s: float, response: Response) -> Array:
        """Which part of each entry's energy the counter holds at an instant."""
        only: Array = self.counted_at([at_s], response)[0]
        return only

    def counted_at(self, instants_s: Sequence[float], response: Response) -> Array:
        """The same for several instants at once: [instants, entries]."""
        parts: Array = response.counted(np.array(instants_s)[:, None], self._starts, self._ends)
        if len(self._starts) == len(self.entries):
            return parts
        sums = [np.bincount(self._owner, row * self._share, minlength=len(self.entries)) for row in parts]
        return np.array(sums)

    @property
    def seconds(self) -> Array:
        """For how long the batches of each entry ran, together."""
        seconds = np.zeros(len(self.entries))
        np.add.at(seconds, self._owner, self._ends - self._starts)
        return seconds

    def ended_before(self, at_s: float) -> NDArray[np.bool_]:
        """The entries of which every batch had ended by then."""
        last = np.full(len(self.entries), -np.inf)
        np.maximum.at(last, self._owner, self._ends)
        return last <= at_s

    def spans(self, since_s: float) -> list[tuple[float, float]]:
        """Start and end of the batches that ended after an instant."""
        return [
            (start, end)
            for start, end in zip(self._starts.tolist(), self._ends.tolist(), strict=True)
            if end > since_s
        ]

    def own_seconds(self, entries: Sequence[Entry]) -> Array:
        """For how long each batch of new entries had its device, in the mean of its entry: time that several
        of one lane share is shared, and batches of two lanes keep nobody waiting. Or its CPU time, where that
        is known."""
        batches = [batch for entry in entries for batch in entry.batches]
        starts_s, ends_s = np.array([(batch.start_s, batch.end_s) for batch in batches]).T
        lanes = np.array([batch.window.lane for batch in batches])
        open_too = self._ends > starts_s.min()
        seconds = np.zeros(len(batches))
        for lane in np.unique(lanes):
            mine, beside = lanes == lane, open_too & (self._lanes == lane)
            seconds[mine] = own_seconds(
                np.append(starts_s[mine], self._starts[beside]), np.append(ends_s[mine], self._ends[beside])
            )[: mine.sum()]
        cpu_s = np.array([math.nan if batch.cpu_s is None else batch.cpu_s for batch in batches])
        seconds = np.where(np.isnan(cpu_s), seconds, cpu_s)
        counts = [len(entry.batches) for entry in entries]
        sums = np.add.reduceat(seconds, np.cumsum([0, *counts[:-1]]))
        return np.asarray(sums / counts)

    def show_idle(self, start_s: float, end_s: float, idle_j: float) -> None:
        """Idle energy of a span, to the batches by the time that each ran in it."""
        overlaps = np.maximum(np.minimum(self._ends, end_s) - np.maximum(self._starts, start_s), 0.0)
        busy_s = float(overlaps.sum())
        if busy_s <= 0:
            return
        shares = iter((overlaps * (idle_j / max(busy_s, end_s - start_s))).tolist())
        for entry in self.entries:
            for index in range(len(entry.batches)):
                entry.idle_share_j[index] += next(shares)

    def _set(self, entries: list[Entry]) -> None:
        self.entries = entries
        counts = np.array([len(entry.batches) for entry in entries], dtype=int)
        self._owner = np.repeat(np.arange(len(entries)), counts)
        self._share = np.repeat(1.0 / counts, counts)


class Tails:
    """Settled batches that the counter does not hold in full yet, with the joules booked for each."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._starts = self._ends = self._joules = np.zeros(0)

    def add(self, entry: Entry, joules: float) -> None:
        count = len(entry.batches)
        self._starts = np.append(self._starts, [batch.start_s for batch in entry.batches])
        self._ends = np.append(self._ends, [batch.end_s for batch in entry.batches])
        self._joules = np.append(self._joules, np.full(count, joules / count))

    def left_j(self, at_s: float, response: Response) -> float:
        """Joules that were booked and are not in the counter at an instant; what is in it is forgotten."""
        left = 1.0 - response.counted(at_s, self._starts, self._ends)
        sum_j = float(left @ self._joules)
        keep = left > TAIL
        self._starts, self._ends, self._joules = self._starts[keep], self._ends[keep], self._joules[keep]
        return sum_j
