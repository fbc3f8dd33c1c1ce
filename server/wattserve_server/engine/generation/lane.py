"""A lane that generates: it runs steps instead of batches of rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.receipt import Line, Window, Work
from wattserve_server.engine.generation import scheduler, stepper
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.port import TokenScore
from wattserve_server.engine.generation.scheduler import Step, StepBatcher
from wattserve_server.engine.generation.stepper import Part, Prepared
from wattserve_server.engine.lane import SPLIT_FAILURE, Lane
from wattserve_server.engine.out_of_memory import check_answers, free_unused, memory_shortage, most_splits
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.worktime import TaskWork
from wattserve_server.errors import InferenceError, LaneLostError, WattserveError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the members of a step get of it, one entry for each."""

    window: Window
    members: list[Member]
    chosen: list[list[TokenScore]]
    errors: list[WattserveError | None]
    has_ended: list[bool]
    warning: str = ""  # for their receipts; empty when there is nothing to say


class StepLane(Lane):
    """`on_done` gets StepResults."""

    batcher: StepBatcher
    _running: Sequence[scheduler.Part] = ()  # of a step, those of whom nobody has been told

    def run_step(
        self,
        variant: Variant,
        parts: Sequence[Part],
        work: tuple[Work, ...],
        lines: tuple[Line, ...] = (),
        is_first_run: bool = False,
        works: Sequence[TaskWork | None] = (),
    ) -> tuple[Window, list[NDArray[np.float32]] | None, Exception | None]:
        """Run one step, on this lane's thread. Its window has still to be put into the run log. lines, work,
        is_first_run: see Window. works: the tasks that serve its members."""
        window = _unmeasured(variant.name, work, lines, is_first_run)

        def run(prepared: Prepared, timed: AbstractContextManager[None]) -> list[NDArray[np.float32]]:
            return stepper.run(variant, prepared, timed)

        return self.measure(window, variant.device, lambda known: (known, stepper.prepare(parts)), run, works)

    def _run_batch(self, batch: Any) -> None:
        """Tell of the step, or, where the model raises, of its parts one by one: who fails alone ends nobody
        else's generation."""
        whole: Step = batch
        waiting, splits, warning = [whole], 0, ""
        while waiting:
            step = waiting[-1]
            self._running = [part for each in waiting for part in each.parts]
            window, logits, failure = self._run_parts(step)
            if failure is not None and self._makes_room(step, window, failure):
                waiting.pop()
                continue
            if failure is not None:
                device = step.parts[0].member.request.resident.on(self.device).device
                if not splits:
                    log.error(
                        "variant %s failed on a step of %d", step.variant, len(step.parts), exc_info=failure
                    )
                check_answers(device)
                if len(step.parts) > 1 and splits < most_splits(len(whole.parts)):
                    # Its lines belong to the windows of the halves: each is charged once.
                    self.run_log.finish(replace(window, lines=(), work=(), is_first_run=True))
                    splits += 1
                    warning = SPLIT_FAILURE
                    waiting.pop()
                    waiting[:0] = _halves(step)  # after all others: the largest are split first
                    continue
            result = self._result(step, window, logits, failure, warning)
            self.run_log.finish(result.window)
            waiting.pop()
            self._on_done(result)
        self._running = []

    def _run_parts(self, step: Step) -> tuple[Window, list[NDArray[np.float32]] | None, Exception | None]:
        """As `run_step`."""
        variant = step.parts[0].member.request.resident.on(self.device)
        lines, work = _charged(step.parts)
        parts = []
        for (member, count, _), each in zip(step.parts, work, strict=True):
            assert member.cache is not None
            parts.append(Part(member.tokens(count), member.cache, each.logits, member.is_decoding))
        works = [part.member.request.work for part in step.parts]
        return self.run_step(variant, parts, work, lines, works=works)

    def _result(
        self,
        step: Step,
        window: Window,
        logits: list[NDArray[np.float32]] | None,
        failure: Exception | None,
        warning: str,
    ) -> StepResult:
        """With the CPU time of choosing tokens, or of log-probabilities, each its own member's."""
        members, chosen, errors, ended, own_ns = [], [], [], [], []
        for index, (member, count, _) in enumerate(step.parts):
            since_ns = time.thread_time_ns()
            member.first_ns = member.first_ns or window.start_ns
            member.steps += 1
            tokens: list[TokenScore] | None = []
            error: WattserveError | None = None
            if logits is None:
                error = InferenceError(f"variant {step.variant!r} failed on a step: {type(failure).__name__}")
            else:
                try:
                    tokens = member.take(logits[index], count)
                except Exception as wrong:  # of a tokenizer, say: it is this one's, and the others go on
                    log.error("a token of variant %s could not be taken", step.variant, exc_info=wrong)
                    error = InferenceError(f"a token could not be taken: {type(wrong).__name__}")
                if tokens is None:  # never given as if it were an answer
                    error = InferenceError(f"variant {step.variant!r} answered with NaN or infinity")
            is_over = error is not None or member.reason is not None
            is_over = is_over or (member.wish is None and not member.pending)
            if is_over:
                self.batcher.forget(member)
            members.append(member)
            chosen.append(tokens or [])
            errors.append(error)
            ended.append(is_over)
            own_ns.append(time.thread_time_ns() - since_ns)
        if logits is not None:
            logits.clear()  # else the next step would pay for letting go of them
        if window.cpu_ns is not None:
            window = replace(
                window,
                cpu_ns=window.cpu_ns + self._work_clock.more_ns(),
                own_ns=tuple(map(add, window.own_ns, own_ns)),
            )
        return StepResult(window, members, chosen, errors, ended, warning)

    def _makes_room(self, step: Step, window: Window, failure: Exception) -> bool:
        """Where memory did not suffice for a step of several: half of them lose their places, and nothing
        has run. What the attempt used is booked with warm-up."""
        shortage = memory_shortage(failure)
        if not shortage or len(step.parts) < 2:
            return False
        log.warning(
            "variant %s ran out of memory on a step of %d: %s", step.variant, len(step.parts), shortage
        )
        for part in step.parts:
            part.line.left()
        self.batcher.make_room([part.member for part in step.parts[len(step.parts) // 2 :]])
        self.run_log.finish(replace(window, lines=(), work=(), is_first_run=True))
        free_unused(step.parts[0].member.request.resident.on(self.device).device, generation=1)
        return True

    @property
    def is_in_a_batch(self) -> bool:
        return bool(self._running)

    def let_go(self, error: LaneLostError) -> None:
        self.why_lost = str(error)
        members, count = [part.member for part in self._running], len(self._running)
        lines, work = _charged(self._running)
        window = self._cut_short(_unmeasured(members[0].request.variant, work, lines))
        self._on_done(StepResult(window, members, [[]] * count, [error] * count, [True] * count))
        self.batcher.lose_all(error, members)


def _charged(parts: Sequence[scheduler.Part]) -> tuple[tuple[Line, ...], tuple[Work, ...]]:
    """What their window charges, and what it computes for each."""
    return tuple(part.line for part in parts), tuple(part.member.work(part.tokens) for part in parts)


def _halves(step: Step) -> list[Step]:
    """Of two or more members; those whose prompts are read come first, and rather fail. Their lines know."""
    parts = sorted(step.parts, key=lambda part: part.member.is_decoding)
    cut = len(parts) // 2
    for half in (parts[:cut], parts[cut:]):
        for part in half:
            part.line.batch_size = len(half)
    return [Step(step.variant, parts[cut:]), Step(step.variant, parts[:cut])]


def _unmeasured(
    name: str, work: tuple[Work, ...], lines: tuple[Line, ...], is_first_run: bool = False
) -> Window:
    """Of a step of which no time is known yet."""
    lengths = tuple(each.computed for each in work)
    return Window(name, 0, 0, lengths, max(lengths), lines, is_first_run, work=work)


def steps_of(lane: Lane) -> StepBatcher:
    """The queue of a lane that generates."""
    assert isinstance(lane, StepLane)
    return lane.batcher
