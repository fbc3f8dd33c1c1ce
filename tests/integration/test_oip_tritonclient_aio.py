"""tritonclient's asyncio client, against servers of images and of embeddings, one of which loads lazily."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc.aio as triton
from transformers import AutoModel, AutoModelForImageClassification
from tritonclient.grpc import InferRequestedOutput
from tritonclient.utils import InferenceServerException

from tests.clients.triton_calls import counts, given, parameters
from tests.fixtures.models import IMAGE_SHAPE, save_encoder, save_vit
from tests.fixtures.server import RunningServer, running_server

COMMON = ("--meter", "none", "--threads", "1")


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vit(tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="module")
def server(vit: Path) -> Iterator[RunningServer]:
    images = ("--task", "image-classification", "--variants", "fp32,bf16")
    with running_server("--model", str(vit), *images, *COMMON) as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[triton.InferenceServerClient]:
    async with triton.InferenceServerClient(server.address) as made:
        yield made


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, *IMAGE_SHAPE), dtype=np.float32)


def reference(folder: Path, pixels: np.ndarray) -> np.ndarray:
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(pixel_values=torch.from_numpy(pixels)).logits
    return logits.numpy()


async def test_a_model_of_images_is_described(client: triton.InferenceServerClient) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("vit@bf16", "1")
    assert (await client.get_server_metadata()).name == "wattserve"
    model = await client.get_model_metadata("vit")
    assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [
        ("pixel_values", "FP32", [-1, *IMAGE_SHAPE])
    ]
    config = (await client.get_model_config("vit")).config
    assert [(each.name, list(each.dims), each.optional) for each in config.input] == [
        ("pixel_values", list(IMAGE_SHAPE), False)
    ]
    assert config.parameters["task"].string_value == "image-classification"


async def test_images_are_answered_and_classified(client: triton.InferenceServerClient, vit: Path) -> None:
    pixels = noise(5)
    wanted = reference(vit, pixels)
    result = await client.infer("vit", [given("pixel_values", pixels)], request_id="mine")
    np.testing.assert_allclose(result.as_numpy("logits"), wanted, atol=1e-5)
    assert result.get_response().id == "mine"
    best = InferRequestedOutput("logits", class_count=1)
    classes = (await client.infer("vit", [given("pixel_values", pixels)], outputs=[best])).as_numpy("logits")
    labels = ("cat", "dog", "bird")
    found = [element.decode().split(":")[1:] for (element,) in classes]
    assert found == [[str(index), labels[index]] for index in wanted.argmax(axis=1)]


async def test_without_a_meter_the_energy_is_unknown_and_says_why(
    client: triton.InferenceServerClient,
) -> None:
    for energy in ("provisional", "settled"):
        asked = {"variant": "bf16", "energy": energy}
        told = parameters(await client.infer("vit", [given("pixel_values", noise(1))], parameters=asked))
        assert told["energy_unknown_reason"] == "no meter was asked for (--meter none)"
        assert (told["variant"], told["energy_quality"]) == ("bf16", "none")
        assert not {"energy_uj", "energy_low_uj", "energy_high_uj", "idle_share_uj"} & set(told)


async def test_wrong_pixels_are_refused(client: triton.InferenceServerClient) -> None:
    wrong = {
        r"inputs\[0\].shape: shape \[1, 3, 4, 4\]; this model takes": np.zeros((1, 3, 4, 4), "f4"),
        r"inputs\[0\].datatype: datatype 'INT32' of pixel_values": np.zeros((1, *IMAGE_SHAPE), "i4"),
        r"image 1 holds values that are not finite": np.stack([noise(1)[0], noise(1)[0] * np.inf]),
    }  # fmt: skip
    for words, array in wrong.items():
        with pytest.raises(InferenceServerException, match=words) as caught:
            await client.infer("vit", [given("pixel_values", array)])
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException, match="unknown tensor 'text'"):
        await client.infer("vit", [given("text", np.array(["a cat"], np.object_))])


async def test_a_stream_keeps_the_order_and_outlives_an_error(client: triton.InferenceServerClient) -> None:
    async def asked() -> AsyncIterator[dict[str, Any]]:
        for index in range(12):
            pixels = noise(8 if index % 2 else 1, seed=index)
            model = "vit@int3" if index == 5 else "vit"
            inputs = [given("pixel_values", pixels)]
            yield {"model_name": model, "inputs": inputs, "request_id": str(index)}

    outcomes = [outcome async for outcome in client.stream_infer(asked())]
    assert [index for index, (_, error) in enumerate(outcomes) if error] == [5]
    assert outcomes[5][1].message().startswith("[NOT_FOUND] model_name: unknown variant 'int3' of 'vit'")
    ids = [result.get_response().id for result, _ in outcomes if result]
    assert ids == [str(index) for index in range(12) if index != 5]


async def test_a_stream_that_is_cancelled_leaves_the_server_whole(
    client: triton.InferenceServerClient,
) -> None:
    async def asked() -> AsyncIterator[dict[str, Any]]:
        while True:
            yield {"model_name": "vit", "inputs": [given("pixel_values", noise(1))]}

    stream = client.stream_infer(asked())
    result, error = await anext(stream)
    assert result
    assert error is None
    assert stream.cancel()
    assert (await client.infer("vit", [given("pixel_values", noise(1))])).as_numpy("logits").shape == (1, 3)


async def test_statistics_the_index_and_loading(client: triton.InferenceServerClient) -> None:
    before = counts(await client.get_inference_statistics("vit@bf16"))
    await client.infer("vit@bf16", [given("pixel_values", noise(3))])
    after = counts(await client.get_inference_statistics("vit@bf16"))
    grown = {kind: count - before[kind] for kind, count in after.items()}
    assert (grown["success"], grown["sequences"], grown["fail"]) == (1, 3, 0)
    await client.unload_model("vit@bf16")
    assert not await client.is_model_ready("vit@bf16")
    with pytest.raises(InferenceServerException) as caught:
        await client.infer("vit", [given("pixel_values", noise(1))], parameters={"variant": "bf16"})
    assert caught.value.status() == "StatusCode.FAILED_PRECONDITION"
    await client.load_model("vit@bf16")
    index = await client.get_model_repository_index()
    assert {each.name: each.state for each in index.models}["vit@bf16"] == "READY"
    with pytest.raises(InferenceServerException) as caught:
        await client.get_log_settings()
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    assert not (await client.get_system_shared_memory_status()).regions


async def test_embeddings_of_variants_that_requests_load(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "encoder")
    arguments = ("--task", "feature-extraction", "--variants", "fp32,bf16", "--lazy-variants")
    with running_server("--model", str(folder), *arguments, *COMMON) as running:
        async with triton.InferenceServerClient(running.address) as client:
            index = (await client.get_model_repository_index()).models
            assert {each.state for each in index if each.name == "encoder@bf16"} == {"UNAVAILABLE"}
            assert await client.is_model_ready("encoder@bf16")  # a request would be served
            config = (await client.get_model_config("encoder")).config
            assert [(each.name, list(each.dims)) for each in config.output] == [("embedding", [32])]
            ids = [given("input_ids", np.array([[2, 4, 3]]))]
            exact = (await client.infer("encoder", ids)).as_numpy("embedding")
            model = AutoModel.from_pretrained(folder).eval()
            with torch.inference_mode():
                hidden = model(torch.tensor([[2, 4, 3]])).last_hidden_state[0]
            np.testing.assert_allclose(exact[0], hidden.mean(dim=0).numpy(), atol=1e-5)
            near = await client.infer("encoder@bf16", ids)
            assert parameters(near)["variant"] == "bf16"
            index = (await client.get_model_repository_index()).models
            assert {each.state for each in index if each.name == "encoder@bf16"} == {"READY"}
            best = InferRequestedOutput("embedding", class_count=1)
            (((first,),),) = [(await client.infer("encoder", ids, outputs=[best])).as_numpy("embedding")]
            assert first.decode() == f"{exact[0].max():f}:{exact[0].argmax()}"  # it has no labels
