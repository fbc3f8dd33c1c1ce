"""Generate and Score of the native protocol: what a generation is told, and how one ends before its time."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import pytest

from tests.fixtures.language_model import CONTEXT, VOCABULARY, Script, World, pieces, served, world
from tests.unit.server.service.test_call_limits import reason_of
from wattserve_client.errors import details_in
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1.inference_pb2_grpc import InferenceStub
from wattserve_server.energy.receipt import Outcome
from wattserve_server.engine.generation.port import Ended, FinishReason, Piece, Sampling, TokenScore, Wish
from wattserve_server.errors import InferenceError
from wattserve_server.service.methods import Deadlines
from wattserve_server.service.prediction import Serving, Unkeyed

TEXT = pb.GenerateRequest(text="abc")


@pytest.fixture
def model() -> World:
    return world()


async def generated(
    address: str, request: pb.GenerateRequest = TEXT, **call: Any
) -> list[pb.GenerateResponse]:
    async with grpc.aio.insecure_channel(address) as channel:
        stream: Any = InferenceStub(channel).Generate(request, **call)
        return [message async for message in stream]


async def failure(address: str, request: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generated(address, request)
    return caught.value


async def test_pieces_come_and_then_the_end_with_its_receipt(model: World) -> None:
    async with served(model) as address:
        *told, last = await generated(address, pb.GenerateRequest(text="abc", request_id="mine"))
    assert [message.piece.text for message in told] == ["one", " two", " three"]
    assert [message.piece.energy_uj for message in told] == [100, 200, 300]
    assert [list(message.piece.token_ids) for message in told] == [[0], [1], [2]]
    end = last.end
    assert (end.finish_reason, end.usage) == (
        pb.FINISH_REASON_LENGTH,
        pb.Usage(prompt_tokens=3, output_tokens=3, total_tokens=6),
    )
    assert {message.receipt_id for message in (*told, last)} == {end.receipt.receipt_id}
    assert (last.request_id, last.variant, end.receipt.request_id) == ("mine", "fp32", "mine")
    assert end.timing.queue_ns == 1_000_000
    assert end.timing.first_token_ns >= 2_000_000
    assert not end.HasField("seed")
    assert [line.role for line in end.receipt.lines] == [pb.LINE_ROLE_PROMPT, pb.LINE_ROLE_OUTPUT]
    spent = end.receipt.generation
    assert (spent.prompt_energy_uj, spent.output_energy_uj, end.receipt.energy_uj) == (200, 400, 600)
    assert (spent.energy_per_output_token_uj, spent.energy_per_total_token_uj) == (200, 100)
    assert (spent.overhead_energy_uj, spent.prompt_tokens, spent.output_tokens) == (0, 3, 3)
    assert model.asked == [([97, 98, 99], Wish(CONTEXT - 3))]


async def test_all_that_is_asked_for_reaches_the_engine(model: World) -> None:
    request = pb.GenerateRequest(
        tokens=pb.TokenIds(ids=[1, 2]),
        max_new_tokens=5,
        sampling=pb.Sampling(temperature=0.7, top_k=4, top_p=0.9, repetition_penalty=1.2, seed=11),
        stop_strings=["end"],
        stop_token_ids=[7],
        ignore_eos=True,
        logprobs=2,
        max_energy_uj=1000,
    )
    model.script = Script(
        [Piece((5,), "x", (TokenScore(5, -0.5, ((5, -0.5), (6, -1.5))),), None)],
        Ended(FinishReason.STOP, "end", 2, 1, 0, 1, 2, 3),
    )
    async with served(model) as address:
        piece, last = await generated(address, request)
    wanted = Wish(5, Sampling(0.7, 4, 0.9, 1.2, 11), True, frozenset({7}), ("end",), 2, 1000)
    assert model.asked == [([1, 2], wanted)]
    assert not piece.piece.HasField("energy_uj")
    assert "is not known yet" in piece.piece.unknown_reason
    (score,) = piece.piece.scores
    assert (score.chosen.token_id, score.chosen.logprob) == (5, -0.5)
    assert [(each.token_id, each.logprob) for each in score.likeliest] == [(5, -0.5), (6, -1.5)]
    assert (last.end.finish_reason, last.end.stop_string) == (pb.FINISH_REASON_STOP, "end")
    assert last.end.seed == 11


async def test_without_a_seed_one_is_drawn_and_told(model: World) -> None:
    request = pb.GenerateRequest(text="abc", sampling=pb.Sampling(temperature=1.0))
    async with served(model) as address:
        seeds = {(await generated(address, request))[-1].end.seed for _ in range(2)}
    assert {wish.sampling.seed for _, wish in model.asked} == seeds
    assert len(seeds) == 2


def of(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"text": "abc"} | fields))


def sampling(**fields: Any) -> pb.GenerateRequest:
    return of(sampling=pb.Sampling(**fields))


def tokens(*ids: int, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(tokens=pb.TokenIds(ids=ids), **fields)


@pytest.mark.parametrize(
    ("request_", "field", "why"),
    [
        (pb.GenerateRequest(), "prompt", "needs a prompt"),
        (of(text=""), "text", "the prompt is empty"),
        (tokens(), "tokens.ids", "the sequence is empty"),
        (of(text="a\0b"), "text", "null character"),
        (of(text="a" * CONTEXT), "text", f"has {CONTEXT} tokens; this model's context is {CONTEXT}"),
        (tokens(*[1] * 40), "tokens.ids", f"takes at most {CONTEXT}"),
        (tokens(VOCABULARY), "tokens.ids", f"token id {VOCABULARY} is outside the vocabulary"),
        (tokens(-1), "tokens.ids", "token id -1 is outside"),
        (of(max_new_tokens=30), "max_new_tokens", "leaves 29"),
        (sampling(temperature=-0.1), "sampling.temperature", "temperature -0.1"),
        (sampling(temperature=math.nan), "sampling.temperature", "temperature nan"),
        (sampling(temperature=math.inf), "sampling.temperature", "temperature inf"),
        (sampling(top_p=0), "sampling.top_p", "top_p 0; above 0"),
        (sampling(top_p=math.nan), "sampling.top_p", "top_p nan"),
        (sampling(top_p=1.0000001), "sampling.top_p", "top_p 1.0000001; above 0"),
        (sampling(repetition_penalty=0), "sampling.repetition_penalty", "above 0"),
        (sampling(repetition_penalty=-1), "sampling.repetition_penalty", "above 0"),
        (sampling(seed=2**63), "sampling.seed", "from 0 to"),
        (of(stop_strings=["a"] * 17), "stop_strings", "at most 16"),
        (of(stop_strings=["a", ""]), "stop_strings[1]", "is empty"),
        (of(stop_strings=["a" * 257]), "stop_strings[0]", "at most 256"),
        (of(stop_token_ids=[1] * 65), "stop_token_ids", "at most 64"),
        (of(stop_token_ids=[VOCABULARY]), "stop_token_ids[0]", "outside the vocabulary"),
        (of(logprobs=21), "logprobs", "from 0 to 20"),
        (of(max_energy_uj=0), "max_energy_uj", "costs nothing"),
        (of(priority=4), "priority", "goes first"),
        (of(request_id="x" * 257), "request_id", "at most 256"),
        (of(variant="none"), "variant", "none"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named_by_its_field_and_never_runs(
    model: World, request_: pb.GenerateRequest, field: str, why: str
) -> None:
    async with served(model) as address:
        error = await failure(address, request_)
    assert why in (error.details() or "")
    assert details_in(error.trailing_metadata()).field == field
    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert not model.asked


async def test_bytes_that_are_no_utf_8_are_no_message(model: World) -> None:
    async with served(model) as address, grpc.aio.insecure_channel(address) as channel:
        generate: Any = channel.unary_stream("/wattserve.v1.Inference/Generate")
        call = generate(b"\x1a\x02\xff\xfe")
        with pytest.raises(grpc.aio.AioRpcError, match="not a message GenerateRequest") as caught:
            [message async for message in call]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_a_tokenizer_token_ids_go_in_and_out() -> None:
    model = world(has_tokenizer=False)
    model.script.pieces = pieces("")
    async with served(model) as address:
        text = await failure(address, TEXT)
        stops = await failure(address, tokens(1, stop_strings=["a"]))
        piece, _ = await generated(address, tokens(1))
    assert "no tokenizer: send token ids" in (text.details() or "")
    assert details_in(text.trailing_metadata()).field == "text"
    assert details_in(stops.trailing_metadata()).field == "stop_strings"
    assert list(piece.piece.token_ids) == [0]


async def test_each_kind_of_model_says_what_to_call_instead(model: World) -> None:
    classifier = world(generates=False)
    async with served(classifier) as address, grpc.aio.insecure_channel(address) as channel:
        error = await failure(address, TEXT)
        with pytest.raises(grpc.aio.AioRpcError, match="generates nothing: call Predict"):
            await InferenceStub(channel).Score(pb.ScoreRequest(text=pb.TextInput(texts=["abc"])))
    assert "generates nothing: call Predict" in (error.details() or "")
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    async with served(model) as address, grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="call Generate, or Score") as caught:
            await InferenceStub(channel).Predict(pb.PredictRequest(text=pb.TextInput(texts=["abc"])))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_what_fails_after_it_has_run_names_its_receipt(model: World) -> None:
    model.script = Script(pieces("one"), error=InferenceError("NaN"))
    async with served(model) as address:
        error = await failure(address, TEXT)
    (generation,) = model.generations
    assert reason_of(error) == "INFERENCE_FAILED"
    assert details_in(error.trailing_metadata()).receipt_id == generation.receipt.receipt_id
    assert generation.closed.is_set()


async def test_who_leaves_frees_its_place_and_is_charged(model: World) -> None:
    model.script.halt = asyncio.Event()
    async with served(model) as address, grpc.aio.insecure_channel(address) as channel:
        call: Any = InferenceStub(channel).Generate(TEXT)
        await call.read()
        call.cancel()
        (generation,) = model.generations
        await asyncio.wait_for(generation.closed.wait(), 30)
    assert generation.receipt.outcome is Outcome.CANCELLED
    assert generation.receipt.ran


async def test_the_servers_own_deadline_ends_it_and_names_the_receipt(model: World) -> None:
    model.script.halt = asyncio.Event()
    async with served(model, Deadlines(default_s=0.05)) as address:
        error = await failure(address, TEXT)
    (generation,) = model.generations
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert reason_of(error) == "SERVER_DEADLINE"
    assert details_in(error.trailing_metadata()).receipt_id == generation.receipt.receipt_id
    await asyncio.wait_for(generation.closed.wait(), 30)


async def read_on(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_who_does_not_read_loses_its_place_and_is_told_once_it_reads(model: World) -> None:
    model.script = Script([Piece((1,), "x" * 200_000, (), None)] * 100_000)  # more than waits on the way
    async with served(model, unread_s=0.05) as address, grpc.aio.insecure_channel(address) as channel:
        call: Any = InferenceStub(channel).Generate(TEXT)
        await call.read()
        (generation,) = model.generations
        await asyncio.wait_for(generation.closed.wait(), 30)
        with pytest.raises(grpc.aio.AioRpcError, match=r"waited 0\.05 s to be read") as caught:
            await read_on(call)
    assert reason_of(caught.value) == "SERVER_DEADLINE"
    assert details_in(caught.value.trailing_metadata()).receipt_id == generation.receipt.receipt_id


async def test_a_server_that_shuts_down_lets_a_generation_end_and_begins_none(model: World) -> None:
    model.script.halt = asyncio.Event()
    serving = Serving(model.host)
    async with served(model, serving=serving) as address, grpc.aio.insecure_channel(address) as channel:
        call: Any = InferenceStub(channel).Generate(TEXT)
        await call.read()
        serving.draining.set()
        refused = await failure(address, TEXT)
        idle = asyncio.create_task(serving.until_idle())
        await asyncio.sleep(0)
        assert not idle.done()
        model.script.halt.set()
        await read_on(call)
        await asyncio.wait_for(idle, 30)
    assert reason_of(refused) == "STARTING_OR_STOPPING"
    assert len(model.generations) == 1


async def test_a_generation_in_flight_counts_for_its_caller(model: World) -> None:
    model.script.halt = asyncio.Event()
    async with served(model, unkeyed=Unkeyed(1)) as address, grpc.aio.insecure_channel(address) as channel:
        stub: Any = InferenceStub(channel)  # one connection is one caller
        call = stub.Generate(TEXT)
        await call.read()
        with pytest.raises(grpc.aio.AioRpcError, match="in flight") as refused:
            await read_on(stub.Generate(TEXT))
        model.script.halt.set()
        await read_on(call)
        await read_on(stub.Generate(TEXT))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_given_texts_are_scored(model: World) -> None:
    async with served(model) as address, grpc.aio.insecure_channel(address) as channel:
        stub: Any = InferenceStub(channel)
        told = await stub.Score(pb.ScoreRequest(text=pb.TextInput(texts=["abc", "ab"]), request_id="mine"))
        ids = [pb.TokenIds(ids=[1, 2, 3]), pb.TokenIds(ids=[4])]
        with pytest.raises(grpc.aio.AioRpcError, match="it takes two") as caught:
            await stub.Score(pb.ScoreRequest(tokens=pb.TokenInput(sequences=ids)))
        with pytest.raises(grpc.aio.AioRpcError, match="needs texts or tokens"):
            await stub.Score(pb.ScoreRequest())
    assert details_in(caught.value.trailing_metadata()).field == "tokens.sequences[1]"
    assert [list(each.token_ids) for each in told.sequences] == [[97, 98, 99], [97, 98]]
    assert [list(each.logprobs) for each in told.sequences] == [[-1, -2], [-1]]
    assert [each.logprob_sum for each in told.sequences] == [-3, -1]
    assert (told.request_id, told.usage.prompt_tokens, told.usage.total_tokens) == ("mine", 5, 5)
    assert told.receipt.energy_uj == 100
    assert not told.receipt.HasField("generation")
