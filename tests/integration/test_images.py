"""Image models through a real server in a process of its own: answers, refusals, and a whole sweep."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageClassification

from tests.fixtures.models import IMAGE_SHAPE, save_vit
from tests.fixtures.present import present
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import AsyncClient, Client, InvalidRequest
from wattserve_loadgen import cli
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.results.folder import read_results

RESNET_SHAPE = (3, 224, 224)
SERVED = ("--task", "image-classification", "--meter", "simulated", "--threads", "1")


@pytest.fixture(scope="module")
def vit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vit(tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="module")
def vit(vit_folder: Path) -> Iterator[RunningServer]:
    with running_server("--model", str(vit_folder), "--variants", "fp32", *SERVED) as running:
        yield running


@pytest.fixture(scope="module")
def resnet() -> Iterator[RunningServer]:
    model = ("--model", "random:resnet18", "--variants", "fp32", "--max-batch-sequences", "8")
    with running_server(*model, *SERVED) as running:
        yield running


@pytest.fixture
def client(vit: RunningServer) -> Iterator[Client]:
    with Client(vit.address) as made:
        yield made


def noise(count: int, shape: tuple[int, ...] = IMAGE_SHAPE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, *shape), dtype=np.float32)


def test_the_server_says_which_images_it_takes(client: Client) -> None:
    info = client.server_info()
    assert info.task == "image-classification"
    assert info.pixel_shape == IMAGE_SHAPE
    assert info.labels == ("cat", "dog", "bird")
    assert not info.accepts_text
    assert (info.limits.max_sequence_tokens, info.limits.vocabulary_size) == (1, 0)


def test_the_answers_are_the_models_own_whatever_they_are_batched_with(
    client: Client, vit_folder: Path
) -> None:
    pixels = noise(5)
    model = AutoModelForImageClassification.from_pretrained(vit_folder).eval()
    with torch.inference_mode():
        wanted = model(pixel_values=torch.from_numpy(pixels)).logits.numpy()
    answer = client.predict_images(pixels, wait_for_settled_energy=True)
    np.testing.assert_allclose(answer.output, wanted, atol=1e-5)
    assert answer.labels == tuple(("cat", "dog", "bird")[index] for index in wanted.argmax(axis=1))
    np.testing.assert_allclose(client.predict_images(pixels[3]).output, wanted[3:4], atol=1e-5)


def test_every_image_of_a_request_has_a_line_on_its_receipt(client: Client) -> None:
    receipt = client.predict_images(noise(3), wait_for_settled_energy=True).receipt
    assert receipt.settled
    assert [line.tokens for line in receipt.lines] == [1, 1, 1]
    assert sum(present(line.energy_uj) for line in receipt.lines) == receipt.energy_uj


def test_a_stream_takes_images(client: Client) -> None:
    answers = list(client.predict_many(iter(noise(6))))
    assert sorted(answer.index for answer in answers) == list(range(6))
    assert all(answer.result().output.shape == (1, 3) for answer in answers)


def test_the_asyncio_client_gets_the_same_answers(client: Client, vit: RunningServer) -> None:
    pixels = noise(2)

    async def ask() -> np.ndarray:
        async with AsyncClient(vit.address) as asking:
            return (await asking.predict_images(pixels)).output

    np.testing.assert_allclose(asyncio.run(ask()), client.predict_images(pixels).output, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("a film", "this model takes pixel_values"),
        ([1, 2, 3], "this model takes pixel_values"),
        (noise(1, (3, 48, 32)), "shape [1, 3, 48, 32]; this model takes pixel_values"),
        ({"input_ids": np.ones((1, 3), np.int64)}, "unknown tensor 'input_ids'"),
        ({"pixel_values": noise(1).astype(np.float16)}, "datatype 'FP16' of pixel_values; known here: FP32"),
        ({"pixel_values": np.full((1, *IMAGE_SHAPE), np.nan, np.float32)}, "image 0 holds values"),
    ],
    ids=["text", "tokens", "size", "name", "datatype", "nan"],
)
def test_what_the_model_does_not_take_is_refused_and_the_server_goes_on(
    client: Client, inputs: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        client.predict(inputs)
    assert client.predict_images(noise(1)).label in ("cat", "dog", "bird")


def test_eight_full_images_fit_into_one_request(resnet: RunningServer) -> None:
    with Client(resnet.address) as client:
        info = client.server_info()
        assert (info.model_parameters, info.pixel_shape) == (11_689_512, RESNET_SHAPE)
        assert info.random_weights
        answer = client.predict_images(noise(8, RESNET_SHAPE), wait_for_settled_energy=True)
    assert answer.output.shape == (8, 1000)
    assert np.isfinite(answer.output).all()
    assert len({row.tobytes() for row in answer.output}) == 8


def test_a_sweep_of_random_images_ends_with_joules_and_a_report(
    resnet: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    assert cli.main(["prepare", "--random-images", "4", "--out", str(data)]) == 0
    look = schedule.PRESETS["look"]
    short = replace(look, blocks=1, seconds=0.4, warmup_seconds=0.05, heat_up_seconds=0.05)
    monkeypatch.setitem(schedule.PRESETS, "look", short)
    where = ["--target", resnet.address, "--dataset", str(data), "--out", str(out)]
    assert cli.main(["sweep", *where, "--preset", "look", "--offline", "2", "--no-calibrate"]) == 0
    results = read_results(out)
    assert results.complete
    assert results.accuracy_reason == "the model has random weights"
    assert {cell.arm for cell in results.cells} == {"fp32", "fp32 (A/A)"}
    for cell in results.cells:
        assert (cell.failed, cell.answered > 0) == (0, True)
        assert (cell.energy.active_uj_per_request or 0) > 0
        assert (cell.energy.accounts_residual_uj, cell.energy.active_uj_per_token) == (0, None)
    assert "4 images of 3 × 224 × 224" in (out / "report.html").read_text()
