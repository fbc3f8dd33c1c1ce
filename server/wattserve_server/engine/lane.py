"""A lane: the one thread of a device, which takes batches from its queue and runs them, one after the other.

Windows of one device therefore never overlap. The same thread warms the variants up (`warmup`), so that what
the runtime keeps per thread (thread teams, caches, handles) is warm where it is used.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from wattserve_server.energy.costlaw import LawView, rest_class
from wattserve_server.energy.inflight import Visit
from wattserve_server.energy.receipt import Line, Receipt, Window
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.out_of_memory import (
    LearnedLimits,
    as_far_as_it_came,
    check_answers,
    free_unused,
    halves,
    memory_shortage,
    most_splits,
    too_large,
    wait_for,
)
from wattserve_server.engine.queued import QueuedSequence
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.variant import Batch, Variant
from wattserve_server.engine.worktime import NoWorkClock, TaskWork
from wattserve_server.errors import InferenceError, LaneLostError, WattserveError

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Prepared = TypeVar("Prepared")

_IN_PARTS = "and was run in parts; what the failed attempt used is in the warm-up account, not in this figure"
SPLIT_BATCH = f"its batch ran out of memory {_IN_PARTS}"
SPLIT_FAILURE = f"its batch failed {_IN_PARTS}"


class RunLog:
    """When one device ran a batch, and when something else of ours used it, for those who account for it.

    The lane's thread writes, the sampler's thread drains. The lock makes one promise: a window that started
    before the instant that `drain` returns has been handed over by then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running_since_ns: int | None = None
        self._finished: list[list[Window]] = [[]]  # for each reader, what it has not drained yet
        self._visits: list[list[Visit]] = [[]]  # likewise
        self._beside: dict[str, int] = {}  # by variant: what has used it beside batches since then
        self._busy_ns = 0
        self._told_busy_ns = 0
        self._resting_since_ns = time.monotonic_ns()

    def start(self) -> tuple[int, int]:
        """A batch starts now: the instant, and for how long nothing had run, in nanoseconds."""
        with self._lock:
            self._running_since_ns = time.monotonic_ns()
            rested_ns = 0 if self._beside else self._running_since_ns - self._resting_since_ns
            return self._running_since_ns, rested_ns

    def finish(self, window: Window) -> None:
        """The batch that was started has ended; `window` is its record."""
        with self._lock:
            self._busy_ns += window.held_ns
            self._running_since_ns = None
            self._resting_since_ns = window.end_ns
            self._add(window)

    @property
    def running_since_ns(self) -> int | None:
        """When the batch that runs was started; None while none does."""
        return self._running_since_ns

    @contextmanager
    def beside(self, variant: str) -> Iterator[None]:
        """What the block does uses the device beside its batches, and belongs to this variant's warm-up.

        Its windows may overlap those of batches, and nobody's settlement waits for its end: each `drain`
        hands over what has passed of it.
        """
        with self._lock:
            self._beside[variant] = time.monotonic_ns()
        try:
            yield
        finally:
            with self._lock:
                self._cut(variant, time.monotonic_ns())
                del self._beside[variant]

    def _cut(self, variant: str, at_ns: int) -> None:
        since_ns, self._beside[variant] = self._beside[variant], at_ns
        self._resting_since_ns = max(self._resting_since_ns, at_ns)
        self._add(Window(variant, since_ns, at_ns, (1,), 1, is_first_run=True))

    def came(self, receipt: Receipt) -> None:
        """A request is in flight from now on. For those who share idle draw by that."""
        with self._lock:
            self._visit(Visit(receipt, time.monotonic_ns()))

    def left(self, receipt: Receipt) -> None:
        """It is no longer."""
        with self._lock:
            self._visit(Visit(receipt, time.monotonic_ns(), has_left=True, ran=bool(receipt.ran)))

    def _visit(self, visit: Visit) -> None:
        for unheard in self._visits:
            unheard.append(visit)

    def _add(self, window: Window) -> None:
        for unread in self._finished:
            unread.append(window)

    def add_reader(self) -> int:
        """One more of those who drain it gets all windows from now on; by which number."""
        with self._lock:
            self._finished.append([])
            self._visits.append([])
            return len(self._finished) - 1

    def drain(self, reader: int = 0) -> tuple[list[Window], int]:
        """The windows finished since the reader's last call, and the instant before which none is missing."""
        with self._lock:
            now_ns = time.monotonic_ns()
            for variant in self._beside:
                self._cut(variant, now_ns)
            windows, self._finished[reader] = self._finished[reader], []
            return windows, now_ns if self._running_since_ns is None else self._running_since_ns

    def drain_visits(self, reader: int = 0) -> list[Visit]:
        """Who came and left since the reader's last call."""
        with self._lock:
            visits, self._visits[reader] = self._visits[reader], []
            return visits

    def busy_ns(self) -> int:
        """For how long batches have run, the running one included; nothing else counts. Never decreases: a
        batch has ended a little before its lane comes to say so.
        """
        with self._lock:
            busy_ns = self._busy_ns
            if self._running_since_ns is not None:
                busy_ns += time.monotonic_ns() - self._running_since_ns
            self._told_busy_ns = max(self._told_busy_ns, busy_ns)
            return self._told_busy_ns


class Laws(Protocol):
    """Who knows what batches of a device cost, for provisional figures."""

    law: LawView  # as of the last settled interval


class Timing(Protocol):
    """What tells a lane when its device ran a batch. Belongs to the lane's thread, and never raises."""

    def get_ready(self) -> None:
        """A batch is about to start: what takes time is done now, outside of its window."""

    def around(self) -> AbstractContextManager[None]:
        """For what the device does for the batch."""

    def placed(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """When the device ran it, on the host's clock, of a batch whose answer is there; within the host's
        own window, which is what it gets."""


class HostTime:
    """Of a device that does what it is told at once: the host's own stamps."""

    def get_ready(self) -> None:
        pass

    def around(self) -> AbstractContextManager[None]:
        return nullcontext()

    def placed(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        return start_ns, end_ns


class Ran(NamedTuple):
    """A batch that has been tried."""

    window: Window
    rows: NDArray[np.float32] | None  # [sequences, width]; None when it failed
    failure: Exception | None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What requests get of a batch that has run, or of a part of one that was split."""

    sequences: list[QueuedSequence]
    window: Window
    rows: NDArray[np.float32] | None  # [sequences, width]; None when it failed with `error`
    finite: NDArray[np.bool_]  # of each row, whether it holds neither NaN nor infinity
    error: WattserveError | None
    warning: str = ""  # for the receipts of its sequences; empty when there is nothing to say

    @property
    def not_finite(self) -> int:
        """Sequences answered with NaN or infinity."""
        return len(self.finite) - int(self.finite.sum())


class Lane:
    """on_done is called on the lane's thread with every
    batch's result (of one that was split, with every part's); on_death once, should a bug, or the device's
    failure, end the thread: nothing will run here any more."""

    def __init__(
        self,
        device: str,
        batcher: Batcher,
        run_log: RunLog,
        laws: Mapping[str, Laws],  # by the part of the machine whose counter taught them
        timing: Timing,
        work_clock: NoWorkClock,
        on_done: Callable[[Any], object],  # a BatchResult
        on_death: Callable[[Exception], None],
    ) -> None:
        self.device = device
        self.batcher = batcher
        self.run_log = run_log
        self.laws = laws
        self.parts = tuple(laws)
        law = next(iter(laws.values())).law  # the same for every part, for good:
        self.split_rule = law.split_rule  # by which a batch's energy is split among its sequences
        self.idle_policy = law.idle_policy  # by which idle draw is shared
        self._timing = timing
        self._on_done = on_done
        self._on_death = on_death
        self._limits = LearnedLimits(batcher)
        self._ns_per_token: dict[str, float] = {}  # by variant, of its fastest batch
        self._work_clock = work_clock
        batcher.lane = self
        self.why_lost = ""  # once it has failed, where others go on
        self._unanswered: list[list[QueuedSequence]] = []  # of the batch that runs, the parts still to run
        self._awaited: set[Future[Any]] = set()  # chores
        self._thread = threading.Thread(target=self._work, name="wattserve-runner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the batch it is running. Blocks for that long."""
        self.batcher.close()
        if self._thread.is_alive():
            self._thread.join()

    async def do(self, chore: Callable[[], Result]) -> Result:
        """Have the lane's thread call it between two batches; what it returns, or raises; or
        LaneLostError, where the lane has failed."""
        if self.why_lost:
            raise LaneLostError(self.why_lost)
        done: Future[Result] = Future()
        self._awaited.add(done)
        done.add_done_callback(self._awaited.discard)

        def call() -> None:
            if not done.set_running_or_notify_cancel():  # whoever asked has left
                return
            try:
                done.set_result(chore())
            except BaseException as error:  # it belongs to whoever asked
                done.set_exception(error)

        self.batcher.add_chore(call)
        return await asyncio.wrap_future(done)

    @property
    def is_in_a_batch(self) -> bool:
        """Whether it has taken sequences that nobody has been told of. Its own thread."""
        return bool(self._unanswered)

    def let_go(self, error: LaneLostError) -> None:
        """Its thread ends: what it was running has failed, and is charged. Its own thread."""
        self.why_lost = str(error)
        sequences = [sequence for part in self._unanswered for sequence in part]
        lengths = tuple(sequence.length for sequence in sequences)
        lines = tuple(sequence.line for sequence in sequences)
        window = self._cut_short(Window(sequences[0].request.variant, 0, 0, lengths, max(lengths), lines))
        self._on_done(BatchResult(sequences, window, None, np.zeros(0, dtype=np.bool_), error))

    def _cut_short(self, window: Window) -> Window:
        """The record of what ran, which ends now."""
        started_ns = self.run_log.running_since_ns or self.run_log.start()[0]
        host_ns = started_ns, time.monotonic_ns()
        window = replace(window, start_ns=host_ns[0], end_ns=host_ns[1], host_ns=host_ns)
        self.run_log.finish(window)
        return window

    def give_up_chores(self) -> None:
        """Nothing will do them any more. On the event loop, once it has let go."""
        for chore in tuple(self._awaited):
            if chore.set_running_or_notify_cancel():
                chore.set_exception(LaneLostError(self.why_lost))

    def run(
        self,
        variant: Variant,
        items: Sequence[Item],
        lines: tuple[Line, ...] = (),
        is_first_run: bool = False,
        works: Sequence[TaskWork | None] = (),
        packs: bool = True,
    ) -> Ran:
        """Run one batch, on this lane's thread. Its window has still to be put into the run log.

        lines, is_first_run: see Window. works: the tasks that serve its sequences. packs: whether these may
        share rows.
        """
        lengths = tuple(variant.model.task.length(item) for item in items)
        window = Window(variant.name, 0, 0, lengths, max(lengths), lines, is_first_run)

        def prepare(window: Window) -> tuple[Window, Batch]:
            batch = variant.prepare(items, packs)
            return replace(window, padded_length=batch.length, packed_rows=batch.packed_rows), batch

        return Ran(*self.measure(window, variant.device, prepare, variant.run, works))

    def measure(
        self,
        window: Window,
        device: torch.device,
        prepare: Callable[[Window], tuple[Window, Prepared]],
        run: Callable[[Prepared, AbstractContextManager[None]], Result],
        works: Sequence[TaskWork | None] = (),
    ) -> tuple[Window, Result | None, Exception | None]:
        """Get something ready, run it, and say when that was: its window, what it returned, or what it
        raised. prepare: may complete what is known of the window. works: as of `run`."""
        result: Result | None = None
        failure: Exception | None = None
        started_ns = rested_ns = 0
        try:
            window, prepared = prepare(window)
            self._timing.get_ready()
            started_ns, rested_ns = self.run_log.start()
            if rest_class(rested_ns / 1e9):
                self._work_clock.rested()
            result = run(prepared, self._timing.around())
        except Exception as error:  # whatever a model may raise: the server outlives it
            failure = error
            wait_for(device)
            if not started_ns:
                started_ns, rested_ns = self.run_log.start()
        host_ns = started_ns, time.monotonic_ns()
        cpu_ns, own_ns = self._work_clock.took_ns(works)
        start_ns, end_ns = self._timing.placed(*host_ns) if failure is None else host_ns
        window = replace(
            window, start_ns=start_ns, end_ns=end_ns, host_ns=host_ns, rested_ns=rested_ns, cpu_ns=cpu_ns,
            own_ns=own_ns,
        )  # fmt: skip
        try:
            return window, result, failure
        finally:
            del failure  # its traceback refers to this frame: together they would keep the batch's tensors

    def _work(self) -> None:
        self._work_clock.begin()
        try:
            while (work := self.batcher.next_work()) is not None:
                if callable(work):
                    work()
                    self._work_clock.skip()
                else:
                    self._run_batch(work)
                del work  # else the last batch, and the variant that a chore holds, would live until the next
        except Exception as error:
            log.exception("the lane's thread has died")
            self._on_death(error)

    def _run_batch(self, batch: list[QueuedSequence]) -> None:
        """Report the batch, or, where memory does not suffice for it or the model raises, its parts one by
        one: a sequence that fails alone costs nobody else his answer."""
        if self._limits.tokens:
            self._limits.forget_old()
        variant = batch[0].request.resident.on(self.device)
        parts = self._unanswered = [batch]
        failed: list[int] = []
        worked: list[int] = []
        splits = 0  # because the model raised
        is_told = False
        warning = ""
        while parts:
            part = parts[-1]
            result, shortage = self._run_part(variant, part, is_told)
            is_told = is_told or result.error is not None
            tokens = result.window.computed_tokens
            spent = result.window
            if result.rows is None:
                spent = as_far_as_it_came(spent, self._ns_per_token.get(variant.name))
            if result.rows is None and len(part) > 1 and (shortage or splits < most_splits(len(batch))):
                # Its lines belong to the windows of the parts: each is charged once.
                self.run_log.finish(replace(spent, lines=(), is_first_run=True))
                parts.pop()
                two = reversed(halves(part, evenly=not shortage))
                if shortage:
                    failed.append(tokens)
                    warning = SPLIT_BATCH
                    parts += two
                else:
                    splits += 1
                    warning = SPLIT_FAILURE
                    parts[:0] = two  # after all others: the largest are split first
                for waiting in parts:
                    for sequence in waiting:
                        sequence.line.batch_size = len(waiting)
                continue
            if shortage:
                error = too_large(variant.name, variant.device, result.window.padded_length)
                result = replace(result, window=spent, error=error)
            elif result.rows is not None:
                worked.append(tokens)
                rate = result.window.duration_ns / tokens
                self._ns_per_token[variant.name] = min(rate, self._ns_per_token.get(variant.name, rate))
            self.run_log.finish(result.window)
            if result.not_finite and result.window.packed_rows:
                result = self._apart(variant, result)
            parts.pop()
            self._on_done(replace(result, warning=warning))
        if failed:
            self._limits.learn(variant.name, failed, worked)

    def _apart(self, variant: Variant, result: BatchResult) -> BatchResult:
        """The mask between sequences of a row multiplies with 0, which a NaN or an infinity outlives: one of
        them spoils its whole row. So those without a finite answer run again, in rows of their own. They have
        paid for the batch; what this draws is warm-up."""
        assert result.rows is not None
        rows, sequences = result.rows.copy(), result.sequences
        left = sorted(np.flatnonzero(~result.finite).tolist(), key=lambda index: -sequences[index].length)
        while left:
            count = max(1, result.window.computed_tokens // sequences[left[0]].length)
            some, left = left[:count], left[count:]
            items = [sequences[index].item for index in some]
            window, again, failure = self.run(variant, items, is_first_run=True, packs=False)
            self.run_log.finish(window)
            if again is None:
                log.error("variant %s failed on a batch run again", variant.name, exc_info=failure)
                check_answers(variant.device)
                break
            rows[some] = again
        return replace(result, rows=rows, finite=_finite(rows))

    def _run_part(
        self, variant: Variant, part: list[QueuedSequence], is_told: bool
    ) -> tuple[BatchResult, str]:
        """With the result, what the allocator said where memory did not suffice. is_told: whether the log has
        a failure of its batch already."""
        lines = tuple(sequence.line for sequence in part)
        works = [sequence.request.work for sequence in part]
        window, rows, failure = self.run(variant, [sequence.item for sequence in part], lines, works=works)
        shortage = "" if failure is None else memory_shortage(failure)
        error: InferenceError | None = None
        if shortage:
            log.warning(
                "variant %s ran out of memory on a batch of %d, in rows of %d tokens: %s",
                variant.name, len(part), window.padded_length, shortage,
            )  # fmt: skip
            failure = None  # and with it what its traceback held
            free_unused(variant.device, generation=1)
        elif failure is not None:
            if not is_told:
                log.error("variant %s failed on a batch of %d", variant.name, len(part), exc_info=failure)
            check_answers(variant.device)
            error = InferenceError(f"variant {variant.name!r} failed on a batch: {type(failure).__name__}")
        finite = np.zeros(0, dtype=np.bool_) if rows is None else _finite(rows)
        return BatchResult(part, window, rows, finite, error), shortage


def _finite(rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Of each row, whether it holds neither NaN nor infinity."""
    return np.asarray(np.isfinite(rows).all(axis=1))
