"""A real server whose memory is taken away while it serves many clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests.clients.oip_stub import OipStub, infer_request
from tests.fixtures.models import save_classifier
from tests.fixtures.present import booked_uj, present
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client, NotPossible, Outcome, Prediction, Unavailable
from wattserve_client.errors import details_in

PROGRAM = ("-m", "tests.fixtures.serve_with_short_memory")
EIGHT = [[2, *[4 + index] * 8, 3] for index in range(5)] + [[2, *[9] * 8, 3]] * 3
"""A request that is one batch of 80 tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """What is written there is what there is memory for."""
    file = tmp_path / "tokens"
    file.write_text("")
    return file


@pytest.fixture
def server(folder: Path, memory: Path) -> Iterator[RunningServer]:
    with running_server(
        "--model", str(folder), "--variants", "fp32", "--meter", "simulated", "--threads", "1",
        "--calibration-seconds", "0.5", "--no-verify", program=PROGRAM,
        extra={"SHORT_MEMORY_FILE": str(memory)},
    ) as running:  # fmt: skip
        yield running


def check_answers(folder: Path, inputs: list[list[list[int]]], answers: list[Prediction]) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for sequences, answer in zip(inputs, answers, strict=True):
        for ids, row in zip(sequences, answer.output, strict=True):
            with torch.inference_mode():
                alone = model(torch.tensor([ids])).logits[0].numpy()
            np.testing.assert_allclose(row, alone, atol=1e-5)


def test_every_client_is_answered_rightly_and_charged_once_while_memory_is_short(
    server: RunningServer, folder: Path, memory: Path
) -> None:
    inputs = [
        [[2, *[4 + part] * (7 * index % 30), 3] for part in range(1 + index % 4)] for index in range(60)
    ]
    with Client(server.address) as client, ThreadPoolExecutor(16) as pool:
        memory.write_text("40")
        split = client.predict(EIGHT)
        answers = [split, *pool.map(client.predict, inputs)]
        receipts = list(client.watch_receipts([answer.receipt.receipt_id for answer in answers]))
        report = client.energy_report()
    check_answers(folder, [EIGHT, *inputs], answers)
    assert any("ran out of memory" in warning for warning in split.receipt.warnings)
    assert {line.batch_size for line in split.receipt.lines} == {4}
    (active,) = report.active
    assert report.measured_uj == booked_uj(report)
    assert active.active_uj == sum(present(receipt.energy_uj) for receipt in receipts)
    assert active.sequences == 8 + sum(map(len, inputs))


def test_one_that_fits_nowhere_is_refused_alone_and_the_server_says_and_goes_on(
    server: RunningServer, folder: Path, memory: Path
) -> None:
    with Client(server.address) as client, ThreadPoolExecutor(8) as pool:
        memory.write_text("24")
        large = pool.submit(client.predict, [[2, *[4] * 30, 3]])
        inputs = [EIGHT[:2] for _ in range(20)]
        answers = list(pool.map(client.predict, inputs))
        with pytest.raises(
            NotPossible, match="a sequence of 32 tokens does not fit into the memory"
        ) as caught:
            large.result()
        billed = client.receipt(caught.value.receipt_id, wait_until_settled=True)
        assert (billed.outcome, billed.settled) == (Outcome.FAILED, True)
        with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
            OipStub(channel).ModelInfer(infer_request("tiny", input_ids=np.full((1, 32), 4, np.int64)))
        receipt_id = details_in(refused.value.trailing_metadata()).receipt_id
        assert client.receipt(receipt_id).outcome is Outcome.FAILED
        assert str(refused.value.details()).endswith(f"; what ran is charged: receipt {receipt_id}")
        memory.write_text("")
        answers.append(client.predict(EIGHT))
    check_answers(folder, [*inputs, EIGHT], answers)
    assert server.terminate() == 0
    assert "fp32 ran out of memory on a batch" in server.error_text


def test_a_drain_that_meets_a_split_answers_all_of_it(
    server: RunningServer, folder: Path, memory: Path
) -> None:
    memory.write_text("10")
    with Client(server.address) as client, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(client.predict, EIGHT) for _ in range(8)]
        asked[0].result()
        server.process.terminate()
        done = [each for each in asked if each.exception() is None]
    assert server.process.wait(timeout=60) == 0
    check_answers(folder, [EIGHT] * len(done), [each.result() for each in done])
    refused = [each for each in asked if each not in done]
    for each in refused:  # at once, or because the server had gone: none that it had accepted
        assert isinstance(each.exception(), Unavailable)
        assert "before this was done" not in str(each.exception())
