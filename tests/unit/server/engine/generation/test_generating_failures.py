"""The engine in this process: generations beside what fails, a request, a step or a lane."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.running_generations import LANES, ODD, Attempts, Rig, expected, lanes_of, prompts, read
from wattserve_server.energy.receipt import Outcome
from wattserve_server.engine.generation import lane as generating
from wattserve_server.engine.generation import stepper
from wattserve_server.engine.generation.lane import StepLane
from wattserve_server.engine.generation.text import TextStream
from wattserve_server.engine.lane import SPLIT_FAILURE
from wattserve_server.errors import InferenceError, LaneLostError


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
