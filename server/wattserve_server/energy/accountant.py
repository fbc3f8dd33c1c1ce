"""The accountant: turns readings and windows into settled charges and a ledger.

It owns the books and the filter of one counter, whatever lanes draw on it: windows of two lanes may overlap.
Time comes in as arguments; it reads no clock, holds no lock and starts no thread: one thread (the sampler)
owns it and publishes its `copy`s.

At each edge the filter says what each batch in the counter has used; the batches whose energy is all in are
settled with what it says, and what the device drew by itself is booked as idle.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from wattserve_server.energy.admission import Admission
from wattserve_server.energy.attribution import BUSY_TIME, BY_ACTIVE, BY_TIME
from wattserve_server.energy.calibration import CounterInterval
from wattserve_server.energy.calibrator import Calibrator, busy_spans
from wattserve_server.energy.costlaw import Array, LawView
from wattserve_server.energy.device import ForeignLoad, Response, Sleep, rest_times, uneven_j
from wattserve_server.energy.durations import Durations
from wattserve_server.energy.edges import NS, EdgeFinder
from wattserve_server.energy.estimate import within
from wattserve_server.energy.filter import EnergyFilter
from wattserve_server.energy.firstideas import FirstIdeas
from wattserve_server.energy.inflight import InFlight, Visit
from wattserve_server.energy.ledger import Books, Ledger
from wattserve_server.energy.openbatches import Entry, OpenBatches, Tails, TimedWindow, share_by_active
from wattserve_server.energy.reading import Energy, Reading
from wattserve_server.energy.receipt import Charge, IdleShare, Window
from wattserve_server.energy.restart import RESTARTED, Sound, resume, sound

log = logging.getLogger(__name__)

NO_IDLE = "the device's idle draw was not known yet"

# A batch is settled at the first edge this part of a period after the counter holds it: what the edge after
# it says helps, and no batch waits longer than its reach and one and a half periods.
PATIENCE = 0.3

LEAST_DEVIATION_S = 2e-4  # no instant is known more closely than this
UNHEARD = 0.5  # of a period: so far off may a response be that was never heard

CLOCK_CHANGE = 0.05  # clocks that move by less, relatively, change no law


class Accountant:
    def __init__(
        self,
        declared_idle_w: float | None = None,  # the idle draw where it is known and not learned
        wraps_at: Energy | None = None,  # where the counter starts again from 0, if it does
        split_rule: str = "shapley",  # one of `costlaw.SPLIT_RULES`
        counts_server: bool = False,  # see `reading.Source`
        cpu_watts: float | None = None,  # likewise
        most_watts: float | None = None,  # that the device can draw, where it says so
        averages_s: float = 0.0,  # see `reading.Source`
        idle_policy: str = BUSY_TIME,  # one of `attribution.IDLE_POLICIES`
    ) -> None:
        self.ledger = Ledger()
        self.law = LawView({}, split_rule=split_rule, idle_policy=idle_policy)
        self._declared_idle_w, self._averages_s = declared_idle_w, averages_s
        self._books = Books(self.ledger)
        # A declared idle draw is a model's, and a model counts nobody else.
        self._watches_floor = declared_idle_w is None and not counts_server
        self._cpu_w = cpu_watts
        self._finder = EdgeFinder(self.ledger, wraps_at, declared_idle_w == 0, most_watts)
        self._edges: deque[CounterInterval] = deque()
        self._waiting: list[TimedWindow] = []
        self._ideas, self._durations = FirstIdeas(), Durations()
        self._admission = Admission(self._ideas, self._durations)
        self._in_flight = InFlight()
        self.idle_shares: list[IdleShare] = []  # that were told and nobody has taken out yet
        self._last_end_s = -math.inf
        self._reached_s = -math.inf  # the end of the last edge that was passed
        self._sound: Sound | None = None  # as of that edge
        self._clock_mhz: int | None = None  # as it was when laws were last doubted for it
        self.restarts = 0  # errors after which edges or filter began again
        self.last_restart = ""  # what the last of them said
        self._begin_filter()

    def _begin_filter(self) -> None:
        """The filter and all that follows its open batches, as at the start."""
        foreign = ForeignLoad(self._watches_floor)
        self._filter = EnergyFilter(self._declared_idle_w, foreign, self._cpu_w)
        self._estimate = self._filter.estimate
        self._calibrator = Calibrator(self._declared_idle_w is not None, self._averages_s)
        self._open = OpenBatches()
        self._admission.begin(self._filter, self._open, self._calibrator)
        self._tails, self._sleep = Tails(), Sleep()
        self._owed_j = 0.0  # of a declared idle draw: what the pool was too short for

    @property
    def pending_windows(self) -> int:
        return len(self._books.unsettled)

    @property
    def pending_shares(self) -> int:
        """Requests that have left and wait for their share of the idle draw."""
        return len(self._in_flight)

    @property
    def response(self) -> Response:
        """How the device answers, as estimated so far."""
        return self._calibrator.response

    @property
    def consistency(self) -> float | None:
        """See `filter.EnergyFilter`."""
        return self._filter.consistency

    @property
    def edges(self) -> tuple[int, int]:
        """Edges from which the filter learned, and those of them that its 95 % interval covered."""
        return self._filter.edges, self._filter.covered_edges

    @property
    def update_period_s(self) -> float | None:
        """How often the counter's value changes; None before that was seen."""
        return self._finder.period_ns / NS or None

    @property
    def idle_watts(self) -> float | None:
        """The idle draw now, just after work."""
        return float(self._estimate.idle_w[0]) if self._filter.idle_is_known else None

    @property
    def idle_origin(self) -> str:
        if self._declared_idle_w is not None:
            return "configured"
        return "measured" if self._filter.idle_is_known else "unknown"

    def observe(self, reading: Reading) -> None:
        """A good reading. Readings come in the order of their instants."""
        try:
            edge = self._finder.observe(reading)
        except Exception as error:  # a bug: it must not stop the accounts of all requests to come
            self._finder.begin_again(reading.at_ns, self._note(error))
            return
        if edge is not None:
            start_s, end_s = self._seconds(edge.start_ns), self._seconds(edge.at_ns)
            deviation_s = edge.deviation_ns / NS
            self._edges.append(
                CounterInterval(start_s, end_s, edge.energy_uj, deviation_s, edge.is_first, edge.gap_reason)
            )

    def failed(self, at_ns: int, reason: str) -> None:
        """The meter could not be read at `at_ns`."""
        self._finder.failed(at_ns, reason)

    def see_neighbours(self, count: int | None) -> None:
        """How many other processes use the device now; None where nobody can tell."""
        self._filter.foreign.neighbours = count

    def see_others(self, at_work: float | None) -> None:
        """How much of the device other processes used lately; None where nobody can tell."""
        self._filter.hear_others(at_work)

    def see_clock(self, mhz: int | None) -> None:
        """How fast the device works now; None where nobody can tell, or it rests."""
        if not mhz:
            return
        change = math.log(mhz / (self._clock_mhz or mhz))
        if abs(change) >= CLOCK_CHANGE:
            self._filter.hear_pace(change)
        if self._clock_mhz is None or abs(change) >= CLOCK_CHANGE:
            self._clock_mhz = mhz

    def see_requests(self, visits: Sequence[Visit]) -> None:
        """Who came and left since the last call; only where idle draw is shared `by-time`. Called before the
        `advance` that reaches these instants."""
        self._in_flight.hear(visits)

    def advance(self, windows: Sequence[Window], known_until_ns: int) -> list[Charge]:
        """Settle what can be settled.

        `windows` are those that ended since the last call. Every window that started before
        `known_until_ns` has been handed over, now or earlier. No error on the way loses a charge: one that
        was made before it is handed out now or by the next call.
        """
        since_ns = self.ledger.since_ns
        for window in windows:
            self._books.hand_over(window)
            if since_ns is None or window.start_ns < since_ns:
                self._books.no_figure(window, self._finder.failure)
            else:
                start_s, end_s = self._seconds(window.start_ns), self._seconds(window.end_ns)
                cpu_s = None
                if self._cpu_w is not None and window.cpu_ns is not None:
                    cpu_s = window.cpu_ns / NS
                self._waiting.append(TimedWindow(window, start_s, end_s, cpu_s))
        if since_ns is not None:
            known_until_s = self._seconds(known_until_ns)
            try:
                self._pass_edges(known_until_s)
            except Exception as error:  # a bug, or a state that no arithmetic can follow
                self._restart(error, known_until_s)
        else:
            self._show(self._in_flight.dismiss())
        return self._books.take_charges()

    def _pass_edges(self, known_until_s: float) -> None:
        self._waiting.sort(key=lambda batch: batch.start_s)
        if self._filter.idle_is_known and not self._open and self.ledger.open_gap is None:
            if self._calibrator.holds(self._waiting, self._edges, known_until_s, self._finder.period_ns / NS):
                return
            self._calibrator.calibrate(self._waiting, self._edges, self._last_end_s, self._filter)
        while self._is_due(known_until_s):
            edge = self._edges.popleft()
            self._reached_s = edge.end_s
            idle_uj = self.ledger.idle_uj
            if edge.gap_reason:
                self._pass_gap(edge)
            else:
                self._pass(edge)
            if self.law.idle_policy == BY_TIME:
                self._share_by_time(edge, self.ledger.idle_uj - idle_uj)
            self._sound = sound(self._filter, self.response)
        self._give_up()

    def _is_due(self, known_until_s: float) -> bool:
        """Whether all that the next edge holds has been handed over."""
        return bool(self._edges) and self._edges[0].end_s - self.response.lag_s <= known_until_s

    def _note(self, error: Exception) -> str:
        """Count an error, and log it where it is not the last one again; what receipts say of it."""
        words = f"{type(error).__name__}: {error}"
        if words != self.last_restart:
            log.error("the energy accounts met an error and begin again", exc_info=error)
        self.restarts += 1
        self.last_restart = words
        return RESTARTED.format(words)

    def _restart(self, error: Exception, known_until_s: float) -> None:
        """Begin again after an error, from what the last good edge left: what had begun by the edges that are
        due ends without a figure, and their joules are nobody's. Nothing of it is tried again."""
        reason = self._note(error)
        while self._is_due(known_until_s):
            self._reached_s = self._edges.popleft().end_s
        self._waiting = [batch for batch in self._waiting if batch.start_s >= self._reached_s]
        kept = {batch.window for batch in self._waiting}
        for window in [window for window in self._books.unsettled if window not in kept]:
            self._books.no_figure(window, reason)
            self._last_end_s = max(self._last_end_s, self._seconds(window.end_ns))
        given_up_j = self._books.give_up(sum(edge.energy_uj for edge in self._edges))
        is_heard = self._calibrator.is_heard
        self._begin_filter()
        if self._sound is not None:
            resume(self._filter, self._sound)
            self._calibrator.response = self._sound.response
            self._calibrator.is_heard = is_heard
        # Batches that got no figure may still be on their way into the counter.
        self._estimate.doubt_carry(given_up_j)

    def _seconds(self, at_ns: int) -> float:
        assert self.ledger.since_ns is not None
        return (at_ns - self.ledger.since_ns) / NS

    def _ns(self, at_s: float) -> int:
        assert self.ledger.since_ns is not None
        return self.ledger.since_ns + round(at_s * NS)

    # -- one edge

    def _pass(self, edge: CounterInterval) -> None:
        self._books.count(edge.energy_uj)
        start_s, at_s = edge.start_s, edge.end_s
        if not self._filter.idle_is_known:
            self._without_idle(edge)
            return
        if edge.is_first:
            self._estimate.doubt_carry(edge.energy_uj / 1e6)
        # What the counter says of the idle draw is as late as what it says of batches.
        since_s, until_s = start_s - self.response.sensor_delay_s, at_s - self.response.sensor_delay_s
        busy = sorted(self._open.spans(since_s) + busy_spans(self._waiting, since_s, until_s))
        rest_s = rest_times(since_s, until_s, busy, self._last_end_s, self._sleep.after_s)
        if busy:
            self._sleep.wake()
            if rest_s[-1] > 0:  # when exactly it woke is not known
                woken_w = self._estimate.idle_w[0] - self._estimate.idle_w[-1]
                self._estimate.doubt_carry(self.response.sensor_delay_s * float(woken_w))
        if not busy and self._last_end_s == -math.inf and self._declared_idle_w is None and not edge.is_first:
            self._filter.hear_before_work(edge.energy_uj / 1e6 / (at_s - start_s))
        self._last_end_s = max([self._last_end_s, *(min(end, until_s) for _, end in busy)])
        self._calibrator.hear(edge, rest_s, bool(busy))
        self._filter.pass_time(rest_s)
        new = [batch for batch in self._waiting if batch.start_s < at_s]
        held = self._admission.admit(new, edge, rest_s, self._books.pool_j)
        self._waiting = held + self._waiting[len(new) :]
        if held:
            self._estimate.book_draw(rest_s, self._books.to_idle(float(rest_s @ self._estimate.idle_w)))
            return
        half_s = max(edge.deviation_s, LEAST_DEVIATION_S)
        unheard_s = 0.0 if self._calibrator.is_heard else UNHEARD * self._finder.period_ns / NS
        around_s = max(half_s, unheard_s)
        before, early, counted, late = self._open.counted_at(
            [start_s, at_s - around_s, at_s, at_s + around_s], self.response
        )
        batches_j = self._estimate.batches_j
        # What lies on the wrong side of an edge, whose instant or answer is uncertain.
        timing_j = float((late - early) @ batches_j) / 2 + half_s * float(self._estimate.idle_w[0])
        pool_j = self._books.pool_j + self._tails.left_j(at_s, self.response)
        expected_j = float((counted - before) @ batches_j)
        if self.response.unresolved:
            busy = (counted - before) @ self._open.seconds / (at_s - start_s)
            self._estimate.doubt_carry(self.response.at_random * float(uneven_j(expected_j, busy)))
        excess_j = self._filter.update(pool_j, counted, rest_s, timing_j, expected_j)
        if self._filter.has_fallen:
            self._sleep.fall(since_s - self._last_end_s)
        self._book_excess(excess_j)
        self._label()
        idle_j = float(rest_s @ self._estimate.idle_w)
        if self.law.idle_policy == BUSY_TIME:
            self._open.show_idle(since_s, until_s, idle_j)
        self._settle(
            at_s - self.response.reach_s - 2 * unheard_s - PATIENCE * self._finder.period_ns / NS, idle_j
        )
        self._book_draw(rest_s, is_exact=edge.deviation_s == 0)
        self.law = self._admission.laws_told(self.law)
        self._calibrator.listen_again(self._estimate)

    def _without_idle(self, edge: CounterInterval) -> None:
        """Nothing can be apportioned before the idle draw has been heard alone."""
        heard = [batch for batch in self._waiting if batch.start_s < edge.end_s]
        if heard:
            self._books.to_unattributed(self._books.pool_j)
            self._waiting = self._waiting[len(heard) :]
            self._last_end_s = max(batch.end_s for batch in heard)
            for batch in heard:
                self._books.no_figure(batch.window, NO_IDLE)
            return
        if not edge.is_first and edge.start_s > self._last_end_s:
            self._filter.hear_idle(edge.energy_uj / 1e6 / (edge.end_s - edge.start_s))
        self._books.to_idle(self._books.pool_j)

    # -- booking

    def _settle(self, ended_before_s: float, idle_j: float = 0.0) -> None:
        """Close the batches that had ended by then. idle_j: what the device drew by itself in the interval in
        which they are."""
        ripe = self._open.ended_before(ended_before_s)
        if not ripe.any():
            return
        deviations_j = self._filter.deviations_j[ripe]
        amounts_j = within(self._books.pool_j, self._estimate.batches_j[ripe], deviations_j)
        booked_j = 0.0
        entries = self._open.take(ripe)
        if self.law.idle_policy == BY_ACTIVE:
            share_by_active(entries, amounts_j, idle_j)
        for entry, amount_j, deviation_j in zip(entries, amounts_j, deviations_j, strict=True):
            if self.response.is_at_its_bounds and not entry.kind.is_warmup:
                joules = self._withhold(entry, float(amount_j))
            else:
                joules = self._books.charge(entry, float(amount_j), float(deviation_j), self.law)
            booked_j += joules
            if not entry.batches[0].is_lawless:
                self._ideas.settled(joules, sum(batch.took_s for batch in entry.batches))
            if self.response.reach_s > 0:
                self._tails.add(entry, joules)
        self._estimate.settle(ripe, booked_j)

    def _share_by_time(self, edge: CounterInterval, idle_uj: int) -> None:
        """What was booked as idle draw at an edge, among those who were in flight when it was drawn."""
        start_ns, end_ns = (self._ns(at_s - self.response.lag_s) for at_s in (edge.start_s, edge.end_s))
        self._show(self._in_flight.reach(start_ns, end_ns, idle_uj))

    def _show(self, shares: list[IdleShare]) -> None:
        for share in shares:
            self.ledger.show_idle(share.amount_uj or 0)
        self.idle_shares += shares

    def _withhold(self, entry: Entry, amount_j: float) -> float:
        """Book what these batches seem to have used, where that may be of others; in joules."""
        for batch in entry.batches:
            self._books.no_figure(batch.window, self.response.unresolved)
        return self._books.to_unattributed(amount_j)

    def _book_draw(self, rest_s: Array, is_exact: bool) -> None:
        """What the device drew by itself and for others since the last edge, and what earlier bookings left
        over or took too much: of a learned idle draw it is part, of a declared one only what was owed to it.

        is_exact: the edge's instant is known, so that nothing in the pool can be of the time after it."""
        rest_j = float(rest_s @ self._estimate.idle_w)
        carry_j = self._estimate.carry_j
        if self._declared_idle_w is None:
            booked_j = self._books.to_idle(rest_j + carry_j)
            beside_j = self._estimate.foreign_w * float(rest_s.sum())
        else:
            due_j = rest_j + self._owed_j
            booked_j = self._books.to_idle(due_j)
            self._owed_j = max(due_j - booked_j, 0.0)
            beside_j = carry_j + rest_j - booked_j - self._owed_j
            if is_exact and not self._open:
                beside_j = self._books.pool_j
        self._estimate.book_draw(rest_s, booked_j + self._book_excess(beside_j))

    def _book_excess(self, joules: float) -> float:
        """Book what neither idle draw nor batches explain; beside a first run it is that one's. In joules."""
        if any(entry.batches[0].is_lawless for entry in self._open.entries):
            return self._books.to_warmup(joules)
        return self._books.to_unattributed(joules)

    def _label(self) -> None:
        """Say on the receipts of batches what else drew on the device with them, or that the counter is not
        understood."""
        if self.response.unresolved:
            for entry in self._open.entries:
                entry.warning = entry.warning or self.response.unresolved
        if self._filter.foreign.is_open:
            warning = self._filter.foreign.warning(self._estimate.foreign_w)
            for entry in self._open.entries:
                entry.warning = warning

    # -- gaps

    def _pass_gap(self, edge: CounterInterval) -> None:
        self._lose(edge.start_s, edge.gap_reason, edge.end_s)
        self._books.count(edge.energy_uj)
        self._books.to_gap(edge.energy_uj)
        self._estimate.restart()
        self._calibrator.forget()
        self._tails.clear()

    def _give_up(self) -> None:
        """Windows that reach into a gap that still lasts."""
        gap = self.ledger.open_gap
        if gap is not None and not self._edges:
            self._lose(self._seconds(gap.start_ns), gap.reason, math.inf)
            self._show(self._in_flight.dismiss())

    def _lose(self, start_s: float, reason: str, end_s: float) -> None:
        """No figure for the windows that reach into a gap; those before it are settled as they are."""
        self._settle(start_s - self.response.reach_s)
        lost = [batch for entry in self._open.entries for batch in entry.batches]
        everything = np.ones(len(self._open), dtype=bool)
        self._estimate.forget(everything)
        self._open.take(everything)
        late = [batch for batch in self._waiting if batch.end_s > start_s and batch.start_s < end_s]
        self._waiting = [batch for batch in self._waiting if batch not in late]
        for batch in lost + late:
            self._books.no_figure(batch.window, reason)
            self._last_end_s = max(self._last_end_s, batch.end_s)
