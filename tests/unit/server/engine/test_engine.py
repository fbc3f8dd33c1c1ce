"""The engine in this process: what happens to requests that are cancelled, expire, or meet a bad batch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.garbage import unreachable
from tests.fixtures.models import save_classifier
from wattserve_server.energy.costlaw import LawView
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Outcome, Receipt, State
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.engine import Engine, EngineLimits, Metering
from wattserve_server.engine.lane import RunLog
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.policy import NORMAL_PRIORITY, BatchLimits
from wattserve_server.engine.queued import Answer, Order, QueuedSequence, Request
from wattserve_server.engine.roster import LoadingRules
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import choose
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.variants.variant import Batch, Variant
from wattserve_server.engine.worktime import Served
from wattserve_server.errors import ExpiredError, InferenceError, NotFound, OverloadedError
from wattserve_server.service.status import failure_of

IDS = np.array([2, 4, 6, 3], dtype=np.int64)


class Gate:
    """Holds every batch until opened, and can be told to fail, or to answer nonsense."""

    def __init__(self, variant: Variant) -> None:
        self._run = variant.run
        self.is_open = threading.Event()
        self.is_open.set()
        self.entered = threading.Event()
        self.failure: Exception | None = None
        self.spoil = False

    def run(self, batch: Batch, timed: AbstractContextManager[object]) -> np.ndarray:
        self.entered.set()
        assert self.is_open.wait(30)
        if self.failure is not None:
            raise self.failure
        rows = self._run(batch, timed)
        return np.full_like(rows, np.nan) if self.spoil else rows


class GatedVariant(Variant):
    """A variant whose `run` a test can hold."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    return load_model(str(folder), task_named("sequence-classification"))


def engine_of(model: LoadedModel, run_log: RunLog, *, goes_by_cpu: bool = True) -> Engine:
    device = torch.device("cpu")
    laws = {ACCELERATOR: SimpleNamespace(law=LawView({}))}
    return Engine(
        model,
        Materials(model.weights),
        choose("fp32", device),
        "fp32",
        LoadingRules(is_verified=False),
        EngineLimits({device: BatchLimits(max_sequences=2, max_tokens=256)}, max_queue=4, max_request=4),
        ReceiptBook(60.0, 100, lambda receipt: None),
        {device: Metering(run_log, laws, goes_by_cpu=goes_by_cpu)},
        lambda *result: None,
        lambda error: None,
    )


@pytest.fixture
async def rig(model: LoadedModel) -> AsyncIterator[tuple[Engine, Gate, RunLog]]:
    run_log = RunLog()
    engine = engine_of(model, run_log)
    engine.start()
    resident = await engine.loader.load("fp32")
    built = resident.variant
    gate = Gate(built)
    gated = GatedVariant(**{item.name: getattr(built, item.name) for item in fields(Variant) if item.init})
    gated.__dict__["run"] = gate.run
    resident.variant = gated
    run_log.drain()  # the warm-up's windows
    yield engine, gate, run_log
    gate.is_open.set()
    await asyncio.to_thread(engine.stop)


@pytest.mark.parametrize("goes_by_cpu", [True, False])
async def test_tasks_and_batches_are_clocked_where_a_counter_goes_by_cpu_time(
    model: LoadedModel, goes_by_cpu: bool
) -> None:
    run_log = RunLog()
    engine = engine_of(model, run_log, goes_by_cpu=goes_by_cpu)
    assert isinstance(asyncio.get_running_loop().get_task_factory(), Served) is goes_by_cpu
    engine.start()
    await engine.loader.load("fp32")
    windows, _ = run_log.drain()
    assert windows
    assert any(window.cpu_ns is not None for window in windows) is goes_by_cpu
    await asyncio.to_thread(engine.stop)


Rig = tuple[Engine, Gate, RunLog]


async def until_running(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.wait, 30)
    gate.entered.clear()


async def until_queued(engine: Engine) -> None:
    """By the event loop, which gathers what comes before it does that."""
    for _ in range(100_000):
        if any(len(lane.batcher) for lane in engine.lanes.values()):
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing was queued")


async def test_requests_that_come_together_are_queued_together(rig: Rig) -> None:
    engine, gate, _ = rig
    gate.is_open.clear()
    running = asyncio.create_task(engine.predict([IDS, IDS], engine.hosted("fp32")))
    await until_running(gate)
    waiting = [asyncio.create_task(engine.predict([IDS], engine.hosted("fp32"))) for _ in range(2)]
    await asyncio.sleep(0)
    (lane,) = engine.lanes.values()
    assert (engine.queued, len(lane.batcher)) == (2, 0)
    await until_queued(engine)
    assert (engine.queued, len(lane.batcher)) == (2, 2)
    gate.is_open.set()
    await running
    assert [(await task).receipt.lines[0].batch_size for task in waiting] == [2, 2]


async def test_who_comes_behind_more_than_the_queue_holds_finds_it_full_at_once(rig: Rig) -> None:
    engine, gate, _ = rig
    gate.is_open.clear()
    fp32 = engine.hosted("fp32")
    running = asyncio.create_task(engine.predict([IDS], fp32))
    await until_running(gate)  # the device takes nothing more
    asked = [asyncio.create_task(engine.predict([IDS] * 4, fp32)) for _ in range(3)]

    async def ask() -> None:
        engine.check_room(fp32, None, NORMAL_PRIORITY, "")

    with pytest.raises(OverloadedError):
        await asyncio.create_task(ask())  # in the pass of the event loop in which they came
    refused = await asyncio.gather(*asked[1:], return_exceptions=True)
    assert [isinstance(answer, OverloadedError) for answer in refused] == [True, True]
    gate.is_open.set()
    await asyncio.gather(running, asked[0])
    await engine.until_idle()


async def test_room_is_looked_for_before_anything_is_done_for_many_sequences(rig: Rig) -> None:
    engine, gate, _ = rig
    gate.is_open.clear()
    fp32 = engine.hosted("fp32")
    asked = [asyncio.create_task(engine.predict([IDS] * 2, fp32))]
    await until_running(gate)
    asked.append(asyncio.create_task(engine.predict([IDS] * 3, fp32)))
    await until_queued(engine)
    engine.check_room(fp32, None, NORMAL_PRIORITY, "")
    with pytest.raises(OverloadedError, match="3 of 4 sequences wait, and this request has 2"):
        engine.check_room(fp32, None, NORMAL_PRIORITY, "", 2)
    gate.is_open.set()
    await asyncio.gather(*asked)


async def test_requests_are_gathered_until_the_event_loop_has_rested(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _, _ = rig
    monkeypatch.setattr("wattserve_server.engine.engine.GATHER_NS", float("inf"))
    monkeypatch.setattr("wattserve_server.engine.engine.AT_REST_NS", -1)  # it has always something else to do
    requests = []
    for count in (1, 2):  # an idle device, and requests that come one by one
        requests.append(asyncio.create_task(engine.predict([IDS], engine.hosted("fp32"))))
        for _ in range(10):
            await asyncio.sleep(0)
        assert (engine.queued, len(engine.lanes[torch.device("cpu")].batcher)) == (count, 0)
    monkeypatch.setattr("wattserve_server.engine.engine.AT_REST_NS", float("inf"))
    assert [(await request).receipt.lines[0].batch_size for request in requests] == [2, 2]


@pytest.mark.parametrize("is_queued", [False, True], ids=["as it comes", "in the queue"])
async def test_a_cancelled_request_leaves_the_queue_and_costs_nothing(rig: Rig, is_queued: bool) -> None:
    engine, gate, run_log = rig
    gate.is_open.clear()
    running = asyncio.create_task(engine.predict([IDS, IDS], engine.hosted("fp32")))
    await until_running(gate)
    waiting = asyncio.create_task(engine.predict([IDS], engine.hosted("fp32")))
    await asyncio.sleep(0)
    if is_queued:
        await until_queued(engine)
    assert engine.queued == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert engine.queued == 0
    assert engine.book.pending == 1  # only the running one
    gate.is_open.set()
    assert (await running).receipt.outcome is Outcome.COMPLETED
    assert sum(len(window.lines) for window in run_log.drain()[0]) == 2


async def test_a_request_cancelled_while_it_runs_is_still_charged(rig: Rig) -> None:
    engine, gate, run_log = rig
    gate.is_open.clear()
    told: list[Receipt] = []
    order = Order(on_open=told.append)
    running = asyncio.create_task(engine.predict([IDS], engine.hosted("fp32"), order))
    await until_running(gate)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert told[0].ran  # who got no answer knows that it will be charged
    gate.is_open.set()
    await engine.until_idle()
    (window,) = run_log.drain()[0]
    receipt = window.lines[0].receipt
    assert told == [receipt]
    assert receipt.outcome is Outcome.CANCELLED
    engine.book.settle("cpu", ACCELERATOR, [Charge(window.lines[0], 70, 0.0, 7)], 0)
    assert engine.book.get(receipt.receipt_id).energy_uj == 70


async def test_a_request_whose_deadline_passes_in_the_queue_does_not_run(rig: Rig) -> None:
    engine, gate, run_log = rig
    gate.is_open.clear()
    running = asyncio.create_task(engine.predict([IDS, IDS], engine.hosted("fp32")))
    await until_running(gate)
    late = asyncio.create_task(
        engine.predict([IDS], engine.hosted("fp32"), Order(deadline_ns=time.monotonic_ns()))
    )
    await asyncio.sleep(0)
    gate.is_open.set()
    with pytest.raises(ExpiredError):
        await late
    await running
    await engine.until_idle()
    assert sum(len(window.lines) for window in run_log.drain()[0]) == 2


async def test_a_refused_request_leaves_nothing_behind(rig: Rig) -> None:
    engine, gate, _ = rig
    gate.is_open.clear()
    running = asyncio.create_task(engine.predict([IDS, IDS], engine.hosted("fp32")))
    await until_running(gate)
    waiting = asyncio.create_task(engine.predict([IDS] * 4, engine.hosted("fp32")))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError) as caught:
        await engine.predict([IDS], engine.hosted("fp32"))
    assert not caught.value.receipt_id
    gate.is_open.set()
    await asyncio.gather(running, waiting)
    await engine.until_idle()
    assert engine.queued == 0
    assert engine.book.pending == 2  # the two that ran, not settled: nobody charges them here


async def test_a_request_that_makes_room_for_another_callers_is_refused_and_leaves_nothing_behind(
    rig: Rig,
) -> None:
    engine, gate, _ = rig
    hosted = engine.hosted("fp32")
    gate.is_open.clear()
    running = asyncio.create_task(engine.predict([IDS, IDS], hosted, Order(caller="flood")))
    await until_running(gate)
    first = asyncio.create_task(engine.predict([IDS], hosted, Order(caller="flood")))
    newest = asyncio.create_task(engine.predict([IDS] * 3, hosted, Order(caller="flood")))
    await until_queued(engine)
    victim = asyncio.create_task(engine.predict([IDS], hosted, Order(caller="victim")))
    with pytest.raises(OverloadedError, match="made room for another's") as caught:
        await newest
    assert caught.value.limit == "sequences"
    gate.is_open.set()
    await asyncio.gather(running, first, victim)
    await engine.until_idle()
    assert engine.queued == 0


async def test_what_runs_is_found_by_its_requests_id_also_after_its_caller_left(rig: Rig) -> None:
    engine, gate, run_log = rig
    gate.is_open.clear()
    running = asyncio.create_task(engine.predict([IDS, IDS], engine.hosted("fp32"), Order("mine")))
    await until_running(gate)
    waiting = asyncio.create_task(engine.predict([IDS], engine.hosted("fp32"), Order("waiting")))
    await until_queued(engine)
    with pytest.raises(NotFound):
        engine.book.find("waiting", 10)
    for task in (running, waiting):
        task.cancel()
    await asyncio.wait((running, waiting))
    (receipt,) = engine.book.find("mine", 10)
    assert (receipt.outcome, receipt.state) == (Outcome.OPEN, State.PROVISIONAL)
    gate.is_open.set()
    await engine.until_idle()
    engine.book.settle(
        "cpu", ACCELERATOR, [Charge(line, 70, 0.0, 7) for line in run_log.drain()[0][0].lines], 0
    )
    assert engine.book.find("mine", 10) == [receipt]
    assert (receipt.outcome, receipt.energy_uj) == (Outcome.CANCELLED, 140)
    with pytest.raises(NotFound):
        engine.book.find("waiting", 10)


async def test_a_deadline_that_passes_after_some_ran_names_the_receipt(rig: Rig) -> None:
    engine, gate, _ = rig
    gate.is_open.clear()
    late = asyncio.create_task(engine.predict([IDS] * 4, engine.hosted("fp32"), Order("mine")))
    await asyncio.sleep(0)
    (request,) = engine._arrivals
    await until_running(gate)  # two of the four
    engine._expire_waiting(request)  # what the deadline's timer calls
    gate.is_open.set()
    with pytest.raises(ExpiredError) as caught:
        await late
    (receipt,) = engine.book.find("mine", 10)
    assert caught.value.receipt_id == receipt.receipt_id
    assert [line.batch_size for line in receipt.lines] == [2, 2, 0, 0]


async def test_requests_that_fail_together_are_each_told_their_own_receipt(rig: Rig) -> None:
    engine, gate, run_log = rig
    gate.is_open.clear()
    gate.failure = RuntimeError("broken")
    first = asyncio.create_task(engine.predict([IDS, IDS], engine.hosted("fp32")))
    await until_running(gate)
    asked = [asyncio.create_task(engine.predict([IDS], engine.hosted("fp32"), Order(name))) for name in "ab"]
    await until_queued(engine)
    gate.is_open.set()
    errors = await asyncio.gather(first, *asked, return_exceptions=True)
    # each batch once as a whole, and once again in parts
    assert [len(window.lines) for window in run_log.drain()[0]] == [0, 1, 1, 0, 1, 1]
    for error, name in zip(errors[1:], "ab", strict=True):
        assert isinstance(error, InferenceError)
        (receipt,) = engine.book.find(name, 10)
        assert (error.receipt_id, receipt.outcome) == (receipt.receipt_id, Outcome.FAILED)


async def test_a_batch_that_fails_fails_its_requests_and_is_charged(rig: Rig) -> None:
    engine, gate, run_log = rig
    gate.failure = RuntimeError("broken")
    with pytest.raises(InferenceError, match="variant 'fp32' failed on a batch: RuntimeError"):
        await engine.predict([IDS], engine.hosted("fp32"))
    (window,) = run_log.drain()[0]
    assert window.lines[0].receipt.outcome is Outcome.FAILED
    gate.failure = None
    assert (await engine.predict([IDS], engine.hosted("fp32"))).receipt.outcome is Outcome.COMPLETED


async def test_a_bug_in_a_cost_law_costs_the_figure_and_nobodys_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("cannot share a negative amount")

    monkeypatch.setattr("wattserve_server.engine.engine.provisional_uj", fail)
    engine, _, run_log = rig
    answer = await engine.predict([IDS, IDS], engine.hosted("fp32"))
    assert len(answer.rows) == 2
    assert answer.receipt.provisional_uj is None
    assert [window.lengths for window in run_log.drain()[0]] == [(4, 4)]  # for the meter to charge
    assert "a bug in its cost law" in caplog.text


async def test_nan_is_an_error_and_never_an_answer(rig: Rig) -> None:
    engine, gate, _ = rig
    gate.spoil = True
    with pytest.raises(InferenceError, match="answered with NaN or infinity for sequence 0") as caught:
        await engine.predict([IDS], engine.hosted("fp32"))
    assert engine.book.get(caught.value.receipt_id).outcome is Outcome.FAILED


@pytest.fixture
def broken_id(rig: Rig) -> Iterator[int]:
    """A token id that the variant answers with NaN."""
    resident = rig[0].hosted("fp32").resident
    assert resident is not None
    module: Any = resident.variant.built.module
    weight = module.get_input_embeddings().weight
    before = weight[7].clone()
    with torch.no_grad():
        weight[7] = torch.inf
    yield 7
    with torch.no_grad():
        weight[7] = before


async def test_a_nan_spoils_no_answer_of_those_in_its_row(
    rig: Rig, broken_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine, gate, run_log = rig
    hosted = engine.hosted("fp32")
    good, bad = np.full(24, 5, dtype=np.int64), np.array([2, broken_id, 4, 4, 3], dtype=np.int64)
    alone = await engine.predict([good], hosted)
    gate.is_open.clear()
    gate.entered.clear()
    first = asyncio.create_task(engine.predict([IDS, IDS], hosted))
    await until_running(gate)
    run_log.drain()
    together = [asyncio.create_task(engine.predict([ids], hosted)) for ids in (bad, good)]
    await until_queued(engine)
    gate.is_open.set()
    failed, answered = await asyncio.gather(*together, return_exceptions=True)
    await first
    assert isinstance(failed, InferenceError)
    assert isinstance(answered, Answer)
    np.testing.assert_allclose(answered.rows[0], alone.rows[0], atol=1e-5)
    assert answered.receipt.outcome is Outcome.COMPLETED
    _, shared, *apart = run_log.drain()[0]
    assert (shared.packed_rows, set(shared.lengths), len(shared.lines)) == (1, {5, 24}, 2)
    assert [(window.lengths, window.lines, window.is_first_run) for window in apart] == [
        ((24,), (), True),
        ((5,), (), True),
    ]
    assert not caplog.records


async def test_a_request_larger_than_a_batch_gets_all_its_rows_in_order(rig: Rig, model: LoadedModel) -> None:
    engine, _, _ = rig
    sequences = [np.array([2, *[4 + i] * (i + 1), 3], dtype=np.int64) for i in range(4)]
    done = await engine.predict(sequences, engine.hosted("fp32"))
    for ids, row in zip(sequences, done.rows, strict=True):
        with torch.inference_mode():
            alone = model.weights.module(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy()
        assert row is not None
        np.testing.assert_allclose(row, alone, atol=1e-5)
    assert [line.tokens for line in done.receipt.lines] == [3, 4, 5, 6]


async def test_the_tokens_of_shared_rows_are_told_as_parts_that_add_up(rig: Rig) -> None:
    engine, _, run_log = rig
    done = await engine.predict(
        [np.full(5, 4, dtype=np.int64), np.full(24, 5, dtype=np.int64)], engine.hosted("fp32")
    )
    (window,) = run_log.drain()[0]
    assert window.packed_rows == 1
    short, long = done.receipt.lines
    assert short.padded_tokens + long.padded_tokens == window.computed_tokens < 2 * 24
    assert (short.padded_tokens, long.padded_tokens) >= (5, 24)


async def test_a_request_that_has_ended_leaves_nothing_behind(rig: Rig) -> None:
    engine, gate, _ = rig
    hosted = engine.hosted("fp32")

    async def each_end() -> None:
        gate.entered.clear()
        gate.is_open.clear()
        running = asyncio.create_task(engine.predict([IDS, IDS], hosted))
        await until_running(gate)
        waiting = asyncio.create_task(engine.predict([IDS] * 3, hosted))
        await until_queued(engine)
        for kind, deadline_ns in ((OverloadedError, None), (ExpiredError, time.monotonic_ns())):
            with pytest.raises(kind) as refused:
                await engine.predict(
                    [IDS] * (2 if deadline_ns is None else 1), hosted, Order(deadline_ns=deadline_ns)
                )
            failure_of(refused.value)  # where every error's way ends
            del refused
        waiting.cancel()
        await asyncio.wait((waiting,))  # the device would take it meanwhile
        gate.is_open.set()
        await running

    await each_end()
    with unreachable() as found:
        await each_end()
    kinds = (Request, QueuedSequence, np.ndarray, OverloadedError, ExpiredError)
    assert not [left for left in found if isinstance(left, kinds)]
