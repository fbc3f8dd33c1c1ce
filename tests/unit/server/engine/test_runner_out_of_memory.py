"""A runner whose device has too little memory for a batch, or whose model raises on one: with the real
engine, batcher and accountant."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.fixtures.models import save_bart_classifier, save_classifier
from tests.fixtures.short_memory import Memory, cuda_words, limited
from tests.fixtures.windows import accountant, reading
from wattserve_server.energy.costlaw import LawView
from wattserve_server.energy.receipt import ACCELERATOR, Outcome, Receipt, Window
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.engine import Engine, EngineLimits, Metering
from wattserve_server.engine.lane import SPLIT_BATCH, SPLIT_FAILURE, RunLog
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.out_of_memory import most_splits
from wattserve_server.engine.policy import BatchCost, BatchLimits
from wattserve_server.engine.roster import LoadingRules
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.errors import InferenceError, NotPossibleHere

CPU = torch.device("cpu")


def ids(length: int, word: int = 4) -> NDArray[np.int64]:
    return np.array([2, *[word] * (length - 2), 3], dtype=np.int64)


EIGHT = [ids(10, 4 + index % 4) for index in range(8)]
"""A request that is one batch of 80 tokens."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    return load_model(str(folder), task_named("sequence-classification"))


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Of a batch it demands that all sequences have as many `</s>`, here 3, and one at least."""
    folder = save_bart_classifier(tmp_path_factory.mktemp("models") / "bart")
    return load_model(str(folder), task_named("sequence-classification"))


def test_what_classifies_by_the_end_of_a_text_is_tried_with_it_though_it_has_no_tokenizer(
    tmp_path: Path,
) -> None:
    folder = save_bart_classifier(tmp_path / "bart", with_tokenizer=False)
    task = task_named("sequence-classification")
    model = load_model(str(folder), task)  # which tries an example
    for length in (1, 2, 9):
        example = task.example(model.facts, None, length, seed=length)
        assert np.flatnonzero(example == 3).tolist() == [length - 1]


class Ran(NamedTuple):
    sequences: Sequence[NDArray[np.int64]]
    rows: list[NDArray[np.float32]]
    receipt: Receipt


@dataclass
class Rig:
    engine: Engine
    memory: Memory
    run_log: RunLog

    async def ask(self, sequences: Sequence[NDArray[np.int64]]) -> Ran:
        answer = await self.engine.predict(sequences, self.engine.hosted("fp32"))
        return Ran(sequences, answer.rows, answer.receipt)

    async def together(self, *requests: Sequence[NDArray[np.int64]]) -> list[Ran | BaseException]:
        """Asked while the device is busy, so that they all wait when it takes its next batch."""
        busy = threading.Event()
        lane = self.engine.lanes[CPU]
        lane.batcher.add_chore(lambda: busy.wait(30))
        asked = [asyncio.create_task(self.ask(sequences), name="asking") for sequences in requests]
        await asyncio.sleep(0)  # each of them gets as far as its queue
        assert self.engine.queued == sum(map(len, requests))
        busy.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    def windows(self) -> list[Window]:
        return self.run_log.drain()[0]


@asynccontextmanager
async def started(model: LoadedModel) -> AsyncIterator[Rig]:
    memory, run_log = Memory(), RunLog()
    engine = Engine(
        model,
        Materials(model.weights),
        [Choice("fp32", limited(KINDS["fp32"], memory.allocate), CPU)],
        "fp32",
        LoadingRules(is_verified=False),
        EngineLimits({CPU: BatchLimits(max_sequences=8, max_tokens=512)}, max_queue=64, max_request=16),
        ReceiptBook(60.0, 1000, lambda receipt: None),
        {CPU: Metering(run_log, {ACCELERATOR: SimpleNamespace(law=LawView({}))})},
        lambda *result: None,
        lambda error: None,
    )
    engine.start()
    await engine.loader.load("fp32")
    engine.lanes[CPU].batcher.set_cost("fp32", BatchCost(overhead_tokens=10_000.0))  # together, if possible
    run_log.drain()  # the warm-up's windows
    memory.attempts.clear()
    yield Rig(engine, memory, run_log)
    await asyncio.to_thread(engine.stop)


@pytest.fixture
async def rig(model: LoadedModel) -> AsyncIterator[Rig]:
    async with started(model) as made:
        yield made


def check_answers(model: LoadedModel, ran: Ran) -> None:
    for sequence, row in zip(ran.sequences, ran.rows, strict=True):
        with torch.inference_mode():
            alone = model.weights.module(input_ids=torch.from_numpy(sequence)[None]).logits[0].numpy()
        assert row is not None
        np.testing.assert_allclose(row, alone, atol=1e-5)


async def test_a_batch_that_does_not_fit_is_split_until_it_does(rig: Rig, model: LoadedModel) -> None:
    rig.memory.most_tokens = 20
    done = await rig.ask(EIGHT)
    check_answers(model, done)
    assert rig.memory.attempts == [80, 40, 20, 20, 40, 20, 20]
    assert done.receipt.outcome is Outcome.COMPLETED
    assert [line.batch_size for line in done.receipt.lines] == [2] * 8


async def test_the_next_batches_fit_at_once(rig: Rig, model: LoadedModel) -> None:
    rig.memory.most_tokens = 45
    await rig.ask(EIGHT)
    rig.memory.attempts.clear()
    done = await rig.ask(EIGHT)
    check_answers(model, done)
    assert rig.memory.attempts == [40, 40]
    assert done.receipt.warnings == []


async def test_every_line_is_in_one_window_and_the_failed_attempts_are_warm_up(rig: Rig) -> None:
    rig.memory.most_tokens = 20
    done = await rig.ask(EIGHT)
    windows = rig.windows()
    lines = Counter(id(line) for window in windows for line in window.lines)
    assert lines == Counter(id(line) for line in done.receipt.lines)
    failed = [window for window in windows if not window.lines]
    assert [window.is_first_run for window in failed] == [True] * 3
    assert len(windows) == len(rig.memory.attempts)
    ends = [window.end_ns for window in windows]
    assert all(window.start_ns >= end for window, end in zip(windows[1:], ends, strict=False))


@pytest.mark.parametrize("error", [cuda_words, lambda: ValueError("odd")], ids=["memory", "model"])
async def test_the_meters_joules_are_all_in_the_accounts_and_on_receipts_once(
    rig: Rig, error: Callable[[], Exception]
) -> None:
    rig.memory.most_tokens, rig.memory.error = 20, error
    done = await rig.ask(EIGHT)
    windows = rig.windows()
    begin_ms, end_ms = windows[0].start_ns / 1e6 - 100, windows[-1].end_ns / 1e6 + 100
    books = accountant()
    books.observe(reading(begin_ms - 100, 0))
    books.observe(reading(begin_ms, 1_000_000))
    books.observe(reading(end_ms, 9_000_000))
    books.observe(reading(end_ms + 2000, 29_000_000))
    charges = books.advance(windows, int((end_ms + 5000) * 1e6))
    rig.engine.book.settle("cpu", ACCELERATOR, charges, 0)  # raises for a line that is charged twice
    ledger = books.ledger
    assert ledger.residual_uj() == 0
    assert ledger.warmup_uj > 0
    assert done.receipt.is_final
    assert done.receipt.energy_uj == ledger.active["fp32"].active_uj > 0
    assert ledger.active["fp32"].sequences == 8


async def test_its_receipts_say_what_their_figure_leaves_out(rig: Rig) -> None:
    whole = await rig.ask(EIGHT)
    rig.memory.most_tokens = 20
    split = await rig.ask(EIGHT)
    assert (whole.receipt.warnings, split.receipt.warnings) == ([], [SPLIT_BATCH])


async def test_one_sequence_that_fits_nowhere_fails_alone_and_is_told_why(
    rig: Rig, model: LoadedModel
) -> None:
    rig.memory.most_tokens = 30
    *mates, large = await rig.together(*([ids(4)] for _ in range(5)), [ids(40)])
    for mate in mates:
        assert isinstance(mate, Ran)
        check_answers(model, mate)
    assert isinstance(large, NotPossibleHere)
    assert str(large) == (
        "a sequence of 40 tokens does not fit into the memory that is free on cpu, not even alone, with "
        "variant 'fp32': send a shorter one, try another variant, or have memory freed"
    )
    assert rig.memory.attempts[1:] == [20, 40]
    (receipt,) = {line.receipt.receipt_id: line.receipt for line in rig.windows()[-1].lines}.values()
    assert receipt.outcome is Outcome.FAILED  # and what it used is on its own receipt
    assert large.receipt_id == receipt.receipt_id


async def test_one_alone_that_does_not_fit_is_tried_once_and_limits_nobody(rig: Rig) -> None:
    rig.memory.most_tokens = 39
    with pytest.raises(NotPossibleHere, match="40 tokens"):
        await rig.ask([ids(40)])
    rig.memory.most_tokens = 80
    await rig.ask(EIGHT)
    assert rig.memory.attempts == [40, 80]


@pytest.mark.parametrize(
    "words", ["[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to", "std::bad_alloc"]
)
async def test_an_allocator_without_a_class_for_it_is_understood(rig: Rig, words: str) -> None:
    rig.memory.most_tokens, rig.memory.error = 40, lambda: RuntimeError(words)
    assert (await rig.ask(EIGHT)).receipt.outcome is Outcome.COMPLETED
    assert rig.memory.attempts == [80, 40, 40]


async def test_any_other_failure_is_tried_in_parts_too_and_limits_nobody(
    rig: Rig, model: LoadedModel
) -> None:
    rig.memory.most_tokens, rig.memory.error = 20, lambda: ValueError("odd")
    done = await rig.ask(EIGHT)
    check_answers(model, done)
    assert rig.memory.attempts == [80, 40, 40, 20, 20, 20, 20]
    assert done.receipt.warnings == [SPLIT_FAILURE]
    assert [line.batch_size for line in done.receipt.lines] == [2] * 8
    rig.memory.most_tokens = 80
    assert (await rig.ask(EIGHT)).receipt.warnings == []
    assert rig.memory.attempts[-1] == 80


@pytest.mark.parametrize(
    ("odd", "is_answered"),
    [([2, 5, 6, 7], False), ([2, 3, 6, 3], True)],
    ids=["no </s>: fails alone", "two: runs alone"],
)
async def test_ids_that_the_model_does_not_run_with_others_fail_no_others_request(
    bart: LoadedModel, caplog: pytest.LogCaptureFixture, odd: list[int], is_answered: bool
) -> None:
    async with started(bart) as rig:
        good = [[np.array([2, 4 + index, 5, 3], dtype=np.int64)] for index in range(7)]
        done = await rig.together(*good[:4], [np.array(odd, dtype=np.int64)], *good[4:])
        result = done.pop(4)
        for mate in done:
            assert isinstance(mate, Ran)
            check_answers(bart, mate)
            assert mate.receipt.warnings == [SPLIT_FAILURE]
        windows = rig.windows()
        lines = Counter(line.receipt.receipt_id for window in windows for line in window.lines)
        if is_answered:
            assert isinstance(result, Ran)
            check_answers(bart, result)
        else:
            assert isinstance(result, InferenceError)
            assert str(result) == "variant 'fp32' failed on a batch: ValueError"
            (alone,) = [
                window for window in windows
                if result.receipt_id in [line.receipt.receipt_id for line in window.lines]
            ]  # fmt: skip
            assert [line.receipt.outcome for line in alone.lines] == [Outcome.FAILED]
    assert sorted(lines.values()) == [1] * 8
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.getMessage() == "variant fp32 failed on a batch of 8"
    assert line.exc_info


async def test_a_model_that_is_broken_is_tried_no_more_often_than_finds_one_sequence(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.memory.most_tokens, rig.memory.error = 0, lambda: ValueError("broken")
    failed = await rig.together(*([each] for each in EIGHT))
    assert all(isinstance(error, InferenceError) for error in failed)
    tried = rig.memory.attempts[-9:]
    assert tried == [80, 40, 40, 20, 20, 20, 20, 10, 10]
    assert (len(tried) - 1) // 2 == most_splits(8)
    windows = rig.windows()
    assert sorted(Counter(id(line) for window in windows for line in window.lines).values()) == [1] * 8
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_a_part_that_fails_otherwise_fails_its_own_requests_only(rig: Rig, model: LoadedModel) -> None:
    def watch(tokens: int) -> None:
        if tokens <= 16:  # the four short ones
            raise ValueError("broken")

    rig.memory.most_tokens, rig.memory.watch = 40, watch
    broken, good = await rig.together([ids(4)] * 4, [ids(10)] * 4)
    assert isinstance(broken, InferenceError)
    assert isinstance(good, Ran)
    check_answers(model, good)
    assert rig.memory.attempts[1:] == [16, 40, 8, 8, 4, 4, 4, 4]


async def test_who_leaves_while_it_is_split_is_still_charged_and_the_others_are_answered(
    rig: Rig, model: LoadedModel
) -> None:
    is_split, go_on = threading.Event(), threading.Event()

    def watch(tokens: int) -> None:
        if tokens == 40:
            is_split.set()
            assert go_on.wait(30)

    rig.memory.most_tokens, rig.memory.watch = 40, watch
    together = asyncio.create_task(rig.together(EIGHT[:4], EIGHT[4:]))
    assert await asyncio.to_thread(is_split.wait, 30)
    leaving = next(task for task in asyncio.all_tasks() if task.get_name() == "asking")
    leaving.cancel()
    await asyncio.sleep(0)
    go_on.set()
    answers = await together
    await rig.engine.until_idle()
    (stayed,) = [answer for answer in answers if isinstance(answer, Ran)]
    check_answers(model, stayed)
    receipts = Counter(line.receipt.outcome for window in rig.windows() for line in window.lines)
    assert receipts == {Outcome.CANCELLED: 4, Outcome.COMPLETED: 4}


async def test_stopping_meanwhile_lets_the_parts_finish(rig: Rig, model: LoadedModel) -> None:
    stopping = threading.Event()

    def watch(tokens: int) -> None:
        if tokens == 80:
            stopping.set()
        else:
            rig.engine.lanes[CPU].batcher.close()

    rig.memory.most_tokens, rig.memory.watch = 40, watch
    asked = asyncio.create_task(rig.ask(EIGHT))
    assert await asyncio.to_thread(stopping.wait, 30)
    check_answers(model, await asked)
    assert rig.memory.attempts == [80, 40, 40]


async def test_many_at_once_while_memory_comes_and_goes_all_get_their_own_answer(
    rig: Rig, model: LoadedModel
) -> None:
    left = iter([60, 500, 33, 33, 500, 64] * 100)

    def watch(tokens: int) -> None:
        rig.memory.most_tokens = next(left)

    rig.memory.watch = watch
    requests = [[ids(3 + (7 * index + part) % 28) for part in range(1 + index % 3)] for index in range(30)]
    done = await asyncio.gather(*map(rig.ask, requests))
    for request in done:
        check_answers(model, request)
    lines = Counter(id(line) for window in rig.windows() for line in window.lines)
    assert lines == Counter(id(line) for request in done for line in request.receipt.lines)
