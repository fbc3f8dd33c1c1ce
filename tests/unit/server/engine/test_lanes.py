"""One variant on two lanes: both work, and one of them fails under its requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.models import save_classifier
from wattserve_server.energy.costlaw import LawView
from wattserve_server.energy.receipt import ACCELERATOR, Outcome
from wattserve_server.engine import lane as lanes
from wattserve_server.engine import roster
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.engine import Engine, EngineLimits, Metering
from wattserve_server.engine.lane import BatchResult, Lane, RunLog
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import Answer, QueuedSequence
from wattserve_server.engine.roster import LoadingRules
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import Choice, choose
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.errors import LaneLostError

IDS = np.array([2, 4, 6, 3], dtype=np.int64)
DEVICES = torch.device("cpu", 0), torch.device("cpu", 1)
LIMITS = BatchLimits(max_sequences=2, max_tokens=256)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    return load_model(str(folder), task_named("sequence-classification"))


class Rig:
    """Batches of two sequences, which a test can hold, or have end the thread of their lane."""

    def __init__(self, model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_died = asyncio.Event()
        self.run_logs = [RunLog(), RunLog()]
        loop = asyncio.get_running_loop()

        def died(error: Exception) -> None:
            loop.call_soon_threadsafe(self.has_died.set)

        laws: Any = {ACCELERATOR: SimpleNamespace(law=LawView({}))}
        self.engine = Engine(
            model,
            Materials(model.weights),
            choose("fp32", DEVICES[0], others=DEVICES[1:]),
            "fp32",
            LoadingRules(is_verified=False, threads=1),
            EngineLimits(dict.fromkeys(DEVICES, LIMITS), max_queue=8, max_request=8),
            ReceiptBook(60.0, 100, lambda receipt: None),
            {device: Metering(log, laws) for device, log in zip(DEVICES, self.run_logs, strict=True)},
            lambda *result: None,
            died,
        )
        self.is_open = threading.Event()
        self.failing: set[str] = set()
        self.entered = threading.Semaphore(0)
        run_part = Lane._run_part

        def held(
            lane: Lane, variant: Variant, part: list[QueuedSequence], is_told: bool
        ) -> tuple[BatchResult, str]:
            self.entered.release()
            assert self.is_open.wait(30)
            if lane.device in self.failing:
                lane.run_log.start()
                raise RuntimeError("planted")
            return run_part(lane, variant, part, is_told)

        monkeypatch.setattr(Lane, "_run_part", held)

    def ask(self, count: int) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.engine.predict([IDS] * count, self.engine.hosted("fp32")))

    async def until_both_run(self) -> None:
        for _ in DEVICES:
            assert await asyncio.to_thread(self.entered.acquire, timeout=30)


@pytest.fixture
async def rig(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    made = Rig(model, monkeypatch)
    made.engine.start()
    await made.engine.loader.load("fp32")
    for log in made.run_logs:
        log.drain()  # the warm-up's windows
    yield made
    made.is_open.set()
    await asyncio.to_thread(made.engine.stop)


async def test_each_device_runs_a_copy_of_its_own(rig: Rig) -> None:
    resident = rig.engine.hosted("fp32").resident
    assert resident is not None
    modules = [resident.on(str(device)).built.module for device in DEVICES]
    assert modules[0] is not modules[1]
    assert [variant.device for variant in resident.variants] == list(DEVICES)
    assert rig.engine.roster.in_memory(DEVICES[1]) == [resident.variants[1]]


async def test_requests_that_come_together_run_on_both(rig: Rig) -> None:
    asked = [rig.ask(2) for _ in DEVICES]
    await rig.until_both_run()
    rig.is_open.set()
    answers = await asyncio.gather(*asked)
    assert sorted(answer.receipt.device for answer in answers) == ["cpu:0", "cpu:1"]
    for answer in answers:
        (window,) = rig.run_logs[int(answer.receipt.device[-1])].drain()[0]
        assert list(window.lines) == answer.receipt.lines
    one, other = (answer.rows for answer in answers)
    assert np.allclose(one, other, atol=1e-5)


async def test_a_lane_that_fails_loses_its_own_requests_and_the_other_goes_on(rig: Rig) -> None:
    rig.failing.add("cpu:1")
    asked = [rig.ask(3) for _ in DEVICES]  # of each two sequences run, and one waits
    await rig.until_both_run()
    rig.is_open.set()
    lost, kept = sorted(
        await asyncio.gather(*asked, return_exceptions=True), key=lambda it: isinstance(it, Answer)
    )
    assert isinstance(lost, LaneLostError)
    assert isinstance(kept, Answer)
    assert str(lost) == (
        "device cpu:1 has failed and takes no more work (RuntimeError); others go on: send the request again"
    )
    receipt = rig.engine.book.get(lost.receipt_id)
    (window,), until_ns = rig.run_logs[1].drain()
    assert (receipt.device, receipt.outcome, receipt.variant) == ("cpu:1", Outcome.FAILED, window.variant)
    assert list(window.lines) == [line for line in receipt.lines if line.windows]
    assert until_ns > window.end_ns > window.start_ns  # nothing holds up the settlement of what follows
    again = await asyncio.gather(*(rig.ask(2) for _ in range(4)))
    assert {kept.receipt.device, *(answer.receipt.device for answer in again)} == {"cpu:0"}
    await rig.engine.until_idle()
    assert not rig.has_died.is_set()


async def test_nothing_is_loaded_on_a_lane_that_has_failed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.failing.add("cpu:1")
    asked = [rig.ask(2) for _ in DEVICES]
    await rig.until_both_run()
    rig.is_open.set()
    await asyncio.gather(*asked, return_exceptions=True)
    assert rig.engine.lanes[DEVICES[1]].why_lost
    assert rig.engine.hosted("fp32").reason == rig.engine.lanes[DEVICES[1]].why_lost
    await rig.engine.loader.unload("fp32")
    built = list[torch.device]()

    def build(model: LoadedModel, choice: Choice, materials: Materials) -> Variant:
        built.append(choice.device)
        return build_variant(model, choice, materials)

    monkeypatch.setattr(roster, "build_variant", build)
    resident = await rig.engine.loader.load("fp32")
    assert [variant.device for variant in resident.variants] == built == [DEVICES[0]]
    assert (await rig.ask(2)).receipt.device == "cpu:0"


async def test_a_chore_of_a_lane_that_fails_ends(rig: Rig) -> None:
    rig.failing.add("cpu:1")
    asked = [rig.ask(2) for _ in DEVICES]
    await rig.until_both_run()
    chore = asyncio.create_task(rig.engine.lanes[DEVICES[1]].do(lambda: 1))
    await asyncio.sleep(0)
    rig.is_open.set()
    with pytest.raises(LaneLostError):
        await chore
    await asyncio.gather(*asked, return_exceptions=True)


async def test_where_no_lane_is_left_the_server_is_told(rig: Rig) -> None:
    rig.failing.update(map(str, DEVICES))
    asked = [rig.ask(2) for _ in DEVICES]
    await rig.until_both_run()
    rig.is_open.set()
    done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(done.pop().exception(), LaneLostError)
    assert await asyncio.wait_for(rig.has_died.wait(), 30)
    for task in waiting:
        task.cancel()


async def test_a_device_that_answers_no_more_ends_its_lane(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that fails on a device that works is the batch's own failure, and only there is it tried again
    in parts."""
    tried = []

    def broken(device: torch.device) -> None:
        if device == DEVICES[1]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def fails(variant: Variant, *_: object) -> None:
        tried.append(variant.device)
        raise ValueError

    monkeypatch.setattr(lanes, "check_answers", broken)
    monkeypatch.setattr(Variant, "run", fails)
    asked = [rig.ask(2) for _ in DEVICES]
    await rig.until_both_run()
    rig.is_open.set()
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(type(error).__name__ for error in errors) == ["InferenceError", "LaneLostError"]
    assert [bool(lane.why_lost) for lane in rig.engine.lanes.values()] == [False, True]
    assert [tried.count(device) for device in DEVICES] == [3, 1]
