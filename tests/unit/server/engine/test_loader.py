"""Loading and unloading while requests come in, on one device and on two."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.models import save_classifier
from tests.fixtures.short_memory import Memory, limited
from wattserve_server.energy.costlaw import Coefficients, LawView
from wattserve_server.energy.receipt import ACCELERATOR, Window
from wattserve_server.energy.trials import TrialPlan
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.engine import Engine, EngineLimits, Metering
from wattserve_server.engine.lane import RunLog
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import Answer, Order
from wattserve_server.engine.roster import HostedVariant, LoadingRules, Readiness
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.port import Built, Kind, Materials, Support
from wattserve_server.engine.weights import tensor_bytes
from wattserve_server.errors import ConfigError, ExpiredError, NotFound, NotPossibleHere, OutOfMemoryError

CPU = torch.device("cpu")
OTHER = torch.device("cpu", 0)
"""As good as another device: torch tells it from CPU, and so must everything here."""

IDS = np.array([2, 4, 6, 3], dtype=np.int64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    return load_model(str(folder), task_named("sequence-classification"))


@dataclass
class Rig:
    engine: Engine
    run_logs: dict[torch.device, RunLog]
    known: dict[str, Coefficients]  # the laws, as the meters tell them

    def windows(self, device: torch.device) -> list[Window]:
        """Of the batches that ran on a device since the last look."""
        return self.run_logs[device].drain()[0]

    def ran(self, device: torch.device) -> list[str]:
        """The variants of the batches that ran on a device since the last look, warm-up included."""
        return [window.variant for window in self.windows(device)]


@asynccontextmanager
async def rig(
    model: LoadedModel, *choices: Choice, trials: TrialPlan | None = None, **rules: Any
) -> AsyncIterator[Rig]:
    """trials: of the first choice's device. Its meter knows every variant's law."""
    devices = dict.fromkeys(choice.device for choice in choices)
    run_logs = {device: RunLog() for device in devices}
    limits = BatchLimits(max_sequences=2, max_tokens=256)
    known = {choice.name: Coefficients(0.0, 1e-6) for choice in choices}
    laws = LawView(known)
    engine = Engine(
        model,
        Materials(model.weights),
        choices,
        choices[0].name,
        LoadingRules(**{"is_verified": False, **rules}),
        EngineLimits(dict.fromkeys(devices, limits), max_queue=100, max_request=4),
        ReceiptBook(60.0, 100, lambda receipt: None),
        {
            device: Metering(
                log, {ACCELERATOR: SimpleNamespace(law=laws)}, trials if device == choices[0].device else None
            )
            for device, log in run_logs.items()
        },
        lambda *result: None,
        lambda error: None,
    )
    engine.start()
    try:
        yield Rig(engine, run_logs, known)
    finally:
        await asyncio.to_thread(engine.stop)


async def until_state(hosted: HostedVariant, state: Readiness) -> None:
    for _ in range(60_000):
        if hosted.state is state:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"it stays {hosted.state.value}")


def choice(name: str, device: torch.device = CPU, kind: Kind | None = None) -> Choice:
    return Choice(name, kind or KINDS[name.partition("@")[0]], device)


def broken(error: Callable[[], Exception]) -> Kind:
    def build(materials: Materials, device: torch.device) -> Built:
        raise error()

    return replace(KINDS["fp32"], name="broken", build=build)


async def test_what_is_not_loaded_is_refused_and_says_how_to_load_it(model: LoadedModel) -> None:
    async with rig(model, choice("fp32")) as it:
        with pytest.raises(NotPossibleHere, match="variant 'fp32' is not loaded: LoadVariant"):
            await it.engine.predict([IDS], it.engine.hosted("fp32"))
        await it.engine.loader.load("fp32")
        assert (await it.engine.predict([IDS], it.engine.hosted("fp32"))).rows[0] is not None


async def test_a_deadline_holds_while_the_variant_is_loaded(model: LoadedModel) -> None:
    may_go_on = threading.Event()

    def build(materials: Materials, device: torch.device) -> Built:
        may_go_on.wait(timeout=60)
        return KINDS["fp32"].build(materials, device)

    slow = replace(KINDS["fp32"], name="slow", build=build)
    async with rig(model, choice("slow", kind=slow), is_lazy=True) as it:
        with pytest.raises(ExpiredError, match="passed while variant 'slow' was loaded"):
            await it.engine.predict(
                [IDS], it.engine.hosted("slow"), Order(deadline_ns=time.monotonic_ns() + 1_000_000)
            )
        may_go_on.set()
        assert (await it.engine.predict([IDS], it.engine.hosted("slow"))).rows[0] is not None


async def test_a_deadline_holds_while_the_device_is_busy(model: LoadedModel) -> None:
    may_go_on = threading.Event()
    async with rig(model, choice("fp32")) as it:
        await it.engine.loader.load("fp32")
        is_busy = threading.Event()

        def chore() -> None:
            is_busy.set()
            may_go_on.wait(timeout=60)

        it.engine.lanes[CPU].batcher.add_chore(chore)
        await asyncio.to_thread(is_busy.wait, 60)
        try:
            with pytest.raises(ExpiredError, match="waited in the queue"):
                await it.engine.predict(
                    [IDS], it.engine.hosted("fp32"), Order(deadline_ns=time.monotonic_ns() + 50_000_000)
                )
            assert it.engine.queued == 0
        finally:
            may_go_on.set()
        await it.engine.until_idle()


async def test_a_lazy_server_loads_what_is_asked_for_once_however_many_ask(model: LoadedModel) -> None:
    async with rig(model, choice("fp32"), choice("bf16"), is_lazy=True) as it:
        assert [entry.state for entry in it.engine.roster] == [Readiness.UNLOADED, Readiness.UNLOADED]
        done = await asyncio.gather(*(it.engine.predict([IDS], it.engine.hosted("fp32")) for _ in range(5)))
        assert all(request.rows[0] is not None for request in done)
        assert [entry.state for entry in it.engine.roster] == [Readiness.READY, Readiness.UNLOADED]


async def test_a_caller_who_leaves_does_not_stop_the_loading(model: LoadedModel) -> None:
    async with rig(model, choice("fp32"), is_lazy=True) as it:
        impatient = asyncio.create_task(it.engine.predict([IDS], it.engine.hosted("fp32")))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        await it.engine.loader.load("fp32")
        assert it.engine.roster.named("fp32").state is Readiness.READY
        assert it.engine.book.pending == 0


async def test_unloading_answers_what_was_accepted_and_frees_the_memory(model: LoadedModel) -> None:
    async with rig(model, choice("fp32"), choice("bf16")) as it:
        loader = it.engine.loader
        module = weakref.ref((await loader.load("fp32")).variant.built.module)
        accepted = [asyncio.create_task(it.engine.predict([IDS], it.engine.hosted("fp32"))) for _ in range(8)]
        await asyncio.sleep(0)
        await loader.unload("fp32")
        assert all(task.done() and task.result().rows[0] is not None for task in accepted)
        with pytest.raises(NotPossibleHere):
            await it.engine.predict([IDS], it.engine.hosted("fp32"))
        del accepted
        await loader.load("bf16")  # the thread has moved on to something else
        gc.collect()
        assert module() is None


async def test_a_variant_can_come_back_and_answers_as_before(model: LoadedModel) -> None:
    async with rig(model, choice("fp32")) as it:
        await it.engine.loader.load("fp32")
        before = (await it.engine.predict([IDS], it.engine.hosted("fp32"))).rows[0]
        await it.engine.loader.unload("fp32")
        await it.engine.loader.load("fp32")
        after = (await it.engine.predict([IDS], it.engine.hosted("fp32"))).rows[0]
        assert before is not None
        np.testing.assert_array_equal(before, after)


async def test_a_name_that_the_server_was_not_started_with_is_not_found(model: LoadedModel) -> None:
    async with rig(model, choice("fp32")) as it:
        for call in (it.engine.loader.load, it.engine.loader.unload):
            with pytest.raises(NotFound, match="unknown variant 'int8'; this server has fp32"):
                await call("int8")
        with pytest.raises(NotFound, match="unknown variant 'int8'; this server has fp32"):
            it.engine.hosted("int8")


async def test_out_of_memory_fails_one_variant_and_the_others_answer(model: LoadedModel) -> None:
    full = broken(lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    async with rig(model, choice("fp32"), choice("big", kind=full), is_lazy=True) as it:
        with pytest.raises(NotPossibleHere, match="'big' could not be loaded: cpu is out of memory: CUDA"):
            await it.engine.predict([IDS], it.engine.hosted("big"))
        entry = it.engine.roster.named("big")
        assert (entry.state, entry.variant) == (Readiness.FAILED, None)
        with pytest.raises(NotPossibleHere, match="out of memory"):  # without trying again for every request
            await it.engine.predict([IDS], it.engine.hosted("big"))
        assert (await it.engine.predict([IDS], it.engine.hosted("fp32"))).rows[0] is not None
        with pytest.raises(OutOfMemoryError):  # but again when told to
            await it.engine.loader.load("big")


async def test_an_allocator_without_a_class_for_it_is_understood_too(model: LoadedModel) -> None:
    words = "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to"
    full = broken(lambda: RuntimeError(words))
    async with rig(model, choice("big", kind=full)) as it:
        with pytest.raises(OutOfMemoryError, match="DefaultCPUAllocator"):
            await it.engine.loader.load("big")


async def test_the_memory_limit_is_respected_before_anything_is_made(model: LoadedModel) -> None:
    one = tensor_bytes(model.weights.copy(CPU, torch.float32))
    async with rig(model, choice("fp32"), choice("bf16"), memory_limit=one + one // 4) as it:
        await it.engine.loader.load("fp32")
        with pytest.raises(ConfigError, match=r"--max-model-memory is .*; in memory: fp32; unload one"):
            await it.engine.loader.load("bf16")
        await it.engine.loader.unload("fp32")
        await it.engine.loader.load("bf16")
        assert [variant.name for variant in it.engine.roster.ready] == ["bf16"]


async def test_what_two_variants_share_counts_once_against_the_limit(model: LoadedModel) -> None:
    weights = model.weights
    both = [KINDS[name].build(Materials(weights), CPU).module for name in ("fp32", "int8-simulated")]
    limit = tensor_bytes(*both)
    assert limit < tensor_bytes(both[0]) + tensor_bytes(both[1])
    del both
    async with rig(model, choice("fp32"), choice("int8-simulated"), memory_limit=limit) as it:
        await it.engine.loader.load("fp32")
        await it.engine.loader.load("int8-simulated")
        assert len(it.engine.roster.ready) == 2


async def test_two_devices_run_their_own_variants_and_meter_them_apart(model: LoadedModel) -> None:
    async with rig(model, choice("fp32"), choice("bf16"), choice("fp32@other", OTHER)) as it:
        for name in it.engine.roster.names:
            await it.engine.loader.load(name)
        built_on_the_host = [window.variant for window in it.windows(CPU)]
        assert set(built_on_the_host) == set(it.engine.roster.names)
        assert built_on_the_host.count("fp32@other") == 1  # and its warm-up is elsewhere
        assert set(it.ran(OTHER)) == {"fp32@other"}
        names = ["fp32", "fp32@other", "bf16", "fp32@other"]
        done = await asyncio.gather(
            *(it.engine.predict([IDS, IDS], it.engine.hosted(name)) for name in names)
        )
        assert [request.receipt.device for request in done] == ["cpu", "cpu:0", "cpu", "cpu:0"]
        assert sorted(it.ran(CPU)) == ["bf16", "fp32"]
        assert it.ran(OTHER) == ["fp32@other"] * 2


async def test_a_variant_is_calibrated_when_it_is_loaded_where_the_device_tells_joules(
    model: LoadedModel,
) -> None:
    plan = TrialPlan(((1, 8), (2, 64)), trial_s=0.001, pause_s=0.001)
    async with rig(model, choice("fp32"), choice("fp32@other", OTHER), trials=plan) as it:
        for name in it.engine.roster.names:
            await it.engine.loader.load(name)
        trials = [window for window in it.windows(CPU) if not window.is_first_run]
        assert {(len(window.lengths), *window.lengths[:1]) for window in trials} == set(plan.shapes)
        assert all(window.is_warmup for window in trials)
        assert all(window.is_first_run for window in it.windows(OTHER))


async def test_building_is_in_a_window_of_the_variants_warm_up_on_its_device_and_on_the_host(
    model: LoadedModel,
) -> None:
    built_ns: list[int] = []

    def build(materials: Materials, device: torch.device) -> Built:
        built_ns.append(time.monotonic_ns())
        return KINDS["fp32"].build(materials, device)

    watched = replace(KINDS["fp32"], name="watched", build=build)
    async with rig(model, choice("fp32"), choice("watched", OTHER, watched)) as it:
        await it.engine.loader.load("watched")
        for device in (CPU, OTHER):
            (around,) = [
                window for window in it.windows(device) if window.start_ns <= built_ns[-1] <= window.end_ns
            ]
            assert (around.variant, around.is_first_run, around.lines) == ("watched", True, ())


async def test_a_variant_serves_once_its_law_is_known(model: LoadedModel) -> None:
    plan = TrialPlan(((1, 8),), trial_s=0.001, pause_s=0.001)
    async with rig(model, choice("fp32"), trials=plan, is_lazy=True) as it:
        law = it.known.pop("fp32")
        hosted = it.engine.hosted("fp32")
        asking = asyncio.create_task(it.engine.predict([IDS], hosted))
        await until_state(hosted, Readiness.CALIBRATING)
        assert hosted.variant is None
        assert not asking.done()
        it.known["fp32"] = law
        assert (await asking).rows[0] is not None
        await until_state(hosted, Readiness.READY)


async def test_requests_of_what_is_being_loaded_wait_for_it_on_a_server_that_is_not_lazy_too(
    model: LoadedModel,
) -> None:
    async with rig(model, choice("fp32"), choice("bf16")) as it:
        it.engine.loader.begin("fp32")
        it.engine.loader.begin("bf16")
        assert [entry.state for entry in it.engine.roster] == [Readiness.LOADING] * 2
        answer = await it.engine.predict([IDS], it.engine.hosted("bf16"))
        assert answer.receipt.variant == "bf16"
        assert it.engine.roster.named("fp32").state is Readiness.READY  # first come, first loaded


async def test_what_is_loaded_together_is_read_once(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "tiny")
    model = load_model(str(folder), task_named("sequence-classification"))
    async with rig(model, choice("fp32"), choice("bf16")) as it:
        with it.engine.loader.several():
            await it.engine.loader.load("fp32")
            source = weakref.ref(model.weights.module)
            await it.engine.loader.load("bf16")
            assert source() is model.weights.module
        gc.collect()
        assert source() is None


async def test_what_cannot_be_made_of_a_model_is_known_before_anything_is_made(model: LoadedModel) -> None:
    odd = broken(lambda: ConfigError("most of this model would stay as it is"))
    unforeseen = broken(lambda: RuntimeError("no numbers to look at"))
    async with rig(model, choice("fp32"), choice("odd", kind=odd), choice("rare", kind=unforeseen)) as it:
        with pytest.raises(ConfigError, match="most of this model would stay"):
            await it.engine.loader.check(["fp32", "odd"])
        await it.engine.loader.check(["fp32", "rare"])
        assert it.ran(CPU) == []


async def test_what_does_not_fit_together_is_known_before_anything_is_made(model: LoadedModel) -> None:
    weights = model.weights
    both = [KINDS[name].build(Materials(weights), CPU).module for name in ("fp32", "int8-simulated")]
    needed = tensor_bytes(*both)
    del both
    names = ["fp32", "int8-simulated"]
    async with rig(model, *map(choice, names), memory_limit=needed) as it:
        await it.engine.loader.check(names)
    async with rig(model, *map(choice, names), memory_limit=needed - 1) as it:
        with pytest.raises(ConfigError, match=r"the weights of fp32, int8-simulated would take .* on cpu"):
            await it.engine.loader.check(names)


async def test_what_is_given_up_is_not_loaded(model: LoadedModel) -> None:
    async with rig(model, choice("fp32"), choice("bf16")) as it:
        loads = [it.engine.loader.begin(name) for name in it.engine.roster.names]
        it.engine.loader.give_up()
        outcomes = await asyncio.gather(*loads, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 2
        assert it.engine.roster.ready == []


async def test_a_devices_variants_hold_no_tensor_of_another_device(model: LoadedModel) -> None:
    meta = torch.device("meta")
    placed = KINDS["int8"].build(Materials(model.weights), meta).module
    places = {tensor.device.type for tensor in (*placed.parameters(), *placed.buffers())}
    assert places == {"meta"}


async def test_a_variant_that_the_profiler_finds_out_is_not_served(model: LoadedModel) -> None:
    says_int8 = Support(True, "it says so", "int8 GEMM", "fp32", "int8")
    impostor = replace(KINDS["int8-simulated"], name="int8", proxy="", support=lambda device: says_int8)
    async with rig(model, choice("int8", kind=impostor), is_verified=True) as it:
        with pytest.raises(ConfigError, match="variant 'int8' declares int8"):
            await it.engine.loader.load("int8")
        assert it.engine.roster.named("int8").state is Readiness.FAILED
    async with rig(model, choice("int8", kind=impostor)) as it:
        await it.engine.loader.load("int8")
        receipt = (await it.engine.predict([IDS], it.engine.hosted("int8"))).receipt
        assert receipt.is_unverified


async def test_the_receipt_of_a_proxy_says_what_really_ran(model: LoadedModel) -> None:
    async with rig(model, choice("int8-simulated"), choice("fp32")) as it:
        for name in it.engine.roster.names:
            await it.engine.loader.load(name)
        assert (await it.engine.predict([IDS], it.engine.hosted("int8-simulated"))).receipt.proxy
        assert not (await it.engine.predict([IDS], it.engine.hosted("fp32"))).receipt.proxy


async def test_a_request_that_waited_for_a_variant_unloaded_meanwhile_is_refused_and_kills_nobody(
    model: LoadedModel,
) -> None:
    async with rig(model, choice("fp32"), choice("bf16")) as it:
        loading = asyncio.create_task(it.engine.loader.load("fp32"))
        await asyncio.sleep(0)
        unloading = asyncio.create_task(it.engine.loader.unload("fp32"))
        await asyncio.sleep(0)
        asking = asyncio.create_task(it.engine.predict([IDS], it.engine.hosted("fp32")))
        outcomes = await asyncio.gather(loading, unloading, asking, return_exceptions=True)
        assert isinstance(outcomes[2], NotPossibleHere | Answer)
        await it.engine.loader.load("bf16")  # the thread is alive
        assert (await it.engine.predict([IDS], it.engine.hosted("bf16"))).rows[0] is not None


async def test_an_unloading_goes_on_when_its_caller_leaves(model: LoadedModel) -> None:
    async with rig(model, choice("fp32")) as it:
        resident = await it.engine.loader.load("fp32")
        resident.enter()  # a request that takes its time
        unloading = asyncio.create_task(it.engine.loader.unload("fp32"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        unloading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unloading
        assert it.engine.roster.in_memory(CPU) == [resident.variant]
        resident.leave()
        await it.engine.loader.unload("fp32")
        assert it.engine.roster.in_memory(CPU) == []


async def test_a_variant_that_still_answers_counts_against_the_limit(model: LoadedModel) -> None:
    one = tensor_bytes(model.weights.copy(CPU, torch.float32))
    async with rig(model, choice("fp32"), choice("bf16"), memory_limit=one + one // 4) as it:
        resident = await it.engine.loader.load("fp32")
        resident.enter()
        unloading = asyncio.create_task(it.engine.loader.unload("fp32"))
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="in memory: fp32; unload one"):
            await it.engine.loader.load("bf16")
        resident.leave()
        await unloading
        await it.engine.loader.load("bf16")


async def test_a_variant_loaded_again_does_not_keep_the_old_one_from_leaving(model: LoadedModel) -> None:
    async with rig(model, choice("fp32"), is_lazy=True) as it:
        old = await it.engine.loader.load("fp32")
        old.enter()
        unloading = asyncio.create_task(it.engine.loader.unload("fp32"))
        await asyncio.sleep(0)
        new = await it.engine.loader.load("fp32")
        new.enter()  # steady traffic on the new one
        old.leave()
        await asyncio.wait_for(unloading, 30)
        assert it.engine.roster.in_memory(CPU) == [new.variant]
        new.leave()


@pytest.mark.parametrize("is_verified", [True, False], ids=["while verified", "while warmed up"])
async def test_running_out_of_memory_after_building_is_told_as_that(
    model: LoadedModel, is_verified: bool
) -> None:
    def build(materials: Materials, device: torch.device) -> Built:
        built = KINDS["fp32"].build(materials, device)

        def too_much(module: torch.nn.Module, inputs: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        built.module.register_forward_pre_hook(too_much)
        return built

    hungry = replace(KINDS["fp32"], name="hungry", build=build)
    async with rig(model, choice("hungry", kind=hungry), is_verified=is_verified) as it:
        with pytest.raises(OutOfMemoryError, match="cpu is out of memory: "):
            await it.engine.loader.load("hungry")


async def test_whatever_building_raises_is_a_reason_and_not_a_crash(model: LoadedModel) -> None:
    odd = broken(lambda: RuntimeError("no kernel image is available"))
    async with rig(model, choice("odd", kind=odd), is_lazy=True) as it:
        with pytest.raises(NotPossibleHere, match="it cannot run on cpu: RuntimeError: no kernel image"):
            await it.engine.predict([IDS], it.engine.hosted("odd"))


async def test_a_folder_that_changed_meanwhile_is_not_mixed_with_what_was_read_before(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "tiny")
    model = load_model(str(folder), task_named("sequence-classification"))
    async with rig(model, choice("fp32"), choice("bf16")) as it:
        await it.engine.loader.load("fp32")
        (folder / "model.safetensors").touch()
        with pytest.raises(ConfigError, match="has changed since it was opened: start the server again"):
            await it.engine.loader.load("bf16")
        assert (await it.engine.predict([IDS], it.engine.hosted("fp32"))).rows[0] is not None


async def test_a_variant_whose_fullest_batch_does_not_fit_gets_smaller_batches(
    model: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory(most_tokens=100)
    small = limited(KINDS["fp32"], memory.allocate)
    longest = np.full(64, 5, dtype=np.int64)
    async with rig(model, choice("fp32", kind=small)) as it:
        await it.engine.loader.load("fp32")
        assert 2 * 64 in memory.attempts  # the warm-up has tried
        assert "its batches have no more than half of that" in caplog.text
        memory.attempts.clear()
        done = await it.engine.predict([longest, longest], it.engine.hosted("fp32"))
        assert all(row is not None for row in done.rows)
        assert memory.attempts == [64, 64]


async def test_a_variant_that_cannot_run_its_longest_sequence_is_not_loaded(model: LoadedModel) -> None:
    small = limited(replace(KINDS["fp32"], name="small"), Memory(most_tokens=20).allocate)
    async with rig(model, choice("small", kind=small)) as it:
        with pytest.raises(OutOfMemoryError, match="cpu is out of memory"):
            await it.engine.loader.load("small")
