"""The engine on a real GPU: a batch for which its memory does not suffice, and answers under concurrency."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from wattserve_server.energy.costlaw import LawView
from wattserve_server.energy.receipt import ACCELERATOR, Outcome
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.engine import Engine, EngineLimits, Metering
from wattserve_server.engine.lane import SPLIT_BATCH, RunLog
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import Answer
from wattserve_server.engine.roster import LoadingRules
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.errors import NotPossibleHere

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
MOST, LONGEST = 64, 512
FEED_FORWARD = 16384
ONE_BYTES = 4 * LONGEST * FEED_FORWARD
"""Of one sequence between the two linear layers of a feed-forward block, which is what takes most memory."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("models") / "wide"
    with torch.random.fork_rng():
        torch.manual_seed(7)
        DistilBertForSequenceClassification(
            DistilBertConfig(
                vocab_size=64, dim=64, n_layers=2, n_heads=2, hidden_dim=FEED_FORWARD,
                max_position_embeddings=LONGEST, pad_token_id=0,
            )
        ).save_pretrained(folder)  # fmt: skip
    return load_model(str(folder), task_named("sequence-classification"))


Rig = tuple[Engine, RunLog]


@pytest.fixture
async def rig(model: LoadedModel) -> AsyncIterator[Rig]:
    run_log = RunLog()
    engine = Engine(
        model,
        Materials(model.weights),
        [Choice("fp32", KINDS["fp32"], CUDA)],
        "fp32",
        LoadingRules(),
        EngineLimits({CUDA: BatchLimits(MOST, MOST * LONGEST)}, max_queue=4096, max_request=MOST),
        ReceiptBook(60.0, 10_000, lambda receipt: None),
        {CUDA: Metering(run_log, {ACCELERATOR: SimpleNamespace(law=LawView({}))})},
        lambda *result: None,
        lambda error: None,
    )
    engine.start()
    await engine.loader.load("fp32")  # whose warm-up runs the fullest batch: there is memory for it
    run_log.drain()
    yield engine, run_log
    await asyncio.to_thread(engine.stop)


@contextmanager
def all_but(left: int) -> Iterator[None]:
    """Hold all memory of the GPU but so many bytes."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(CUDA)
    held = torch.empty(free - left, dtype=torch.uint8, device=CUDA)
    try:
        yield
    finally:
        del held
        torch.cuda.empty_cache()


def sequences(count: int, length: int) -> list[NDArray[np.int64]]:
    return [np.array([2, *[4 + index % 50] * (length - 2), 3], dtype=np.int64) for index in range(count)]


def rows(answer: Answer) -> NDArray[np.float32]:
    return np.stack(answer.rows)


async def test_a_batch_that_does_not_fit_is_split_and_the_next_one_is_not_tried_so_large(rig: Rig) -> None:
    engine, run_log = rig
    asked = sequences(MOST, LONGEST)
    before = await engine.predict(asked, engine.hosted("fp32"))
    (whole,) = run_log.drain()[0]
    assert len(whole.lines) == MOST
    with all_but(MOST * ONE_BYTES // 2):
        split = await engine.predict(asked, engine.hosted("fp32"))
        first = run_log.drain()[0]
        again = await engine.predict(asked, engine.hosted("fp32"))
        second = run_log.drain()[0]
    np.testing.assert_allclose(rows(split), rows(before), atol=1e-5)
    np.testing.assert_allclose(rows(again), rows(before), atol=1e-5)
    assert any(not window.lines for window in first)
    lines = Counter(id(line) for window in first for line in window.lines)
    assert lines == Counter(id(line) for line in split.receipt.lines)
    assert split.receipt.warnings == [SPLIT_BATCH]
    assert all(window.lines for window in second)
    assert again.receipt.warnings == []


async def test_one_that_does_not_fit_alone_is_refused_and_what_comes_after_it_runs(rig: Rig) -> None:
    engine, run_log = rig
    with all_but(ONE_BYTES // 4):
        with pytest.raises(NotPossibleHere, match=f"a sequence of {LONGEST} tokens does not fit"):
            await engine.predict(sequences(1, LONGEST), engine.hosted("fp32"))
        (window,) = run_log.drain()[0]
        assert window.lines[0].receipt.outcome is Outcome.FAILED
        assert len((await engine.predict(sequences(1, 8), engine.hosted("fp32"))).rows) == 1
    assert len(rows(await engine.predict(sequences(MOST, LONGEST), engine.hosted("fp32")))) == MOST


async def test_answers_under_concurrency_are_those_of_each_sequence_alone(rig: Rig) -> None:
    engine, _ = rig
    asked = [sequences(1 + index % 3, 3 + 37 * index % 400) for index in range(60)]
    alone = [
        rows(await engine.predict([each], engine.hosted("fp32"))) for request in asked for each in request
    ]
    together = await asyncio.gather(*(engine.predict(each, engine.hosted("fp32")) for each in asked))
    found = np.concatenate([rows(answer) for answer in together])
    np.testing.assert_allclose(found, np.concatenate(alone), atol=1e-5)


async def test_windows_are_the_gpus_own_within_the_hosts_and_one_after_the_other(rig: Rig) -> None:
    engine, run_log = rig
    for count in (1, 8, MOST, 1, 8):
        await engine.predict(sequences(count, LONGEST), engine.hosted("fp32"))
    last_ns = 0
    for window in run_log.drain()[0]:
        assert window.host_ns is not None
        assert last_ns <= window.host_ns[0] <= window.start_ns < window.end_ns <= window.host_ns[1]
        assert window.held_ns > window.duration_ns  # else events failed: see the log
        last_ns = window.end_ns
