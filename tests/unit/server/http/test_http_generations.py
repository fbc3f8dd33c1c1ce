"""Completions and chats: what a generation is told in OpenAI's form, whole or in events, and its cost."""

from __future__ import annotations

import math
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tests.fixtures.http_front import CHAT, COMPLETION, Desked, chatty_world, texts
from tests.fixtures.language_model import CONTEXT, Script
from wattserve_server.engine.generation.port import Piece, TokenScore
from wattserve_server.errors import InferenceError
from wattserve_server.http import replies
from wattserve_server.http.wire import encoded
from wattserve_server.service.keys import ApiKey
from wattserve_server.service.spending import Spending

SCORES = (TokenScore(5, -0.5, ((5, -0.5), (6, -math.inf))),)

LONG = [
    ("/v1/completions", COMPLETION | {"logprobs": 2}),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}),
]


@pytest.fixture
def desk() -> Desked:
    return Desked(chatty_world())


async def test_a_completion_is_told_whole_with_what_it_cost(desk: Desked) -> None:
    reply = await desk.ask("/v1/completions", COMPLETION | {"energy": "settled"})
    told = reply.json
    (choice,) = told["choices"]
    assert choice == {"index": 0, "text": "one two three", "logprobs": None, "finish_reason": "length"}
    usage = told["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 3, 6)
    energy = usage["energy"]
    assert (energy["state"], energy["joules"], energy["prompt_joules"]) == ("settled", 600e-6, 200e-6)
    assert energy["interval_joules"] == [600e-6, 600e-6]
    assert energy["source"]["quality"] == "simulated"
    assert reply.headers["x-wattserve-receipt-id"] == energy["receipt_id"]
    assert told["id"] == f"cmpl-{energy['receipt_id']}"
    assert (told["object"], told["model"]) == ("text_completion", "de@mo@fp32")
    assert desk.count("wattserve_requests_total", variant="fp32", code="OK") == 1
    assert desk.count("wattserve_output_tokens_total", variant="fp32") == 3


@pytest.mark.parametrize("streams", [True, False])
async def test_a_soft_budget_that_is_used_up_warns_in_a_header(desk: Desked, streams: bool) -> None:
    used = "tenant shop has used 5 of 4 J/day"
    key = ApiKey("0" * 12, "0" * 64, "shop", ("predict",), budgets=("soft 4 J/day",))
    predictor, engine = cast(Any, desk.api._predictor), cast(Any, desk.of.host.engine)
    engine.foreseen_uj = lambda items, hosted, scores: 1
    predictor.spending_of = lambda caller: Spending(
        Mock(check=Mock(return_value=""), check_more=Mock(return_value=used)), key, "shop"
    )
    reply = await desk.ask("/v1/completions", COMPLETION | {"stream": streams})
    assert (reply.status, reply.headers["wattserve-budget-warning"]) == (200, used)
    predictor.spending_of = lambda caller: None
    reply = await desk.ask("/v1/completions", COMPLETION | {"stream": streams})
    assert (reply.status, "wattserve-budget-warning" in reply.headers) == (200, False)


async def test_energy_is_provisional_until_it_is_asked_to_settle(desk: Desked) -> None:
    halted = await desk.ask("/v1/completions", COMPLETION, headers={"x-wattserve-energy": "later"})
    assert (halted.status, halted.error["param"]) == (400, "energy")
    settled = await desk.ask("/v1/completions", COMPLETION, headers={"x-wattserve-energy": "settled"})
    assert settled.json["usage"]["energy"]["state"] == "settled"


async def test_events_come_piece_by_piece_and_then_the_usage(desk: Desked) -> None:
    asked = COMPLETION | {"stream": True, "stream_options": {"include_usage": True}}
    reply = await desk.ask("/v1/completions", asked)
    *pieces, last, usage = reply.events
    assert [texts([event]) for event in pieces] == ["one", " two", " three"]
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert last["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)
    assert usage["usage"]["energy"]["receipt_id"] == reply.headers["x-wattserve-receipt-id"]


async def test_without_asking_a_stream_tells_no_usage(desk: Desked) -> None:
    reply = await desk.ask("/v1/completions", COMPLETION | {"stream": True})
    assert all("usage" not in event for event in reply.events)


async def test_each_event_tells_what_was_used_so_far_where_that_is_asked_for(desk: Desked) -> None:
    asked = COMPLETION | {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    *pieces, _ = (await desk.ask("/v1/completions", asked)).events
    assert [event["usage"]["completion_tokens"] for event in pieces] == [1, 2, 3]
    assert pieces[1]["usage"]["energy"] == {"joules": 200e-6, "state": "provisional"}
    assert pieces[2]["usage"]["total_tokens"] == 6


async def test_a_generation_that_says_nothing_ends_its_stream(desk: Desked) -> None:
    desk.of.script = Script(pieces=[Piece((2,), "", (), 100)])
    (last,) = (await desk.ask("/v1/completions", COMPLETION | {"stream": True})).events
    assert last["choices"][0]["finish_reason"] == "length"


async def test_a_chat_begins_with_its_role(desk: Desked) -> None:
    first, *_, last = (await desk.ask("/v1/chat/completions", CHAT | {"stream": True})).events
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    whole = (await desk.ask("/v1/chat/completions", CHAT)).json
    assert whole["choices"][0]["message"]["content"] == "one two three"


async def test_a_chat_without_a_number_of_tokens_gets_what_context_and_cache_leave(desk: Desked) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": parts}, {"role": "user", "content": "c", "name": "me"}]
    await desk.ask("/v1/chat/completions", CHAT | {"messages": messages})
    prompt, wish = desk.of.asked[-1]
    assert bytes(prompt) == b"sa\nbuc"
    assert (wish.max_new_tokens, wish.takes_what_fits) == (CONTEXT - len(prompt), True)
    await desk.ask("/v1/chat/completions", CHAT | {"max_completion_tokens": 4, "max_tokens": 4})
    wish = desk.of.asked[-1][1]
    assert (wish.max_new_tokens, wish.takes_what_fits) == (4, False)


async def test_the_name_of_who_speaks_is_the_templates_and_is_a_text(desk: Desked) -> None:
    seen: list[Any] = []
    tokenizer: Any = desk.of.host.tokenizer
    encode = tokenizer.encode_chat

    async def see(messages: Any, *where: str) -> Any:
        seen.append(messages)
        return await encode(messages, *where)

    tokenizer.encode_chat = see
    message = {"role": "user", "content": "c"}
    await desk.ask("/v1/chat/completions", CHAT | {"messages": [message | {"name": "me"}, message]})
    assert seen == [[message | {"name": "me"}, message]]
    refused = await desk.ask("/v1/chat/completions", CHAT | {"messages": [message | {"name": 5}]})
    assert (refused.status, refused.error["param"]) == (400, "messages[0].name")


@pytest.mark.parametrize("request_id", ["order 7", "caf\N{LATIN SMALL LETTER E WITH ACUTE}-7"])
async def test_a_request_id_is_the_receipts_as_its_client_wrote_it(desk: Desked, request_id: str) -> None:
    await desk.ask("/v1/completions", COMPLETION, headers={"x-request-id": request_id})
    assert desk.of.generations[-1].receipt.request_id == request_id


async def test_what_is_asked_for_reaches_the_engine(desk: Desked) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7, "stop": ["x", "y"], "max_tokens": 5}
    more = {"ignore_eos": True, "stop_token_ids": [9], "max_energy_uj": 10, "logprobs": 2}
    nothing = {"n": 1, "presence_penalty": 0, "logit_bias": {}, "tools": None, "user": "me", "echo": False}
    nothing |= {"metadata": {"a": "b"}, "service_tier": "auto", "safety_identifier": "me"}
    nothing |= {"prompt_cache_key": "k"}
    reply = await desk.ask("/v1/completions", COMPLETION | sampling | more | nothing)
    assert reply.json["usage"]["seed"] == 7
    prompt, wish = desk.of.asked[-1]
    assert (bytes(prompt), wish.max_new_tokens, wish.best) == (b"abc", 5, 2)
    assert (wish.sampling.temperature, wish.sampling.top_p, wish.sampling.top_k) == (0.5, 0.9, 3)
    assert (wish.stop_strings, wish.stop_ids, wish.ignores_end) == (("x", "y"), frozenset({9}), True)
    assert (wish.sampling.seed, wish.max_energy_uj) == (7, 10)
    await desk.ask("/v1/completions", COMPLETION | {"prompt": [[7, 8]], "model": "de@mo@bf16"})
    assert desk.of.asked[-1][0] == [7, 8]
    assert desk.of.asked[-1][1].sampling.temperature == 1.0
    assert desk.of.generations[-1].receipt.variant == "bf16"
    await desk.ask("/v1/completions", COMPLETION | {"max_completion_tokens": 3})
    assert desk.of.asked[-1][1].max_new_tokens == 3


async def test_log_probabilities_are_told_as_each_kind_tells_them(desk: Desked) -> None:
    desk.of.script = Script(pieces=[Piece((5,), "five", SCORES, 100)])
    told = (await desk.ask("/v1/completions", COMPLETION | {"logprobs": 2})).json["choices"][0]["logprobs"]
    assert told["tokens"] == ["<5>"]
    assert told["top_logprobs"] == [{"<5>": -0.5, "<6>": -9999.0}]
    asked = CHAT | {"logprobs": True, "top_logprobs": 2}
    (content,) = (await desk.ask("/v1/chat/completions", asked)).json["choices"][0]["logprobs"]["content"]
    assert (content["token"], content["logprob"], content["bytes"]) == ("<5>", -0.5, [60, 53, 62])
    assert [each["token"] for each in content["top_logprobs"]] == ["<5>", "<6>"]


@pytest.mark.parametrize(("path", "asked"), LONG)
async def test_log_probabilities_of_a_whole_answer_are_encoded_piece_by_piece(
    desk: Desked, path: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = '","logprobs":null,"'  # which is in the answer before its own
    pieces = [
        Piece((token,), odd, (TokenScore(token, -0.5, ((token, -0.5), (6, -1))),), 1) for token in range(40)
    ]
    desk.of.script = Script(pieces=pieces)
    streamed = (await desk.ask(path, asked | {"stream": True})).events
    told: dict[str, list[Any]] = {}
    for event in streamed:
        for name, values in (event["choices"][0]["logprobs"] or {}).items():
            told[name] = told[name] + values if name in told and values else values
    lengths: list[int] = []

    def encoding(content: Any) -> str:
        lengths.append(len(encoded(content)) if "-0.5" in encoded(content) else 0)
        return encoded(content)

    monkeypatch.setattr(replies, "encoded", encoding)
    (choice,) = (await desk.ask(path, asked)).json["choices"]
    assert choice["logprobs"] == told
    assert (choice.get("text") or choice["message"]["content"]) == odd * 40
    assert 0 < max(lengths) < len(encoded(choice["logprobs"])) / 20


async def test_what_fails_in_mid_stream_is_told_in_it_with_its_receipt(desk: Desked) -> None:
    desk.of.script.error = InferenceError("the model failed")
    *pieces, last = (await desk.ask("/v1/completions", COMPLETION | {"stream": True})).events
    assert texts(pieces) == "one two three"
    assert last["error"]["receipt_id"] == desk.of.generations[-1].receipt.receipt_id
    whole = await desk.ask("/v1/completions", COMPLETION)
    assert (whole.status, whole.headers["x-should-retry"]) == (500, "false")
    assert whole.error["type"] == "server_error"


async def test_models_are_listed_with_each_variant(desk: Desked) -> None:
    listed = (await desk.ask("/v1/models", method="GET")).json["data"]
    assert [model["id"] for model in listed] == ["de@mo", "de@mo@fp32", "de@mo@bf16", "de@mo@int8@cpu"]
    one = await desk.ask("/v1/models/de@mo@int8@cpu", method="GET")
    assert one.json["max_model_len"] == CONTEXT
    assert (await desk.ask("/v1/models/other", method="GET")).error["code"] == "model_not_found"
