"""From a body of OpenAI's API to what is asked of the engine. Errors name the key in the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from wattserve_server.engine.generation.port import TokenIds
from wattserve_server.errors import InvalidRequest, NotPossibleHere
from wattserve_server.http.body import ENERGY, Body, plain
from wattserve_server.http.errors import MODEL
from wattserve_server.service.caller import CALLER
from wattserve_server.service.checks import (
    MAX_TEXT_CHARACTERS,
    check_count,
    check_energy_limit,
    check_length,
    check_request_id,
    check_texts,
    check_tokenizer,
    check_truncates,
    shown,
)
from wattserve_server.service.generation import AskedGeneration
from wattserve_server.service.oip_sampling import KEYS, NEUTRAL, given_by, kind_of, told
from wattserve_server.service.prediction import Asked, Host, Options
from wattserve_server.service.wishes import Given, Places, check_prompt, wish_of

ENERGY_HEADER, REQUEST_ID_HEADER = "x-wattserve-energy", "x-request-id"
STOP = "stop"

# The last ones say how to keep or bill what is not kept or billed here.
_ALWAYS = frozenset({
    MODEL, "priority", ENERGY, "user", "metadata", "prompt_cache_key", "safety_identifier", "service_tier",
})  # fmt: skip
_GENERATION = _ALWAYS | {
    "stream", "stream_options", "min_tokens", "max_completion_tokens", "logprobs", *KEYS,
}  # fmt: skip
_COMPLETION = _GENERATION | {"prompt"}
_CHAT = _GENERATION | {"messages", "top_logprobs", "parallel_tool_calls"}  # of tools, which nobody has here
_ENCODER = _ALWAYS | {"input", "truncate", "max_energy_uj"}

_NOT_OFFERED: dict[str, Any] = {
    **NEUTRAL, "echo": False, "suffix": "", "logit_bias": {}, "tools": [], "tool_choice": "none",
    "functions": [], "function_call": "none", "response_format": {"type": "text"}, "modalities": ["text"],
    "audio": {}, "prediction": {}, "reasoning_effort": "none", "verbosity": "medium",
    "web_search_options": {}, "store": False,
}  # fmt: skip
_SO_FAR = "continuous_usage_stats"
_NO_ENCODING: dict[str, Any] = {"dimensions": 0}

ROLES = ("system", "developer", "user", "assistant")
_OF_MESSAGES = ("role", "content", "name")
MOST_MESSAGES = 1024

PLACES = Places(
    max_new_tokens="max_tokens",
    temperature="temperature",
    top_k="top_k",
    top_p="top_p",
    repetition_penalty="repetition_penalty",
    seed="seed",
    stop_ids="stop_token_ids",
    stop_strings=STOP,
    best="logprobs",
    max_energy_uj="max_energy_uj",
)
_CHAT_PLACES = replace(PLACES, best="top_logprobs", max_new_tokens="max_completion_tokens")


class AskedText(NamedTuple):
    """asked: of the engine. The rest: how it is told."""

    asked: AskedGeneration
    streams: bool
    tells_usage: bool  # of a stream, in an event of its own
    tells_so_far: bool  # of a stream, in every event


def completion_asked(body: Body, headers: Mapping[str, str], host: Host) -> AskedText:
    """Raises InvalidRequest; NotPossibleHere for a text where there is no tokenizer."""
    body.check_keys(_COMPLETION, _NOT_OFFERED)
    prompt = _prompt(body, host)
    given = replace(_given(body, {}), best=body.whole("logprobs") if "logprobs" in body else None)
    return _asked(body, headers, host, prompt, "prompt", given, PLACES)


async def chat_asked(body: Body, headers: Mapping[str, str], host: Host) -> AskedText:
    """As `completion_asked`. Where no number of tokens is given it gets what context and cache leave."""
    body.check_keys(_CHAT, _NOT_OFFERED)
    messages = _messages(body)
    tells = body.truth("logprobs")
    if "top_logprobs" in body and not tells:
        raise InvalidRequest("needs logprobs: true", "top_logprobs")
    check_tokenizer(host.engine.model, host.tokenizer is not None, "messages")
    assert host.tokenizer is not None
    prompt = await host.tokenizer.encode_chat(messages, "messages", CALLER.get().name)
    left = max(1, host.engine.model.facts.max_tokens - len(prompt))
    given = replace(_given(body, {"max_tokens": left}), best=body.whole("top_logprobs") if tells else None)
    takes_what_fits = _most_tokens(body) is None
    return _asked(body, headers, host, prompt, "messages", given, _CHAT_PLACES, takes_what_fits)


def told_sequences(body: Body) -> int:
    """How many an encoder's request says it has, before it is looked at."""
    value = body.get("input")
    return len(value) if isinstance(value, list) and not all(isinstance(each, int) for each in value) else 1


def encoder_asked(body: Body, headers: Mapping[str, str], host: Host, *more: str) -> Asked:
    """Of what takes texts or token ids, one or several. more: keys that its address knows beside."""
    body.check_keys(_ENCODER.union(more), _NO_ENCODING)
    model, limit = host.engine.model, host.engine.limits.max_request
    if not model.task.takes_text:
        raise NotPossibleHere(f"{model.name} does the task {model.task.name}: call Predict by gRPC", MODEL)
    value = body.get("input")
    given = [value] if isinstance(value, str) else body.items_of("input")
    are_texts = all(isinstance(each, str) for each in given)
    truncates = check_truncates(body.truth("truncate"), are_texts, "truncate")
    most_uj = None
    if "max_energy_uj" in body:
        most_uj = check_energy_limit(max(0, body.whole("max_energy_uj")), "max_energy_uj")
    options = _options(body, headers)._replace(truncates=truncates, max_energy_uj=most_uj)
    if are_texts:
        check_tokenizer(model, host.tokenizer is not None, "input")
        return Asked(options, "input", texts=check_texts(given, limit, "input"), variant_field=MODEL)
    rows = given if all(isinstance(each, list) for each in given) else [given]
    check_count(len(rows), limit, "input")
    items = [_ids(row, host, f"input[{index}]") for index, row in enumerate(rows)]
    return Asked(options, "input", items, variant_field=MODEL)


def _asked(
    body: Body,
    headers: Mapping[str, str],
    host: Host,
    prompt: str | TokenIds,
    place: str,
    given: Given,
    places: Places,
    takes_what_fits: bool = False,
) -> AskedText:
    streams = body.truth("stream")
    how = body.get("stream_options", {})
    if not isinstance(how, dict) or (how and not streams):
        raise InvalidRequest("an object, of a stream alone", "stream_options")
    wanted = Body(how)
    wanted.check_keys(frozenset({"include_usage", _SO_FAR}), {"include_obfuscation": False})
    if "max_tokens" in body:  # errors name what was sent
        places = replace(places, max_new_tokens="max_tokens")
    wish = wish_of(given, host.engine.model.facts, host.tokenizer is not None, places)
    wish = replace(wish, takes_what_fits=takes_what_fits)
    asked = AskedGeneration(_options(body, headers), prompt, place, wish, places, MODEL)
    return AskedText(asked, streams, wanted.truth("include_usage"), wanted.truth(_SO_FAR))


def _options(body: Body, headers: Mapping[str, str]) -> Options:
    if body.get("user") is not None:  # it says nothing here, and a text is all that it may be
        body.text("user")
    request_id = check_request_id(_text_of(headers.get(REQUEST_ID_HEADER, "")), REQUEST_ID_HEADER)
    return Options(request_id, body.priority(), body.waits_for_energy(headers.get(ENERGY_HEADER)))


def _text_of(header: str) -> str:
    """Its bytes come as Latin-1; clients mostly write UTF-8."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _most_tokens(body: Body) -> Any:
    """As it was sent, by either name; None where it was not."""
    return body.get("max_completion_tokens", body.get("max_tokens"))


def _given(body: Body, unless_given: Mapping[str, Any]) -> Given:
    """Its sampling parameters, log-probabilities apart."""
    most = _most_tokens(body)
    if body.get("max_tokens", most) != most:
        raise InvalidRequest("differs from max_completion_tokens: give one", "max_tokens")
    wanted = {**unless_given, **body} | ({} if most is None else {"max_tokens": most})
    numbers = {key: plain(key, wanted[key]) for key in KEYS if key in wanted and key != STOP}
    given = given_by({**numbers, STOP: wanted.get(STOP)}, str)
    least = body.whole("min_tokens")
    if least and (
        not given.ignores_end or given.stop_strings or given.stop_ids or least > given.max_new_tokens
    ):
        raise InvalidRequest("is kept with ignore_eos: true, without stop, up to max_tokens", "min_tokens")
    return given


def _prompt(body: Body, host: Host) -> str | TokenIds:
    value = body.get("prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if not all(isinstance(each, type(value[0])) for each in value):
            raise InvalidRequest(
                "holds things of several kinds: give a text, or the ids of its tokens", "prompt"
            )
        if len(value) > 1:
            raise InvalidRequest(
                f"{len(value)} prompts; send each as a request of its own: they share the model's steps",
                "prompt",
            )
        value = value[0]
    if isinstance(value, list):
        return _ids(value, host, "prompt")
    check_tokenizer(host.engine.model, host.tokenizer is not None, "prompt")
    return check_prompt(Body({"prompt": value}).text("prompt"), "prompt")


def _ids(row: Sequence[Any], host: Host, place: str) -> TokenIds:
    facts = host.engine.model.facts
    check_length(len(row), facts, place)
    for token in row:
        if type(token) is not int or not 0 <= token < facts.vocabulary_size:
            raise InvalidRequest(
                f"{kind_of(token)} is no token id, 0 to {facts.vocabulary_size - 1}; texts and "
                "ids do not mix",
                place,
            )
    return np.array(row, dtype=np.int64)


def _messages(body: Body) -> list[dict[str, str]]:
    given = body.items_of("messages")
    if len(given) > MOST_MESSAGES:
        raise InvalidRequest(f"{len(given)} messages; at most {MOST_MESSAGES}", "messages")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(given)]
    characters = sum(len(message["content"]) + len(message.get("name", "")) for message in messages)
    if characters > MAX_TEXT_CHARACTERS:
        raise InvalidRequest(
            f"{characters} characters; at most {MAX_TEXT_CHARACTERS} of a request are tokenised", "messages"
        )
    return messages


def _message(message: Any, place: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise InvalidRequest("is no object with a role and a content", place)
    if message.get("role") not in ROLES:
        raise InvalidRequest(
            f"role {told(message.get('role'))}; known here are {', '.join(ROLES)}", f"{place}.role"
        )
    for key, value in message.items():
        if key not in _OF_MESSAGES and value:  # a reply's own fields, sent back empty, ask for nothing
            raise InvalidRequest(f"{shown(key)} is not offered here: leave it out", place)
    # `developer` is OpenAI's newer word, which no template knows.
    role = "system" if message["role"] == "developer" else message["role"]
    found = {"role": role, "content": _content(message.get("content"), f"{place}.content")}
    if message.get("name") is not None:
        found["name"] = _content(message["name"], f"{place}.name")
    return found


def _content(content: Any, place: str) -> str:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise InvalidRequest("is neither a text nor a list of parts", place)
    texts = []
    for index, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidRequest(
                "is no part of type text: images, sounds and files are not taken", f"{place}[{index}]"
            )
        if "\0" in text:  # a tokenizer would drop it without a word
            raise InvalidRequest("holds a null character", place)
        texts.append(text)
    return "\n".join(texts)
