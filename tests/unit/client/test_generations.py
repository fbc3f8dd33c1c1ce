"""What a language model is asked for and what is made of its answer, by `Client` and by `AsyncClient`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.fixtures.fake_server.scripted import Call, Refuse, ScriptedServer, asked, refuse_with_details
from wattserve_client import (
    AsyncClient,
    AsyncGenerationStream,
    Client,
    FinishReason,
    GenerationPiece,
    InvalidRequest,
    LineRole,
    Overloaded,
    ServerError,
    TokenLogprob,
    TokenScore,
    Unavailable,
    Usage,
)
from wattserve_proto.v1 import inference_pb2 as pb

RECEIPT = pb.Receipt(
    receipt_id="r-1",
    state=pb.ENERGY_STATE_SETTLED,
    source=pb.EnergySource(name="s", method="apportioned simulation", quality=pb.ENERGY_QUALITY_SIMULATED),
    energy_uj=6_000_000,
    lines=[pb.ReceiptLine(role=pb.LINE_ROLE_PROMPT), pb.ReceiptLine(role=pb.LINE_ROLE_OUTPUT)],
    generation=pb.GenerationEnergy(
        prompt_energy_uj=2_000_000,
        output_energy_uj=4_000_000,
        energy_per_output_token_uj=3_000_000.5,
        energy_per_total_token_uj=1_200_000,
        overhead_energy_uj=0,
        prompt_tokens=3,
        output_tokens=2,
    ),
)
SCORE = pb.TokenScore(
    chosen=pb.TokenLogprob(token_id=8, logprob=-0.5), likeliest=[pb.TokenLogprob(token_id=8, logprob=-0.5)]
)
PIECES = [
    pb.GenerationPiece(token_ids=[7, 8], text="two ", scores=[SCORE, SCORE], energy_uj=1_500_000),
    pb.GenerationPiece(text="films", unknown_reason="no law"),
]
END = pb.GenerationEnd(
    finish_reason=pb.FINISH_REASON_STOP,
    stop_string="end",
    usage=pb.Usage(prompt_tokens=3, output_tokens=2, total_tokens=5),
    receipt=RECEIPT,
    timing=pb.Timing(total_ns=9, first_token_ns=4),
    seed=11,
)


def stream(*pieces: pb.GenerationPiece, end: pb.GenerationEnd | None = END) -> list[pb.GenerateResponse]:
    told = [pb.GenerateResponse(request_id="mine", variant="bf16", piece=piece) for piece in pieces]
    if end is not None:
        told.append(pb.GenerateResponse(request_id="mine", variant="bf16", end=end))
    return told


def test_the_whole_answer_is_made_of_its_pieces(server: Any, client: Any) -> None:
    server.script["Generate"] = [stream(*PIECES)]
    answer = client.generate("a delightful")
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("two films", (7, 8), FinishReason.STOP)
    assert answer.scores == (TokenScore(TokenLogprob(8, -0.5), (TokenLogprob(8, -0.5),)),) * 2
    assert (answer.request_id, answer.variant, answer.stop_string, answer.seed) == ("mine", "bf16", "end", 11)
    assert answer.usage == Usage(3, 2, 5)
    assert (answer.timing.first_token_ns, answer.timing.total_ns) == (4, 9)
    assert [line.role for line in answer.receipt.lines] == [LineRole.PROMPT, LineRole.OUTPUT]
    assert (answer.energy_joules, answer.prompt_joules, answer.output_joules) == (6, 2, 4)
    assert (answer.joules_per_output_token, answer.joules_per_token) == (3.0000005, 1.2)


def test_a_stream_gives_each_piece_and_then_the_result(server: Any, client: Any) -> None:
    server.script["Generate"] = [stream(*PIECES)]
    pieces = client.generate_stream("a delightful")
    first = next(pieces)
    assert (first.text, first.energy_joules) == ("two ", 1.5)
    with pytest.raises(RuntimeError, match="not come to its end"):
        _ = pieces.result
    assert list(pieces) == [GenerationPiece((), "films", (), None, "no law")]
    assert pieces.result.text == "two films"


def test_all_options_are_sent(server: Any, client: Any) -> None:
    server.script["Generate"] = [stream()]
    client.generate(
        np.array([4, 5]), variant="bf16", request_id="mine", max_new_tokens=7, temperature=0.5, top_k=3,
        top_p=0.9, repetition_penalty=1.1, seed=11, stop="end", stop_token_ids=[9], ignore_eos=True,
        logprobs=0, max_energy_uj=1000, priority=3, wait_for_settled_energy=True,
    )  # fmt: skip
    client.generate("a film", stop=["a", "b"])
    first, second = asked(server, "Generate")
    assert first == pb.GenerateRequest(
        request_id="mine",
        variant="bf16",
        tokens=pb.TokenIds(ids=[4, 5]),
        max_new_tokens=7,
        sampling=pb.Sampling(temperature=0.5, top_k=3, top_p=0.9, repetition_penalty=1.1, seed=11),
        stop_strings=["end"],
        stop_token_ids=[9],
        ignore_eos=True,
        logprobs=0,
        max_energy_uj=1000,
        priority=3,
        wait_for_settled_energy=True,
    )
    assert second == pb.GenerateRequest(text="a film", stop_strings=["a", "b"])


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        (["a", "b"], {}, TypeError),
        (np.zeros((3, 2, 2), np.float32), {}, TypeError),
        ([], {}, ValueError),
        ("a", {"temperature": "hot"}, TypeError),
        ("a", {"temperature": math.nan}, ValueError),
        ("a", {"temperature": 10**400}, ValueError),
        ("a", {"stop_token_ids": [2**31]}, ValueError),
        ("a", {"max_new_tokens": -1}, ValueError),
        ("a", {"max_new_tokens": 1.5}, TypeError),
        ("a", {"max_new_tokens": 2**40}, ValueError),
        ("a", {"seed": 2**63}, ValueError),
        ("a", {"stop": [1]}, TypeError),
        ("a", {"ignore_eos": 1}, TypeError),
        ("a", {"temprature": 1}, TypeError),
    ],
)
def test_what_cannot_be_sent_is_refused_before(
    server: Any, client: Any, prompt: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        client.generate(prompt, **options)
    assert "Generate" not in server.calls


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    "refusal",
    [
        Refuse("RESOURCE_EXHAUSTED", "full"),
        refuse_with_details("UNAVAILABLE", "starting", "STARTING_OR_STOPPING"),
    ],
    ids=["full", "starting"],
)
def test_what_did_not_run_is_asked_again(server: Any, client: Any, refusal: Refuse) -> None:
    server.script["Generate"] = [refusal, refusal, stream(*PIECES)]
    assert client.generate("a delightful").text == "two films"
    assert len(server.calls["Generate"]) == 3


def broken(request: Any, call: Call) -> Any:
    yield stream(PIECES[0], end=None)[0]
    call.refuse(refuse_with_details("UNAVAILABLE", "starting", "STARTING_OR_STOPPING"))


@pytest.mark.usefixtures("short_pauses")
def test_what_has_begun_is_never_asked_again(server: Any, client: Any) -> None:
    server.script["Generate"] = [broken, stream(*PIECES)]
    pieces = client.generate_stream("a delightful")
    assert next(pieces).text == "two "
    with pytest.raises(Unavailable):
        next(pieces)
    assert len(server.calls["Generate"]) == 1


@pytest.mark.usefixtures("short_pauses")
def test_the_servers_errors_are_the_clients(server: Any, client: Any) -> None:
    server.script["Generate"] = [Refuse("INVALID_ARGUMENT", "text: the prompt is empty"), stream(end=None)]
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        client.generate("a")
    with pytest.raises(ServerError, match="ended without its end"):
        client.generate("a")
    server.script["Score"] = [Refuse("RESOURCE_EXHAUSTED", "full")]
    with pytest.raises(Overloaded):
        client.score("a b")
    assert len(server.calls["Score"]) == 5


def wait_for_leaving(request: Any, call: Call) -> Any:
    yield stream(PIECES[0], end=None)[0]
    call.ended.wait(30)


def test_leaving_a_stream_ends_the_call(server: Any, client: Any) -> None:
    server.script["Generate"] = [wait_for_leaving]
    pieces = client.generate_stream("a delightful")
    next(pieces)
    pieces.close()
    (call,) = server.calls["Generate"]
    assert call.ended.wait(30)


def test_given_texts_are_scored(server: Any, client: Any) -> None:
    told = pb.ScoreResponse(
        variant="bf16",
        sequences=[pb.SequenceScore(token_ids=[1, 2, 3], logprobs=[-1, -2], logprob_sum=-3)],
        usage=pb.Usage(prompt_tokens=3, total_tokens=3),
        receipt=RECEIPT,
    )
    server.script["Score"] = [told]
    answer = client.score(["a film"], variant="bf16", priority=1)
    client.score([1, 2, 3])
    (sequence,) = answer.sequences
    assert (sequence.token_ids, sequence.logprobs.tolist(), sequence.logprob_sum) == ((1, 2, 3), [-1, -2], -3)
    assert (answer.usage.total_tokens, answer.energy_joules) == (3, 6)
    assert asked(server, "Score") == [
        pb.ScoreRequest(variant="bf16", text=pb.TextInput(texts=["a film"]), priority=1),
        pb.ScoreRequest(tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=[1, 2, 3])])),
    ]
    with pytest.raises(TypeError, match="takes no truncate"):
        client.score("a", truncate=True)


def test_a_closed_client_says_so(server: ScriptedServer) -> None:
    with Client(server.target) as client:
        pieces = client.generate_stream("a")
    with pytest.raises(RuntimeError, match="is closed"):
        next(pieces)


async def test_an_async_stream_is_closed_by_its_block(server: ScriptedServer) -> None:
    server.script["Generate"] = [wait_for_leaving]
    async with AsyncClient(server.target) as client, client.generate_stream("a") as pieces:
        assert isinstance(pieces, AsyncGenerationStream)
        await anext(pieces)
    (call,) = server.calls["Generate"]
    assert call.ended.wait(30)
