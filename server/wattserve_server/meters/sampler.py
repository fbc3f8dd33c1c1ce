"""The sampler: one thread that reads the meter and owns the accountant.

Requests never wait for it and it never waits for them. It takes finished windows from the engine,
hands readings and windows to the accountant, and publishes copies of the ledger and lists of
charges. Knows nothing of requests, models or transports.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.attribution import BUSY_TIME
from wattserve_server.energy.costlaw import LawView
from wattserve_server.energy.inflight import Visit
from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.reading import MeterStatus, Source
from wattserve_server.energy.receipt import Charge, IdleShare, Window
from wattserve_server.errors import MeterError
from wattserve_server.meters.port import Meter

log = logging.getLogger(__name__)

# Gives the windows finished since the last call, and the instant before which none is missing.
DrainWindows = Callable[[], tuple[Sequence[Window], int]]

# Likewise gives who came and left.
DrainVisits = Callable[[], Sequence[Visit]]

# Bounds of the time between two polls, in poll periods: polls in step with the counter would find each of
# its changes equally late, and could not tell when it happened.
DITHER = (0.75, 1.25)

LOOK_AROUND_NS = 1_000_000_000  # how often the meter is asked who else uses the device
STATISTICS_OVER = 256  # reads over which the read cost is the median
STOP_LIMIT_S = 5.0  # for so long a read that is under way may take when the sampler stops


class Sampler:
    """Polls `meter` every `poll_period_s`, which may be changed at any time, from `start` until `stop`."""

    def __init__(
        self,
        meter: Meter,
        drain: DrainWindows,
        on_charges: Callable[[Sequence[Charge]], None],  # on this thread, with every list that is not empty;
        # the ledger is that in which they are booked
        *,
        poll_period_s: float | None = None,  # None: the meter's own
        split_rule: str = "shapley",
        idle_policy: str = BUSY_TIME,
        drain_visits: DrainVisits = tuple,
        on_idle_shares: Callable[[Sequence[IdleShare]], object] = len,  # as on_charges
        clock_ns: Callable[[], int] = time.monotonic_ns,
        make_accountant: Callable[..., Accountant] = Accountant,
    ) -> None:
        self._meter = meter
        self.poll_period_s = poll_period_s or meter.poll_period_s
        self._clock_ns = clock_ns
        self._drain = drain
        self._drain_visits, self._on_idle_shares = drain_visits, on_idle_shares
        self._on_charges = on_charges
        self._accountant = make_accountant(
            meter.idle_watts,
            meter.wraps_at,
            split_rule,
            meter.source.counts_server,
            meter.source.cpu_watts,
            meter.most_watts,
            meter.source.averages_s,
            idle_policy,
        )
        self._stopping = threading.Event()
        self._tick_done = threading.Condition()
        self._ticks = 0
        self._thread = threading.Thread(target=self._run, name="wattserve-sampler", daemon=True)
        self._costs_ns: deque[int] = deque(maxlen=STATISTICS_OVER)
        self._last_error = ""
        self._neighbours: int | None = None
        self._others_at_work: float | None = None
        self._look_around_ns = 0
        self._reads = 0
        self._failed_reads = 0
        self._last_read_ns: int | None = None
        self._ledger = self._accountant.ledger.copy()
        self.source: Source = meter.source  # what its figures are as of the last tick; any thread
        self.law: LawView = self._accountant.law  # the cost laws as of the last settled interval; any thread

    @property
    def ledger(self) -> Ledger:
        """A copy of the ledger as of the last tick. Any thread; do not change it."""
        return self._ledger

    @property
    def status(self) -> MeterStatus:
        """Any thread."""
        edges, covered_edges = self._accountant.edges
        return MeterStatus(
            source=self.source,
            poll_period_s=self.poll_period_s,
            read_cost_s=median(self._costs_ns) / 1e9 if self._costs_ns else None,
            update_period_s=self._accountant.update_period_s,
            idle_watts=self._accountant.idle_watts,
            idle_origin=self._accountant.idle_origin,
            last_error=self._last_error,
            restarts=self._accountant.restarts,
            last_restart=self._accountant.last_restart,
            reads=self._reads,
            failed_reads=self._failed_reads,
            lag_s=self._accountant.response.lag_s,
            ramp_s=self._accountant.response.ramp_s,
            average_s=self._accountant.response.average_s,
            unresolved=self._accountant.response.unresolved,
            neighbours=self._neighbours,
            others_at_work=self._others_at_work,
            consistency=self._accountant.consistency,
            edges=edges,
            covered_edges=covered_edges,
            last_read_ns=self._last_read_ns,
        )

    def start(self) -> None:
        self._thread.start()

    def tick(self) -> None:
        """Read once and settle what can be settled. Called by the thread; by tests, instead of it."""
        begun_ns = self._clock_ns()
        try:
            reading = self._meter.read()
        except Exception as error:
            words = str(error) if isinstance(error, MeterError) else f"{type(error).__name__}: {error}"
            if not isinstance(error, MeterError) and words != self._last_error:
                log.exception("reading the meter failed")
            self._failed_reads += 1
            self._last_error = words
            self._accountant.failed(begun_ns, words)
        else:
            self._costs_ns.append(self._clock_ns() - begun_ns)
            self._last_error = ""
            self._last_read_ns = begun_ns
            self._accountant.observe(reading)
            self._look_around(begun_ns)
        self._reads += 1
        self.source = self._meter.source
        windows, known_until_ns = self._drain()
        if visits := self._drain_visits():  # of no fewer than came before that instant
            self._accountant.see_requests(visits)
        charges = self._accountant.advance(windows, known_until_ns)
        if self._accountant.ledger.changes != self._ledger.changes:
            self._ledger = self._accountant.ledger.copy()
        self.law = self._accountant.law
        if charges:
            self._on_charges(charges)
        if shares := self._accountant.idle_shares:
            self._accountant.idle_shares = []
            self._on_idle_shares(shares)

    def _look_around(self, now_ns: int) -> None:
        if now_ns >= self._look_around_ns:
            self._look_around_ns = now_ns + LOOK_AROUND_NS
            self._neighbours = self._meter.neighbours()
            self._accountant.see_neighbours(self._neighbours)
            self._others_at_work = self._meter.others_at_work()
            self._accountant.see_others(self._others_at_work)
            self._accountant.see_clock(self._meter.clock_mhz())

    def wait_until_settled(self, limit_s: float) -> bool:
        """Block until every finished window is settled or given up; False when the limit passed."""
        deadline = time.monotonic() + limit_s
        with self._tick_done:
            seen = self._ticks
            while (
                self._ticks < seen + 2 or self._accountant.pending_windows or self._accountant.pending_shares
            ):
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return False
                self._tick_done.wait(left)
        return True

    def stop(self) -> None:
        """End the thread and close the meter, once. A meter in whose read it hangs is left as it is."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_LIMIT_S)
        if self._thread.is_alive():
            log.error(
                "the last read of the meter %s has not come back in %g s: its driver hangs, and the meter is"
                " not closed",
                self._meter.source.name,
                STOP_LIMIT_S,
            )
        else:
            self._meter.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            try:
                self.tick()
            except Exception:  # a bug: it must not stop the accounts of all requests to come
                log.exception("a tick of the sampler failed")
            with self._tick_done:
                self._ticks += 1
                self._tick_done.notify_all()
            # Late ticks are not made up for.
            due = max(due + self.poll_period_s * random.uniform(*DITHER), time.monotonic())
            self._stopping.wait(due - time.monotonic())
