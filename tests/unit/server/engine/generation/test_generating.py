"""The engine in this process: generations that join, leave, lose their place, and what they are charged."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import cache
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.language_models import VOCABULARY, generated, language_model, save_language_model
from wattserve_server.energy.costlaw import Coefficients, LawView
from wattserve_server.energy.receipt import ACCELERATOR, Outcome, Role, Window
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.engine import Engine, EngineLimits, Metering
from wattserve_server.engine.generation import lane as generating
from wattserve_server.engine.generation import stepper
from wattserve_server.engine.generation.cache import BLOCK
from wattserve_server.engine.generation.lane import StepLane, steps_of
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.port import FinishReason, Sampling, TokenIds, Wish
from wattserve_server.engine.generation.running import RunningGeneration
from wattserve_server.engine.generation.text import TextStream
from wattserve_server.engine.lane import SPLIT_FAILURE, RunLog
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import Order
from wattserve_server.engine.roster import LoadingRules
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import choose
from wattserve_server.engine.variants.phase import decoding_rows
from wattserve_server.engine.variants.port import Materials
from wattserve_server.errors import ExpiredError, InferenceError, InvalidRequest, LaneLostError, SpentError
from wattserve_server.service.spent import spent_on

CPU = torch.device("cpu")
LANES = torch.device("cpu", 0), torch.device("cpu", 1)
LAW = LawView({"fp32": Coefficients(0.001, 1e-5, per_logits_j=1e-4, per_read_j=1e-6)})
STEP_UJ = 1_300  # of one that decodes alone, at the most
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, width, fp32


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[TokenIds]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCABULARY, rng.integers(2, longest)) for _ in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_language_model(tmp_path_factory.mktemp("models") / "tiny")
    return load_model(str(folder), task_named("text-generation"))


class Rig:
    def __init__(
        self,
        model: LoadedModel,
        cache_tokens: int,
        members: int,
        chunk: int,
        devices: tuple[torch.device, ...] = (CPU,),
    ) -> None:
        self.run_logs = [RunLog() for _ in devices]
        self.run_log = self.run_logs[0]
        limits = BatchLimits(members, chunk)
        loop = asyncio.get_running_loop()
        self.died: asyncio.Future[Exception] = loop.create_future()

        def died(error: Exception) -> None:
            loop.call_soon_threadsafe(self.died.set_result, error)

        self.engine = Engine(
            model,
            Materials(model.weights),
            choose("fp32", devices[0], others=devices[1:]),
            "fp32",
            LoadingRules(is_verified=False),
            EngineLimits(
                dict.fromkeys(devices, limits), 64, max_request=8, cache_bytes=cache_tokens * TOKEN_BYTES
            ),
            ReceiptBook(60.0, 100, lambda receipt: None),
            {
                device: Metering(run_log, {ACCELERATOR: SimpleNamespace(law=LAW)})
                for device, run_log in zip(devices, self.run_logs, strict=True)
            },
            lambda *result: None,
            died,
        )

    async def generate(self, prompt: TokenIds, new: int = 20, **more: Any) -> RunningGeneration:
        order = Order(deadline_ns=more.pop("deadline_ns", None))
        return await self.engine.generate(prompt, self.engine.hosted("fp32"), Wish(new, **more), order)

    @property
    def held_bytes(self) -> int:
        return sum(used_bytes for used_bytes, _ in self.engine.caches.bounds.values())


@pytest.fixture
async def rig(model: LoadedModel, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """By its marker's figures: tokens of cache, members at once, tokens of a step; and its devices."""
    made = Rig(model, *getattr(request, "param", (4096, 8, 32)))
    made.engine.start()
    await made.engine.loader.load("fp32")
    for run_log in made.run_logs:
        run_log.drain()
    yield made
    await asyncio.to_thread(made.engine.stop)


async def read(generation: RunningGeneration, into: list[int] | None = None) -> list[int]:
    got = [] if into is None else into
    async for piece in generation:
        got += piece.token_ids
    return got


@cache
def alone(prompt: tuple[int, ...], new: int) -> list[int]:
    return generated(language_model("llama"), list(prompt), new)


def expected(prompt: TokenIds, new: int) -> list[int]:
    return alone(tuple(prompt.tolist()), new)


async def test_one_generates_what_transformers_does_and_says_how_it_ended(rig: Rig) -> None:
    (prompt,) = prompts(1)
    generation = await rig.generate(prompt)
    assert await read(generation) == expected(prompt, 20)
    ended = generation.ended
    assert (ended.reason, ended.prompt_tokens, ended.output_tokens) == (FinishReason.LENGTH, len(prompt), 20)
    assert 0 < ended.queue_ns < ended.first_token_ns
    assert generation.receipt.outcome is Outcome.COMPLETED
    assert [(line.role, line.tokens) for line in generation.receipt.lines] == [
        (Role.PROMPT, len(prompt)), (Role.OUTPUT, 19)
    ]  # fmt: skip
    assert [line.chosen for line in generation.receipt.lines] == [1, 19]
    assert rig.held_bytes == 0


@pytest.mark.parametrize(
    "rig", [(4096, 8, 32), (4096, 3, 8), (4 * BLOCK, 8, 16), (3 * BLOCK, 4, 5)], indirect=True, ids=str
)
async def test_in_any_company_it_answers_the_same_also_where_members_lose_their_places(rig: Rig) -> None:
    given = prompts(7, seed=3)
    running = []
    for prompt in given:
        running.append(asyncio.create_task(read(await rig.generate(prompt, new=30))))
        await asyncio.sleep(0.003)
    answers = await asyncio.gather(*running)
    assert answers == [expected(prompt, 30) for prompt in given]
    assert rig.held_bytes == 0


@pytest.mark.parametrize("rig", [(3 * BLOCK, 8, 64)], indirect=True)
async def test_what_a_preemption_lost_is_computed_again_on_a_line_of_its_own(rig: Rig) -> None:
    given = [prompt[: BLOCK - 10] for prompt in prompts(3, seed=5, longest=90)]
    given = [np.resize(prompt, BLOCK - 10) for prompt in given]
    running = [await rig.generate(prompt, new=30) for prompt in given]
    answers = await asyncio.gather(*(read(generation) for generation in running))
    assert answers == [expected(prompt, 30) for prompt in given]
    preempted = [generation for generation in running if generation.ended.preemptions]
    assert preempted
    for generation in running:
        again = [line for line in generation.receipt.lines if line.role is Role.RECOMPUTED]
        assert bool(again) == (generation in preempted)
        output = next(line for line in generation.receipt.lines if line.role is Role.OUTPUT)
        assert generation.receipt.lines[0].tokens == BLOCK - 10
        assert output.tokens == 29
        if again:
            assert again[0].tokens >= BLOCK  # it lost its place for want of a second block
    windows, _ = rig.run_log.drain()
    check_windows(windows)


def check_windows(windows: Sequence[Window]) -> None:
    """They do not overlap, and each charges every line for what it says that it did."""
    for before, after in pairwise(windows):
        assert before.end_ns <= after.start_ns
    for window in windows:
        assert len(window.lines) == len(window.work) == len(window.lengths)
        assert tuple(work.computed for work in window.work) == window.lengths
    assert sum(window.sequences for window in windows) == 3


async def test_who_leaves_frees_his_place_at_once_and_is_charged_for_what_ran(rig: Rig) -> None:
    stays, leaves = prompts(2, seed=7)
    staying = asyncio.create_task(read(await rig.generate(stays, new=40)))
    leaving = await rig.generate(leaves, new=200)
    async for _ in leaving:
        break
    await leaving.aclose()
    assert await staying == expected(stays, 40)
    await rig.engine.until_idle()
    assert leaving.receipt.outcome is Outcome.CANCELLED
    assert leaving.receipt.ran
    assert rig.held_bytes == 0


@pytest.mark.parametrize("rig", [(4096, 8, 4)], indirect=True)
async def test_who_leaves_while_his_prompt_is_read_is_told_the_tokens_that_were(rig: Rig) -> None:
    prompt = np.resize(prompts(1)[0], 200)
    leaving = await rig.generate(prompt)
    line = leaving.receipt.lines[0]
    while not line.tokens:  # noqa: ASYNC110 - it is told to nobody
        await asyncio.sleep(0.001)
    await leaving.aclose()
    await rig.engine.until_idle()
    assert (leaving.receipt.outcome, line.chosen) == (Outcome.CANCELLED, 0)
    assert line.tokens == line.padded_tokens == sum(sum(window.lengths) for window in rig.run_log.drain()[0])
    assert 0 < line.tokens < len(prompt)
    assert spent_on(leaving.receipt)[:2] == (line.tokens, 0)


async def test_who_has_no_time_left_is_told_so_and_what_had_come_is_his(rig: Rig) -> None:
    (prompt,) = prompts(1)
    generation = await rig.generate(prompt, new=220, deadline_ns=time.monotonic_ns() + 30_000_000)
    got: list[int] = []
    with pytest.raises(ExpiredError, match=r"the deadline passed") as caught:
        await read(generation, got)
    assert got == expected(prompt, 220)[: len(got)]
    assert len(got) < 220
    if got:
        assert caught.value.receipt_id == generation.receipt.receipt_id
    assert rig.held_bytes == 0


async def test_a_slow_reader_gets_all_at_once(rig: Rig) -> None:
    (prompt,) = prompts(1)
    generation = await rig.generate(prompt)
    await rig.engine.until_idle()
    pieces = [piece async for piece in generation]
    assert [len(piece.token_ids) for piece in pieces] == [20, 0]  # the last one has the text that was held
    assert pieces[0].energy_uj == generation.receipt.energy_uj
    assert (generation.receipt.energy_uj or 0) > 0


async def test_what_it_uses_is_told_step_by_step_though_nobody_reads(rig: Rig) -> None:
    (prompt,) = prompts(1)
    generation, told = await rig.generate(prompt), list[int]()
    generation.on_used = told.append
    await generation.request.answer
    assert len(told) >= 20
    assert told == sorted(set(told))
    assert told[-1] == generation.receipt.energy_uj


@pytest.mark.parametrize("rig", [(4096, 2, 32)], indirect=True, ids=["two places"])
@pytest.mark.parametrize("is_queued", [False, True])
async def test_one_that_waits_may_be_refused_and_one_that_runs_may_not(rig: Rig, is_queued: bool) -> None:
    (prompt,) = prompts(1)
    running = [await rig.generate(prompt, new=200) for _ in range(2)]
    for generation in running:
        await anext(generation)
    waiting = await rig.generate(prompt)
    for _ in range(100_000 if is_queued else 0):
        if len(steps_of(rig.engine.lanes[CPU])):
            break
        await asyncio.sleep(0)
    error = SpentError("the budget is used up", "tenant_budget", 1.0)
    assert [generation.refuse(error) for generation in (*running, waiting)] == [False, False, True]
    with pytest.raises(SpentError):
        await anext(waiting)
    assert not waiting.receipt.ran
    assert waiting.receipt.outcome is Outcome.FAILED
    for generation in running:
        assert await read(generation)
        assert generation.ended.output_tokens == 200


async def test_it_ends_where_it_has_cost_enough(rig: Rig) -> None:
    (prompt,) = prompts(1)
    generation = await rig.generate(prompt, new=200, max_energy_uj=20_000)
    got = await read(generation)
    assert generation.ended.reason is FinishReason.ENERGY
    assert got == expected(prompt, 200)[: len(got)]
    assert 20_000 <= (generation.receipt.energy_uj or 0) < 20_000 + 2 * STEP_UJ
    assert generation.receipt.outcome is Outcome.COMPLETED
    assert rig.held_bytes == 0


def keep_busy(seconds: float) -> None:
    """The event loop that calls it."""
    time.sleep(seconds)


async def test_it_ends_no_later_where_the_event_loop_is_busy_meanwhile(rig: Rig) -> None:
    (prompt,) = prompts(1)
    generation = await rig.generate(prompt, new=200, max_energy_uj=20_000)
    async for _ in generation:
        break
    keep_busy(0.5)  # in which the lane could run all 200 steps
    await read(generation)
    assert generation.ended.reason is FinishReason.ENERGY
    assert 20_000 <= (generation.receipt.energy_uj or 0) < 20_000 + 2 * STEP_UJ


async def test_an_end_token_ends_it_and_may_be_ignored(rig: Rig) -> None:
    (prompt,) = prompts(1)
    whole = expected(prompt, 20)
    stop = frozenset((whole[7],))
    generation = await rig.generate(prompt, stop_ids=stop)
    got = await read(generation)
    assert got == whole[: whole.index(whole[7]) + 1]
    assert generation.ended.reason is FinishReason.STOP


async def test_logits_that_are_no_numbers_fail_their_own_request_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = prompts(2, seed=9)
    run = stepper.run

    def spoilt(variant: Any, prepared: Any, timed: Any = None) -> Any:
        rows = run(variant, prepared, timed)
        ids = prepared.inputs["input_ids"][0].tolist()
        for at, each in zip(prepared.rows, rows, strict=True):
            if ids[at.begin : at.end] == bad.tolist():
                each[:] = np.nan
        return rows

    monkeypatch.setattr(stepper, "run", spoilt)
    fails, holds = await rig.generate(bad), await rig.generate(good)
    assert await read(holds) == expected(good, 20)
    with pytest.raises(InferenceError, match="answered with NaN or infinity"):
        await read(fails)
    assert fails.receipt.outcome is Outcome.FAILED
    assert rig.held_bytes == 0


async def test_a_seed_draws_the_same_in_any_company(rig: Rig) -> None:
    given = prompts(4, seed=11)
    drawn = Sampling(temperature=0.8, top_k=50, top_p=0.95, seed=42)
    alone = [await read(await rig.generate(prompt, sampling=drawn)) for prompt in given]
    together = [await rig.generate(prompt, sampling=drawn) for prompt in given]
    assert await asyncio.gather(*(read(each) for each in together)) == alone
    assert len({tuple(each) for each in alone}) == 4


@pytest.mark.parametrize("rig", [(4 * BLOCK, 4, 12)], indirect=True)
async def test_a_score_that_lost_its_place_is_told_as_one_that_did_not(rig: Rig) -> None:
    (text,) = (np.resize(prompts(1, seed=13)[0], 2 * BLOCK - 8),)
    prompt = np.resize(text, BLOCK - 10)
    hosted = rig.engine.hosted("fp32")
    alone = (await rig.engine.score([text], hosted, Order())).rows[0]
    lost = False
    for _ in range(20):
        running = [await rig.generate(prompt, new=40) for _ in range(2)]
        for each in running:  # the score is admitted behind them
            await anext(aiter(each))
        scored = await rig.engine.score([text], hosted, Order())
        await asyncio.gather(*map(read, running))
        assert scored.rows[0] == pytest.approx(alone, abs=1e-4)
        lost = lost or any(line.role is Role.RECOMPUTED for line in scored.receipt.lines)
        if lost:
            break
    assert lost, "the cache has room for all"


async def test_texts_are_scored_as_the_model_reads_them(rig: Rig) -> None:
    given = prompts(3, seed=13, longest=60)
    answer = await rig.engine.score(given, rig.engine.hosted("fp32"), Order())
    module = language_model("llama")
    for prompt, row in zip(given, answer.rows, strict=True):
        with torch.inference_mode():
            logits = module(torch.from_numpy(prompt)[None]).logits[0].log_softmax(dim=-1)
        wanted = logits[torch.arange(len(prompt) - 1), torch.from_numpy(prompt[1:])]
        assert row == pytest.approx(wanted.numpy(), abs=1e-4)
    assert [line.role for line in answer.receipt.lines] == [None] * 3  # nothing comes after them
    assert rig.held_bytes == 0


@pytest.mark.parametrize("rig", [(4096, 8, 32)], indirect=True)
async def test_a_step_says_which_of_its_rows_decode_and_they_come_first(rig: Rig) -> None:
    variant = rig.engine.hosted("fp32").variant
    assert variant is not None
    steps: list[tuple[int, int]] = []  # rows that decode, and all

    def see(module: torch.nn.Module, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        steps.append((decoding_rows(), kwargs["input_ids"].numel()))

    hook = variant.built.module.register_forward_pre_hook(see, with_kwargs=True)
    try:
        await read(await rig.generate(np.arange(1, 41), 3))
    finally:
        hook.remove()
    assert steps == [(0, 32), (0, 8), (1, 1), (1, 1)]
    assert decoding_rows() == 0


@pytest.mark.parametrize("rig", [(2 * BLOCK, 8, 32)], indirect=True, ids=str)
async def test_who_takes_what_fits_gets_what_the_cache_holds(rig: Rig) -> None:
    (prompt,) = prompts(1)
    with pytest.raises(InvalidRequest, match="more than the cache of keys and values holds"):
        await rig.generate(prompt, new=500)
    generation = await rig.generate(prompt, new=500, takes_what_fits=True)
    answer = await read(generation)
    assert len(prompt) + len(answer) == 2 * BLOCK - 1
    assert answer == expected(prompt, len(answer))
    assert generation.ended.reason is FinishReason.LENGTH
    with pytest.raises(InvalidRequest, match="more than the cache of keys and values holds"):
        await rig.generate(np.arange(1, 2 * BLOCK + 1) % VOCABULARY, new=1, takes_what_fits=True)
    assert rig.held_bytes == 0


async def test_a_step_counts_each_row_of_logits_for_whom_it_is(rig: Rig, attempts: Attempts) -> None:
    """Those of a text that is scored too: else who shares its steps would pay for them."""
    given = [prompt[prompt != ODD] for prompt in prompts(4, seed=29)]
    running = [await rig.generate(prompt, 8) for prompt in given[:2]]
    scoring = rig.engine.score(given[2:], rig.engine.hosted("fp32"), Order())
    await asyncio.gather(scoring, *map(read, running))
    windows = rig.run_log.drain()[0]
    assert [[work.logits for work in window.work] for window in windows] == attempts.rows
    scored = [
        (work.logits, work.computed)
        for window in windows
        for line, work in zip(window.lines, window.work, strict=True)
        if line.role is None
    ]
    assert sum(rows for rows, _ in scored) == sum(map(len, given[2:]))
    assert all(rows == computed for rows, computed in scored)


async def test_who_chooses_at_length_pays_for_it_and_neither_his_step_nor_the_next_does(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, burns_ns = Member.take, 20_000_000

    def at_length(member: Member, *chosen: Any) -> Any:
        is_long = member.request.receipt.request_id == "long"
        until_ns = time.thread_time_ns() + burns_ns * is_long
        while time.thread_time_ns() < until_ns:
            pass
        return take(member, *chosen)

    monkeypatch.setattr(Member, "take", at_length)
    (prompt,), hosted = prompts(1, seed=31), rig.engine.hosted("fp32")
    names = ("short", "long")
    running = [await rig.engine.generate(prompt, hosted, Wish(6), Order(name)) for name in names]
    await asyncio.gather(*map(read, running))
    for window in rig.run_log.drain()[0]:
        assert window.cpu_ns is not None
        for line, own_ns in zip(window.lines, window.own_ns, strict=True):
            is_burnt = line.receipt is running[1].receipt
            assert (own_ns >= burns_ns) == is_burnt
        assert window.cpu_ns - sum(window.own_ns) < burns_ns


async def test_to_score_is_foreseen_with_all_its_logits(rig: Rig) -> None:
    (prompt,), hosted = prompts(1), rig.engine.hosted("fp32")
    read_uj, scored_uj = (rig.engine.foreseen_uj([prompt], hosted, scores) for scores in (False, True))
    assert read_uj is not None
    assert scored_uj is not None
    assert scored_uj - read_uj == pytest.approx(
        1e6 * LAW.laws["fp32"].per_logits_j * (len(prompt) - 1), abs=1
    )


ODD = 7  # an id that the model raises on


class Attempts(list[int]):
    """The members of each step that was tried, of a model that raises on the odd id. holds_at: so many
    decode; then it waits until it may go on."""

    holds_at = 0

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.rows: list[list[int]] = []  # of logits


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    run, tried = stepper.run, Attempts()

    def odd(variant: Any, prepared: Any, *more: Any) -> Any:
        if prepared.decoding == tried.holds_at > 0:
            assert tried.may_go_on.wait(60)
        tried.append(len(prepared.wanted))
        tried.rows.append(prepared.wanted)
        if (prepared.inputs["input_ids"] == ODD).any():
            raise ValueError("odd")
        return run(variant, prepared, *more)

    monkeypatch.setattr(stepper, "run", odd)
    return tried


async def test_who_sends_what_the_model_raises_on_ends_nobody_elses_generation(
    rig: Rig, attempts: Attempts, caplog: pytest.LogCaptureFixture
) -> None:
    fine = (prompt for prompt in prompts(40, seed=23) if ODD not in (*prompt, *expected(prompt, 20)))
    good = list(islice(fine, 7))
    attempts.holds_at = 7
    running = [await rig.generate(prompt) for prompt in good]
    answers = [asyncio.create_task(read(each)) for each in running]
    culprit = await rig.generate(np.array([1, 2, ODD, 3]))
    attempts.may_go_on.set()
    with pytest.raises(InferenceError, match="failed on a step: ValueError") as told:
        await read(culprit)
    assert told.value.receipt_id == culprit.receipt.receipt_id
    assert await asyncio.gather(*answers) == [expected(prompt, 20) for prompt in good]
    assert [record.message for record in caplog.records] == ["variant fp32 failed on a step of 8"]
    begun = attempts.index(8)
    assert attempts[begun : begun + 7] == [8, 4, 4, 2, 2, 1, 1]
    assert {tuple(each.receipt.warnings) for each in (*running, culprit)} == {(SPLIT_FAILURE,)}
    windows = rig.run_log.drain()[0]
    charged = Counter(line for window in windows for line in window.lines if line.receipt is culprit.receipt)
    assert list(charged.values()) == [1]  # what it ran alone
    assert len([window for window in windows if window.is_first_run]) == 3
    assert rig.held_bytes == 0


async def test_two_of_them_fail_and_a_model_that_is_broken_is_not_tried_for_ever(
    rig: Rig, attempts: Attempts
) -> None:
    running = [await rig.generate(np.array([1, 2, ODD, 3])) for _ in range(8)]
    told = await asyncio.gather(*map(read, running), return_exceptions=True)
    assert {type(error) for error in told} == {InferenceError}
    assert attempts == [8, 4, 4, 2, 2, 2, 2, 1, 1]
    lines = Counter(line for window in rig.run_log.drain()[0] for line in window.lines)
    assert sorted(lines.values()) == [1] * 8
    assert rig.held_bytes == 0


async def test_a_tokenizer_that_fails_fails_its_own_request_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = prompts(2, seed=17)

    def broken(self: TextStream, token_ids: Sequence[int]) -> str:
        raise IndexError

    fails = await rig.generate(bad, stop_strings=("x",))
    monkeypatch.setattr(TextStream, "add", broken)
    with pytest.raises(InferenceError, match="a token could not be taken: IndexError"):
        await read(fails)
    monkeypatch.undo()
    assert await read(await rig.generate(good)) == expected(good, 20)
    assert rig.held_bytes == 0


def lanes_of(generations: Sequence[RunningGeneration]) -> set[str]:
    return {generation.receipt.device for generation in generations}


@pytest.mark.parametrize("rig", [(4096, 8, 32, LANES)], indirect=True, ids=str)
async def test_on_two_lanes_it_answers_as_on_one_and_each_has_its_own_windows(rig: Rig) -> None:
    given = prompts(6, seed=3)
    running = [await rig.generate(prompt, new=30) for prompt in given]
    assert await asyncio.gather(*map(read, running)) == [expected(prompt, 30) for prompt in given]
    assert lanes_of(running) == {"cpu:0", "cpu:1"}
    for run_log, lane in zip(rig.run_logs, LANES, strict=True):
        windows, _ = run_log.drain()
        own = {line.receipt for window in windows for line in window.lines}
        assert own == {each.receipt for each in running if each.receipt.device == str(lane)}
    scored = await rig.engine.score(given, rig.engine.hosted("fp32"), Order())
    assert len(scored.rows) == len(given)
    assert rig.held_bytes == 0


@pytest.mark.parametrize("rig", [(4096, 2, 32, LANES)], indirect=True, ids=str)
async def test_a_lane_that_fails_ends_its_generations_and_what_waits_runs_on_the_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_step, given = StepLane.run_step, prompts(8, seed=5)
    until_it_fails = iter(range(4))

    def fails(lane: StepLane, *step: Any, **named: Any) -> Any:
        if lane.device == "cpu:1" and next(until_it_fails, None) is None:
            lane.run_log.start()
            raise RuntimeError("planted")
        return run_step(lane, *step, **named)

    monkeypatch.setattr(StepLane, "run_step", fails)
    running = [await rig.generate(prompt, new=30) for prompt in given]
    came: list[list[int]] = [[] for _ in given]
    told = await asyncio.gather(*map(read, running, came), return_exceptions=True)
    lost = [each for each, error in zip(running, told, strict=True) if isinstance(error, LaneLostError)]
    assert 1 <= len(lost) <= 2
    assert lanes_of(lost) == {"cpu:1"}
    for each, tokens, answer, prompt in zip(running, came, told, given, strict=True):
        whole = expected(prompt, 30)
        if isinstance(answer, LaneLostError):
            assert answer.receipt_id == each.receipt.receipt_id
            assert each.receipt.outcome is Outcome.FAILED
            assert tokens == whole[: len(tokens)]
        else:
            assert (answer, each.receipt.device) == (whole, "cpu:0")
    windows, until_ns = rig.run_logs[1].drain()
    assert until_ns > windows[-1].end_ns > windows[-1].start_ns  # nothing holds up what is settled later
    assert {line.receipt for window in windows for line in window.lines} == {each.receipt for each in lost}
    assert rig.held_bytes == 0
    await rig.engine.until_idle()
    again = await rig.generate(given[0])
    assert (await read(again), again.receipt.device) == (expected(given[0], 20), "cpu:0")


def broken(device: torch.device) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


async def test_a_device_that_answers_no_more_ends_its_lane(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one's end is the server's."""

    def wrong(*step: object) -> object:
        raise ValueError

    monkeypatch.setattr(generating, "check_answers", broken)
    monkeypatch.setattr(stepper, "run", wrong)
    generation = await rig.generate(prompts(1)[0])
    assert "illegal memory access" in str(await asyncio.wait_for(rig.died, 30))
    await generation.aclose()


@pytest.mark.parametrize("rig", [(4096, 4, 32, LANES)], indirect=True, ids=str)
async def test_a_lane_that_fails_while_a_step_is_run_in_parts_charges_everybody_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, answers, is_full = stepper.run, iter(range(2)), threading.Event()

    def wrong(variant: Any, prepared: Any, *more: Any) -> Any:
        if variant.device == LANES[1]:
            if len(prepared.wanted) == 4:
                is_full.set()
            if is_full.is_set():
                raise ValueError
        return run(variant, prepared, *more)

    def answers_twice(device: torch.device) -> None:
        if next(answers, None) is None:
            broken(device)

    monkeypatch.setattr(generating, "check_answers", answers_twice)
    monkeypatch.setattr(stepper, "run", wrong)
    running = [await rig.generate(np.array([1, 2, 3]), new=100) for _ in range(8)]
    told = await asyncio.gather(*map(read, running), return_exceptions=True)
    lost = [each for each, error in zip(running, told, strict=True) if isinstance(error, LaneLostError)]
    assert (len(lost), lanes_of(lost)) == (4, {"cpu:1"})
    windows = rig.run_logs[1].drain()[0]
    assert [len(window.lines) for window in windows][-3:] == [0, 0, 4]
    assert {line.receipt for line in windows[-1].lines} == {each.receipt for each in lost}
    assert rig.held_bytes == 0
