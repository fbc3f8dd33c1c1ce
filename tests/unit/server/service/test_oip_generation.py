"""Generations by the Open Inference Protocol, asked by tritonclient as of Triton's backend for vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException

from tests.fixtures.language_model import NAME, Script, World, pieces, served, world
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.energy.receipt import Outcome
from wattserve_server.engine.generation.port import Ended, FinishReason, Piece, Sampling
from wattserve_server.errors import InferenceError
from wattserve_server.service.wishes import Places

TEXT = {"text_input": "abc"}


@pytest.fixture
def model() -> World:
    return world()


def tensors(**values: Any) -> list[InferInput]:
    made = []
    for name, value in values.items():
        if isinstance(value, bool):
            tensor, array = InferInput(name, [1], "BOOL"), np.array([value])
        elif isinstance(value, np.ndarray):
            tensor, array = InferInput(name, list(value.shape), "INT64"), value
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            tensor, array = InferInput(name, [1], "BYTES"), np.array([text.encode()], dtype=object)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


async def streamed(address: str, *requests: Sequence[InferInput]) -> list[tuple[Any, Any]]:
    """(result, error) of each reply, until as many are final as there are requests."""

    async def asked() -> AsyncIterator[dict[str, Any]]:
        for number, inputs in enumerate(requests):
            yield {
                "model_name": NAME,
                "inputs": inputs,
                "request_id": str(number),
                "enable_empty_final_response": True,
            }

    replies, final = [], 0
    async with triton.InferenceServerClient(address) as client:
        async for result, error in client.stream_infer(asked()):
            replies.append((result, error))
            last = error is not None or parameter(result, "triton_final_response").bool_param
            final += bool(last)
            if final == len(requests):
                break
    return replies


def parameter(result: Any, name: str) -> Any:
    return result.get_response().parameters[name]


def text(result: Any) -> str:
    (element,) = result.as_numpy("text_output")
    return str(element.decode())


async def whole(address: str, **values: Any) -> Any:
    async with triton.InferenceServerClient(address) as client:
        return await client.infer(NAME, tensors(**values), request_id="mine")


async def test_a_stream_gives_each_piece_and_at_last_what_it_cost(model: World) -> None:
    flags = {"return_finish_reason": True, "return_num_input_tokens": True, "return_num_output_tokens": True}
    async with served(model) as address:
        replies = await streamed(address, tensors(**TEXT, stream=True, **flags))
    results = [result for result, error in replies if error is None]
    assert [text(result) for result in results] == ["one", " two", " three", ""]
    assert [result.get_response().id for result in results] == ["0"] * 4
    assert [parameter(result, "energy_uj").int64_param for result in results] == [100, 200, 300, 600]
    assert [int(result.as_numpy("num_output_tokens")[0]) for result in results] == [1, 1, 1, 0]
    assert [result.as_numpy("finish_reason")[0] for result in results] == [b"None"] * 3 + [b"length"]
    last = results[-1]
    assert int(last.as_numpy("num_input_tokens")[0]) == 3
    (generation,) = model.generations
    assert parameter(last, "receipt_id").string_param == generation.receipt.receipt_id
    told = {
        "prompt_tokens": 3, "output_tokens": 3, "prompt_energy_uj": 200, "output_energy_uj": 400,
        "overhead_energy_uj": 0,
    }  # fmt: skip
    assert {name: parameter(last, name).int64_param for name in told} == told
    assert parameter(last, "energy_per_output_token_uj").double_param == 200
    assert parameter(last, "energy_state").string_param == "settled"


async def test_what_is_not_said_is_as_vllm_has_it(model: World) -> None:
    async with served(model) as address:
        result = await whole(address, **TEXT)
    assert text(result) == "abcone two three"  # without a stream the answer begins with its input
    assert parameter(result, "finish_reason").string_param == "length"
    ((_, wish),) = model.asked
    assert (wish.max_new_tokens, wish.sampling.temperature) == (16, 1.0)
    assert parameter(result, "seed").int64_param == wish.sampling.seed


async def test_sampling_parameters_are_vllms_and_may_be_texts(model: World) -> None:
    asked = {
        "temperature": "0.5", "top_p": "0.9", "top_k": -1, "max_tokens": "7", "seed": 5, "stop": "end",
        "stop_token_ids": [9], "ignore_eos": "true", "repetition_penalty": 1.5, "n": 1, "min_p": 0.0,
        "max_energy_uj": 900,
    }  # fmt: skip
    async with served(model) as address:
        result = await whole(address, **TEXT, sampling_parameters=asked, exclude_input_in_output=True)
    ((_, wish),) = model.asked
    assert wish.sampling == Sampling(0.5, 0, 0.9, 1.5, 5)
    assert (wish.max_new_tokens, wish.stop_strings, wish.stop_ids) == (7, ("end",), frozenset({9}))
    assert (wish.ignores_end, wish.max_energy_uj) == (True, 900)
    assert text(result) == "one two three"


async def test_parameters_of_the_request_serve_where_the_tensor_is_left_out(model: World) -> None:
    async with served(model) as address, triton.InferenceServerClient(address) as client:
        own = {"max_tokens": 4, "temperature": 0.0, "variant": "bf16"}
        result = await client.infer(NAME, tensors(**TEXT), parameters=own)
    ((_, wish),) = model.asked
    assert (wish.max_new_tokens, wish.sampling) == (4, Sampling())
    assert parameter(result, "variant").string_param == "bf16"


@pytest.mark.parametrize(
    ("values", "field", "why"),
    [
        ({"text_input": ""}, "raw_input_contents[0]", "the prompt is empty"),
        ({"stream": False}, "inputs", "needs a prompt"),
        (TEXT | {"input_ids": np.array([[1]])}, "inputs", "either text_input or input_ids"),
        ({"input_ids": np.array([[300]])}, "raw_input_contents[0]", "outside the vocabulary"),
        (TEXT | {"image": "x"}, "inputs[1].name", "unknown tensor 'image'"),
        (TEXT | {"stream": True}, "raw_input_contents[1]", "call ModelStreamInfer"),
        (TEXT | {"return_logprobs": True}, "raw_input_contents[1]", "native protocol"),
        (TEXT | {"sampling_parameters": "{"}, "raw_input_contents[1]", "not JSON"),
        (TEXT | {"sampling_parameters": "[" * 50_000}, "raw_input_contents[1]", "not JSON"),
        (TEXT | {"sampling_parameters": [1]}, "raw_input_contents[1]", "no object of JSON"),
        (TEXT | {"sampling_parameters": {"temprature": 1}}, "sampling_parameters[temprature]", "unknown"),
        (TEXT | {"sampling_parameters": {"\ud800": 1}}, "sampling_parameters[?]", "unknown"),
        (TEXT | {"sampling_parameters": {"n": 2}}, "sampling_parameters[n]", "not offered"),
        (TEXT | {"sampling_parameters": {"max_tokens": 0}}, "sampling_parameters[max_tokens]", "at least 1"),
        (TEXT | {"sampling_parameters": {"max_tokens": 99}}, "sampling_parameters[max_tokens]", "leaves 29"),
        (TEXT | {"sampling_parameters": {"max_tokens": 1.5}}, "sampling_parameters[max_tokens]", "no whole"),
        (TEXT | {"sampling_parameters": {"max_tokens": "1_0"}}, "sampling_parameters[max_tokens]", "no num"),
        (TEXT | {"sampling_parameters": {"top_k": -2}}, "sampling_parameters[top_k]", "top_k -2"),
        (TEXT | {"sampling_parameters": '{"top_p": NaN}'}, "sampling_parameters[top_p]", "top_p nan"),
        (TEXT | {"sampling_parameters": {"temperature": "hot"}}, "sampling_parameters[temperature]", "no n"),
        (TEXT | {"sampling_parameters": {"seed": -1}}, "sampling_parameters[seed]", "from 0"),
        (TEXT | {"sampling_parameters": {"stop": [1]}}, "sampling_parameters[stop]", "list of texts"),
        (TEXT | {"sampling_parameters": {"stop": ["a"] * 17}}, "sampling_parameters[stop]", "at most 16"),
        (TEXT | {"sampling_parameters": {"stop_token_ids": 1}}, "sampling_parameters[stop_token_ids]", "no"),
        (TEXT | {"sampling_parameters": {"ignore_eos": 1}}, "sampling_parameters[ignore_eos]", "neither"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named_and_never_runs(
    model: World, values: dict[str, Any], field: str, why: str
) -> None:
    async with served(model) as address:
        with pytest.raises(InferenceServerException) as caught:
            await whole(address, **values)
    assert str(caught.value.message()).startswith(f"{field}: ")
    assert why in caught.value.message()
    assert not model.asked


async def test_a_text_that_is_no_utf_8_is_named(model: World) -> None:
    prompt = InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"\xff\xfe"], dtype=object))
    async with served(model) as address, triton.InferenceServerClient(address) as client:
        with pytest.raises(InferenceServerException, match=r"raw_input_contents\[0\]\[0\]: not UTF-8"):
            await client.infer(NAME, [prompt])


async def test_an_error_ends_its_request_and_no_other(model: World) -> None:
    model.script = Script(pieces("one"), error=InferenceError("NaN"))
    async with served(model) as address:
        wrong = tensors(**TEXT, stream=True, exclude_input_in_output=False)
        replies = await streamed(address, wrong, tensors(**TEXT, stream=True))
    errors = {str(error) for _, error in replies if error is not None}
    assert len(errors) == 2
    assert any("a stream does not repeat its input" in error for error in errors)
    (generation,) = model.generations
    assert any(
        f"NaN; what ran is charged: receipt {generation.receipt.receipt_id}" in each for each in errors
    )
    assert [text(result) for result, error in replies if error is None] == ["one"]


async def test_who_leaves_a_stream_frees_all_its_places(model: World) -> None:
    model.script.halt = asyncio.Event()

    async def asked() -> AsyncIterator[dict[str, Any]]:
        for _ in range(2):
            yield {"model_name": NAME, "inputs": tensors(**TEXT, stream=True)}

    async with served(model) as address, triton.InferenceServerClient(address) as client:
        replies: Any = client.stream_infer(asked())
        seen = 0
        async for _ in replies:
            seen += 1
            if seen == 6:
                replies.cancel()
                break
        for generation in model.generations:
            await asyncio.wait_for(generation.closed.wait(), 30)
    assert [generation.receipt.outcome for generation in model.generations] == [Outcome.CANCELLED] * 2


async def test_who_does_not_read_a_stream_loses_his_places(model: World) -> None:
    model.script = Script([Piece((1,), "x" * 200_000, (), None)] * 100_000)
    async with served(model, unread_s=0.05) as address, grpc.aio.insecure_channel(address) as channel:
        method: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        call = method()
        message = oip.ModelInferRequest(model_name=NAME)
        for tensor in tensors(**TEXT, stream=True):
            message.inputs.add(name=tensor.name(), datatype=tensor.datatype(), shape=tensor.shape())
            message.raw_input_contents.append(tensor._get_content())
        await call.write(message.SerializeToString())
        await call.read()
        (generation,) = model.generations
        await asyncio.wait_for(generation.closed.wait(), 30)


async def test_the_model_is_described_as_tritons_backend_describes_it(model: World) -> None:
    async with served(model) as address, triton.InferenceServerClient(address) as client:
        described = await client.get_model_metadata(NAME)
        config = (await client.get_model_config(NAME)).config
    assert [(each.name, each.datatype, list(each.shape)) for each in described.inputs][:3] == [
        ("text_input", "BYTES", [1]),
        ("sampling_parameters", "BYTES", [1]),
        ("stream", "BOOL", [1]),
    ]
    assert [(each.name, each.datatype) for each in described.outputs] == [
        ("text_output", "BYTES"),
        ("finish_reason", "BYTES"),
        ("num_input_tokens", "UINT32"),
        ("num_output_tokens", "UINT32"),
    ]
    assert config.model_transaction_policy.decoupled
    assert config.max_batch_size == 0
    assert [each.name for each in config.input if not each.optional] == ["text_input"]


async def test_a_model_without_a_tokenizer_takes_token_ids() -> None:
    model = world(has_tokenizer=False)
    model.script = Script(pieces("", ""), Ended(FinishReason.STOP, "", 2, 2, 0, 1, 2, 3))
    async with served(model) as address, triton.InferenceServerClient(address) as client:
        config = (await client.get_model_config(NAME)).config
        result = await client.infer(NAME, tensors(input_ids=np.array([[4, 5]])))
        with pytest.raises(InferenceServerException, match="no tokenizer: send token ids"):
            await client.infer(NAME, tensors(**TEXT))
    assert config.input[0].name == "input_ids"
    assert (model.asked[0][0], text(result)) == ([4, 5], "")


def test_each_place_has_a_name_of_its_own() -> None:
    from wattserve_server.service.oip_sampling import PLACES

    names = [getattr(PLACES, name) for name in Places.__dataclass_fields__]
    assert len(set(names)) == len(names)
