"""`wattserve-client generate` and `score`: the answer as it comes, and what it cost beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fixtures.fake_server.scripted import Call, Refuse, ScriptedServer, asked
from tests.unit.client.test_generations import PIECES, RECEIPT, stream
from wattserve_client import cli
from wattserve_proto.v1 import inference_pb2 as pb

Output = pytest.CaptureFixture[str]


def run(capsys: Output, server: ScriptedServer, *arguments: str, code: int = 0) -> tuple[str, str]:
    assert cli.main(["--target", server.target, *arguments]) == code
    out, error = capsys.readouterr()
    return out, error


def test_the_answer_stands_alone_and_its_cost_beside_it(capsys: Output, server: Any) -> None:
    server.script["Generate"] = [stream(*PIECES)]
    out, error = run(capsys, server, "generate", "a delightful", "--stop", "end", "--temperature", "0.5")
    assert out == "two films\n"
    lines = {line.partition(" ")[0]: " ".join(line.split()) for line in error.splitlines() if line}
    assert lines["ended"] == "ended at 'end'"
    assert lines["prompt"] == "prompt 2 J of it for 3 tokens"
    assert lines["output"] == "output 4 J of it for 2 tokens"
    assert lines["a"] == "a token 3 J of output, 1.2 J of prompt and output"
    assert lines["seed"] == "seed 11"
    assert "overhead" not in lines
    (request,) = asked(server, "Generate")
    assert request == pb.GenerateRequest(
        text="a delightful", sampling=pb.Sampling(temperature=0.5), stop_strings=["end"]
    )


def test_joules_that_a_preemption_cost_are_told_apart(capsys: Output, server: Any) -> None:
    (end,) = stream()
    end.end.receipt.generation.overhead_energy_uj = 500_000
    end.end.receipt.generation.recomputed_tokens = 7
    server.script["Generate"] = [[end]]
    _, error = run(capsys, server, "generate", "a")
    assert "0.5 J to read 7 tokens again, in no other figure" in error


def test_as_json_it_is_whole(capsys: Output, server: Any) -> None:
    server.script["Generate"] = [stream(*PIECES)]
    out, error = run(capsys, server, "generate", "--tokens", "4,5", "--seed", "3", "--json")
    told = json.loads(out)
    assert (told["text"], told["finish_reason"], told["usage"]["total_tokens"]) == ("two films", "stop", 5)
    assert told["receipt"]["generation"]["prompt_energy_uj"] == 2_000_000
    assert error == ""
    assert asked(server, "Generate")[0].tokens.ids == [4, 5]


@pytest.mark.parametrize(("texts", "shown"), [(("", "two"), "two\n"), (("", ""), "7 8\n")])
def test_token_ids_are_shown_where_no_text_comes(
    capsys: Output, server: Any, texts: tuple[str, str], shown: str
) -> None:
    """A piece without a text may be one whose text is held back."""
    pieces = [
        pb.GenerationPiece(token_ids=[token], text=text) for token, text in zip((7, 8), texts, strict=True)
    ]
    server.script["Generate"] = [stream(*pieces)]
    out, _ = run(capsys, server, "generate", "--tokens", "4,5")
    assert out == shown


def fails(request: Any, call: Call) -> Any:
    yield stream(PIECES[0], end=None)[0]
    call.refuse(Refuse("INTERNAL", "the model failed"))


def test_what_had_come_is_shown_when_it_fails(capsys: Output, server: Any) -> None:
    server.script["Generate"] = [fails]
    out, error = run(capsys, server, "generate", "a", code=1)
    assert out == "two \n"
    assert "the model failed" in error


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("generate",), 2, "takes PROMPT or --tokens"),
        (("generate", "a", "--tokens", "1"), 2, "takes PROMPT or --tokens"),
        (
            ("generate", "a", "--max-new-tokens", "-3"),
            2,
            "max_new_tokens is -3; it must be from 0 to 4294967295",
        ),
        (("generate", "a", "--top-k", "99999999999"), 2, "top_k is 99999999999; it must be from 0 to"),
        (("generate", "a", "--temperature", "nan"), 2, "it must be a finite number"),
        (("score",), 2, "takes TEXT or --tokens"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: Output, server: Any, arguments: tuple[str, ...], code: int, why: str
) -> None:
    out, error = run(capsys, server, *arguments, code=code)
    assert (out, error.count("\n")) == ("", 1)
    assert why in error


def test_scores_are_rows_with_one_receipt(capsys: Output, server: Any) -> None:
    told = pb.ScoreResponse(
        sequences=[pb.SequenceScore(token_ids=[1, 2, 3], logprobs=[-1, -2], logprob_sum=-3)], receipt=RECEIPT
    )
    server.script["Score"] = [told]
    out, _ = run(capsys, server, "score", "a film", "--settled")
    assert out.splitlines()[1].split() == ["-3.000", "-1.500", "3", "a", "film"]
    out, _ = run(capsys, server, "score", "a film", "--json")
    assert json.loads(out)["sequences"][0]["logprob_sum"] == -3
