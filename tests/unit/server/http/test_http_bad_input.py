"""What a client can send wrong: OpenAI's error, the name of the field, a sentence that says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.http_front import CHAT, COMPLETION, MOST_BYTES, Desked, chatty_world
from wattserve_server.errors import InvalidRequest, OverloadedError, SpentError
from wattserve_server.http.body import object_of
from wattserve_server.service.gate import Gate, KeyFile
from wattserve_server.service.keys import changing, new_key
from wattserve_server.service.quota import Quotas

IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
STRANGER = {"role": "tool", "content": "a"}
USER = {"role": "user", "content": "a"}
PLANTED = "planted-words"
TOOL = {"type": "function", "function": {"name": "f"}}

BAD: dict[str, tuple[str, Any, str, str]] = {
    "unknown model": ("", {"model": "gpt-4"}, "model", "this server has 'de@mo'"),
    "unknown variant": ("", {"model": "de@mo@fp8"}, "model", "this server has fp32, bf16"),
    "no model": ("", {"model": None}, "model", "is missing"),
    "a model that is a number": ("", {"model": 3}, "model", "3 is no text"),
    "no prompt": ("", {"prompt": None}, "prompt", "is missing"),
    "an empty prompt": ("", {"prompt": ""}, "prompt", "empty"),
    "several prompts": ("", {"prompt": ["a", "b"]}, "prompt", "send each as a request of its own"),
    "a text and a number": ("", {"prompt": ["a", 1]}, "prompt", "things of several kinds"),
    "ids beyond the vocabulary": ("", {"prompt": [3, 4000]}, "prompt", "4000 is no token id, 0 to 299"),
    "ids among texts": ("", {"prompt": [[1, "a"]]}, "prompt", "a text is no token id"),
    "too long": ("", {"prompt": "a" * 40}, "prompt[0]", "takes at most 32; shorten it"),
    "too much": ("", {"max_tokens": 30}, "max_tokens", "it leaves 29"),
    "no tokens": ("", {"max_tokens": 0}, "max_tokens", "at least 1"),
    "half a token": ("", {"max_tokens": 1.5}, "max_tokens", "no whole number"),
    "n": ("", {"n": 2}, "n", "leave it out, and send that many requests"),
    "echo": ("", {"echo": True}, "echo", "leave it out"),
    "skip_special_tokens": ("", {"skip_special_tokens": False}, "skip_special_tokens", "leave it out"),
    "unknown field": ("", {"foo": 1}, "foo", "known are"),
    "temperature": ("", {"temperature": -1}, "temperature", "from 0"),
    "temperature as a text": ("", {"temperature": "hot"}, "temperature", "leave its quotes out"),
    "a length as a text": ("", {"max_tokens": "3"}, "max_tokens", "leave its quotes out"),
    "a chat's length as a text": ("chat", {"max_completion_tokens": "3"}, "max_tokens", "leave its quotes"),
    "too long a chat": ("chat", {"max_tokens": 2**70}, "max_tokens", "it leaves"),
    "a priority as a text": ("", {"priority": "1"}, "priority", "leave its quotes out"),
    "a stop token as a text": ("", {"stop_token_ids": [1, "2"]}, "stop_token_ids", "leave its quotes out"),
    "n that is 0": ("", {"n": 0}, "n", "leave it out"),
    "n that is true": ("", {"n": True}, "n", "True is no number"),
    "n that is false": ("", {"n": False}, "n", "False is no number"),
    "top_p": ("", {"top_p": 0}, "top_p", "above 0"),
    "stop": ("", {"stop": [1]}, "stop", "neither a text nor a list of texts"),
    "logprobs": ("", {"logprobs": 21}, "logprobs", "from 0 to 20"),
    "seed": ("", {"seed": -1, "temperature": 1}, "seed", "from 0"),
    "stream": ("", {"stream": "true"}, "stream", "leave its quotes out"),
    "a stream that is a number": ("", {"stream": 1}, "stream", "neither true nor false"),
    "options without a stream": ("", {"stream_options": {"include_usage": True}}, "stream_options", "of a"),
    "a user that is a list": ("", {"user": [1]}, "user", "no text"),
    "priority": ("", {"priority": 99}, "priority", "goes first"),
    "energy": ("", {"energy": {}}, "energy", "no text"),
    "min_tokens": ("", {"min_tokens": 3}, "min_tokens", "ignore_eos"),
    "messages that are none": ("chat", {"messages": "hi"}, "messages", "no list"),
    "no messages": ("chat", {"messages": []}, "messages", "the list is empty"),
    "a message that is a text": ("chat", {"messages": ["hi"]}, "messages[0]", "no object"),
    "an unknown role": ("chat", {"messages": [STRANGER]}, "messages[0].role", "known here"),
    "an image": ("chat", {"messages": [IMAGE]}, "messages[0].content[0]", "images"),
    "no content": ("chat", {"messages": [{"role": "user"}]}, "messages[0].content", "neither a text"),
    "a call of a tool": ("chat", {"messages": [USER | {"tool_calls": [TOOL]}]}, "messages[0]", "tool_calls"),
    "tools": ("chat", {"tools": [TOOL]}, "tools", "not offered"),
    "json": ("chat", {"response_format": {"type": "json_object"}}, "response_format", "not offered"),
    "top_logprobs alone": ("chat", {"top_logprobs": 3}, "top_logprobs", "logprobs: true"),
    "two lengths": ("chat", {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "give one"),
    "a chat too long": ("chat", {"messages": [USER | {"content": "a" * 40}]}, "messages", "context is 32"),
}  # fmt: skip

BODIES = {
    b"{nope": "not JSON",
    b"[]": "no object",
    b"\xff": "not UTF-8",
    b'{"a":' * 90_00 + b"1": "not JSON",
    b'{"max_tokens": ' + b"9" * 5000 + b"}": "a number of over 4300 digits",
    b'{"model": "\\ud800"}': "surrogate",
    b'{"max_tokens": 1, "prompt": "a", "max_tokens": 30}': "the key 'max_tokens' more than once",
    b'{"prompt": [{"": 1, "": 1}]}': "the key '' more than once",
    b"[" + b"0," * 49_000 + b"0]": "no object",
    b"a" * (MOST_BYTES + 1): "at most 100000 bytes",
}


@pytest.fixture(scope="module")
def desk() -> Desked:
    return Desked(chatty_world())


@pytest.mark.parametrize("name", BAD)
async def test_it_is_refused_by_its_field_and_nothing_runs(desk: Desked, name: str) -> None:
    kind, wrong, field, words = BAD[name]
    path, good = ("/v1/chat/completions", CHAT) if kind else ("/v1/completions", COMPLETION)
    before = len(desk.of.generations)
    reply = await desk.ask(path, good | wrong)
    assert reply.status == (404 if "unknown" in name and field == "model" else 400)
    error = reply.error
    assert error["param"] == field
    assert words in error["message"]
    assert (error["type"], len(desk.of.generations)) == ("invalid_request_error", before)
    assert reply.headers["x-should-retry"] == "false"


async def test_a_compressed_body_is_told_that_none_is_taken(desk: Desked) -> None:
    reply = await desk.ask("/v1/completions", COMPLETION, headers={"content-encoding": "gzip"})
    assert reply.status == 415
    assert "content-encoding 'gzip': send it uncompressed" in reply.error["message"]
    plain = await desk.ask("/v1/completions", COMPLETION, headers={"content-encoding": "identity"})
    assert plain.status == 200


@pytest.mark.parametrize("body", BODIES, ids=BODIES.values())
async def test_a_body_that_is_no_request_says_why(desk: Desked, body: bytes) -> None:
    reply = await desk.ask("/v1/completions", body)
    assert reply.status == (413 if len(body) > MOST_BYTES else 400)
    assert (reply.error["param"], BODIES[body] in reply.error["message"]) == ("body", True)


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"1," * 400_000 + b"1]",
        b'{"a": [' + b"[]," * 70_000 + b"1]}",
        b'{"a":' * 40_000,
        b'{"":1,' * 70_000,
    ],
    ids=["numbers", "lists", "objects", "keys"],
)
def test_more_parts_than_can_be_read_at_once_are_refused_unread(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr("wattserve_server.service.oip_sampling.json.loads", None)
    with pytest.raises(InvalidRequest, match="too many parts to be read at once"):
        object_of(data)


def test_what_a_body_may_hold_is_read() -> None:
    rows = [[30_000] * 512] * 256
    assert object_of(json.dumps({"input": rows}).encode()) == {"input": rows}
    text = '{"a":[1,2]}' * 18_000  # 200,000 characters
    assert object_of(json.dumps({"prompt": text}).encode()) == {"prompt": text}


async def test_of_too_many_stop_tokens_none_is_looked_at(desk: Desked) -> None:
    reply = await desk.ask("/v1/completions", COMPLETION | {"stop_token_ids": [{}] * 65})
    assert "65 stop tokens; at most 64" in reply.error["message"]


@pytest.mark.parametrize("key", ["model", "prompt", "max_tokens", "stop", "logit_bias", "stream", "energy"])
async def test_however_deep_a_value_is_it_is_the_callers_mistake(desk: Desked, key: str) -> None:
    for depth in range(800, 1000, 2):  # about as deep as Python goes, which depends on who calls
        data = json.dumps(COMPLETION | {key: "@"}).replace('"@"', "[" * depth + "]" * depth)
        reply = await desk.ask("/v1/completions", data.encode())
        assert reply.status == 400, depth


TEXTS: dict[str, tuple[str, Any]] = {
    "in an object": ("", {"prompt": {"text": PLANTED}}),
    "among ids": ("", {"prompt": [1, PLANTED]}),
    "as a chat's messages": ("chat/", {"messages": PLANTED}),
    "as a message": ("chat/", {"messages": [PLANTED]}),
    "as a role": ("chat/", {"messages": [{"role": [PLANTED], "content": "a"}]}),
    "as content": ("chat/", {"messages": [{"role": "user", "content": {"a": PLANTED}}]}),
    "as a part": ("chat/", {"messages": [{"role": "user", "content": [PLANTED]}]}),
    "as a stop string that is too long": ("", {"stop": PLANTED * 30}),
    "as one in an object": ("", {"stop": {"a": PLANTED}}),
    "in place of a number": ("", {"max_tokens": [PLANTED]}),
    "as options": ("", {"stream_options": PLANTED}),
    "as the model": ("", {"model": [PLANTED]}),
    "as the whole body": ("", PLANTED),
}


@pytest.mark.parametrize("how", TEXTS)
async def test_a_text_in_the_wrong_place_is_told_to_nobody(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desked(chatty_world())
    where, given = TEXTS[how]
    if isinstance(given, dict):
        given = (CHAT if where else COMPLETION) | given
    reply = await desk.ask(f"/v1/{where}completions", given)
    assert reply.status == 400
    assert PLANTED not in reply.body.decode()
    assert PLANTED not in str(desk.observer.failures)  # which the status page shows
    assert PLANTED not in caplog.text


async def test_another_sites_page_in_a_browser_is_no_caller(desk: Desked) -> None:
    for headers, status in (
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://evil.example"}, 403),  # all that they say by plain HTTP to another machine
        ({"origin": "null"}, 403),
        ({"origin": "http://here:8000"}, 403),
        ({"origin": "http://Here"}, 200),
        ({"origin": "http://evil.example", "authorization": "Bearer it-has-one"}, 200),
        ({"origin": "http://behind-a-proxy", "sec-fetch-site": "same-origin"}, 200),
    ):
        reply = await desk.ask("/v1/completions", COMPLETION, headers=headers)
        assert reply.status == status, headers


async def test_what_is_not_there_is_told_with_what_is(desk: Desked) -> None:
    reply = await desk.ask("/v1/images/generations", {})
    assert (reply.status, "/v1/chat/completions" in reply.error["message"]) == (404, True)
    reply = await desk.ask("/v1/completions", method="GET")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    reply = await desk.ask("/v1/completions", method="A" * 3000)
    assert (reply.status, len(reply.error["message"]) < 300) == (405, True)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/classify", "/classify"])
async def test_a_model_of_another_task_says_what_to_call(desk: Desked, path: str) -> None:
    reply = await desk.ask(path, {"model": "de@mo", "input": "a"})
    assert (reply.error["code"], "/v1/completions" in reply.error["message"]) == ("not_possible_here", True)


async def test_an_encoder_generates_nothing() -> None:
    reply = await Desked(chatty_world(generates=False)).ask("/v1/completions", COMPLETION)
    assert "call /v1/embeddings" in reply.error["message"]


async def test_without_a_tokenizer_a_chat_is_refused() -> None:
    desk = Desked(chatty_world(has_tokenizer=False))
    reply = await desk.ask("/v1/chat/completions", CHAT)
    assert (reply.status, "no tokenizer" in reply.error["message"]) == (400, True)
    assert (await desk.ask("/v1/completions", COMPLETION | {"prompt": [1, 2]})).status == 200


async def test_who_finds_no_room_is_told_when_to_come_again(desk: Desked) -> None:
    def full(*asked: Any) -> None:
        raise OverloadedError("the queue is full", "time", 2.5)

    engine: Any = desk.of.host.engine
    engine.check_room = full
    reply = await desk.ask("/v1/completions", COMPLETION)
    assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
    assert (reply.headers["retry-after-ms"], reply.headers["retry-after"]) == ("2500", "3")
    assert reply.headers["x-should-retry"] == "true"


@pytest.mark.parametrize(
    ("given", "count"),
    [("a film", 1), (["one", "two", "three"], 3), ([1, 2], 1), ([[1], [2, 3]], 2), ([], 1)],
)
async def test_an_encoders_sequences_are_counted_before_they_are_looked_at(given: Any, count: int) -> None:
    desk, asked_for = Desked(chatty_world(generates=False)), list[int]()

    def full(*asked: Any) -> None:
        asked_for.append(asked[4])
        raise OverloadedError("the queue is full", "time", 2.5)

    engine: Any = desk.of.host.engine
    engine.check_room = full
    reply = await desk.ask("/v1/embeddings", {"model": COMPLETION["model"], "input": given})
    assert (reply.status, asked_for) == (429, [count])


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (COMPLETION | {"stream": "x"}, {}, 400),
        (COMPLETION, {"content-encoding": "gzip"}, 415),
        (b" " * (MOST_BYTES + 1), {}, 413),
        (b"{", {}, 400),
    ],
)
async def test_what_is_refused_counts_for_the_requests_of_its_key(
    tmp_path: Path, body: Any, headers: dict[str, str], status: int
) -> None:
    shown, key = new_key("shop", ("predict",), 1.0, 0, ())
    with changing(tmp_path / "keys.toml") as keys:
        keys[key.id] = key
    quotas = Quotas(lambda: 0.0)
    gate = Gate(KeyFile(str(tmp_path / "keys.toml")), quotas)
    desk = Desked(chatty_world(), gate, quotas=quotas)
    given = {"authorization": f"Bearer {shown}", **headers}
    assert [(await desk.ask("/v1/completions", body, headers=given)).status for _ in range(3)] == [
        status, 429, 429
    ]  # fmt: skip


async def test_who_has_spent_his_budget_is_not_told_to_wait_for_its_end(desk: Desked) -> None:
    def spent(*asked: Any) -> None:
        raise SpentError("spent", "tenant_budget", 86_400.0)

    engine: Any = desk.of.host.engine
    engine.check_room = spent
    reply = await desk.ask("/v1/completions", COMPLETION)
    assert (reply.status, reply.error["code"]) == (429, "budget_spent")
    assert (reply.headers["x-should-retry"], "retry-after" in reply.headers) == ("false", False)


async def test_while_it_starts_or_drains_nothing_new_is_taken() -> None:
    desk = Desked(chatty_world())
    desk.serving.draining.set()
    for path, method in (("/v1/completions", "POST"), ("/health", "GET")):
        reply = await desk.ask(path, COMPLETION, method)
        assert (reply.status, reply.error["code"]) == (503, "starting_or_stopping")
    desk.serving.draining.clear()
    assert (await desk.ask("/health", method="GET")).status == 200
    desk.serving.host = None
    assert (await desk.ask("/v1/models", method="GET")).status == 503
