"""The engine in this process: generations that join, leave, lose their place, and what they are charged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.language_models import VOCABULARY, language_model
from tests.fixtures.running_generations import (
    CPU,
    LANES,
    LAW,
    ODD,
    STEP_UJ,
    Attempts,
    Rig,
    expected,
    lanes_of,
    prompts,
    read,
)
from wattserve_server.energy.receipt import Outcome, Role, Window
from wattserve_server.engine.generation.cache import BLOCK
from wattserve_server.engine.generation.lane import steps_of
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.port import FinishReason, Sampling, Wish
from wattserve_server.engine.queued import Order
from wattserve_server.engine.variants.phase import decoding_rows
from wattserve_server.errors import ExpiredError, InvalidRequest, SpentError
from wattserve_server.service.spent import spent_on


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
    take, burns_ns = Member.take, 150_000_000  # more than a step itself takes on a busy machine

    def at_length(member: Member, *chosen: Any) -> Any:
        is_long = member.request.receipt.request_id == "long"
        until_ns = time.thread_time_ns() + burns_ns * is_long
        while time.thread_time_ns() < until_ns:
            pass
        return take(member, *chosen)

    monkeypatch.setattr(Member, "take", at_length)
    (prompt,), hosted = prompts(1, seed=31), rig.engine.hosted("fp32")
    names = ("short", "long")
    running = [await rig.engine.generate(prompt, hosted, Wish(4), Order(name)) for name in names]
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
