"""OpenAI's own client, unchanged, against real servers: a language model, a classifier, an encoder."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from openai import OpenAI

from tests.fixtures.models import save_encoder
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client
from wattserve_server.engine.builtin.random_weights import random_model

pytestmark = pytest.mark.long

PROMPT = "In the beginning God"
SETTLED = {"energy": "settled"}
TEXTS = ["a fine film", "dull"]
QUICK = ("--threads", "1", "--meter", "simulated", "--calibration-seconds", "0", "--http-port", "0")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if messages[0].role == 'assistant' %}{{ raise_exception('users begin') }}{% endif %}assistant:"
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--model", "demo-llm", "--variants", "fp32,bf16", *QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    with OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as made:
        yield made


def test_a_completion_says_what_generate_says(server: RunningServer, client: Any) -> None:
    told = client.completions.create(
        model="demo-llm",
        prompt=PROMPT,
        max_tokens=8,
        temperature=0,
        logprobs=2,
        extra_body={"energy": "settled"},
    )
    with Client(server.address) as native:
        same = native.generate(PROMPT, max_new_tokens=8)
        assert told.usage is not None
        energy = told.usage.energy
        receipt = native.receipt(energy["receipt_id"])
    (choice,) = told.choices
    assert (choice.text, choice.finish_reason) == (same.text, "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert (energy["state"], round(energy["joules"] * 1e6)) == ("settled", receipt.energy_uj)
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (6, 8)


def test_a_stream_of_a_variant_is_the_whole_in_pieces(client: Any) -> None:
    asked = {"model": "demo-llm@bf16", "prompt": PROMPT, "max_tokens": 12, "temperature": 0.8, "seed": 3}
    whole = client.completions.create(**asked)
    *chunks, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert {chunk.model for chunk in chunks} == {"demo-llm@bf16"}
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 12


def test_a_stop_is_not_in_the_answer(client: Any) -> None:
    told = client.completions.create(
        model="demo-llm", prompt=PROMPT, max_tokens=30, temperature=0, stop=[" God"]
    )
    assert (told.choices[0].finish_reason, " God" in told.choices[0].text) == ("stop", False)


def test_models_and_errors_are_of_the_kinds_that_the_client_knows(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["demo-llm", "demo-llm@fp32", "demo-llm@bf16"]
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-4", prompt="a")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="no chat template: send a prompt to /v1/completions"):
        client.chat.completions.create(model="demo-llm", messages=[{"role": "user", "content": "hi"}])


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Of a tiny model with a template."""
    folder = tmp_path_factory.mktemp("models") / "talker"
    made = random_model("gpt2-tiny")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: Any = made.make()
    model.save_pretrained(folder)
    tokenizer: Any = made.make_tokenizer(model.config)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    patient = ("--drain-seconds", "600")
    with running_server("--model", str(folder), "--variants", "fp32", *QUICK, *patient) as running:
        yield running


@pytest.fixture(scope="module")
def chat(talker: RunningServer) -> Iterator[Any]:
    with OpenAI(base_url=talker.openai_url, api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_goes_by_the_models_template(chat: Any) -> None:
    messages = [{"role": "system", "content": "be <|eos|>"}, {"role": "user", "content": "hi"}]
    asked = {"model": "talker", "max_completion_tokens": 6, "temperature": 0}
    told = chat.chat.completions.create(messages=messages, **asked)
    plain = chat.completions.create(
        model="talker", prompt="system: be <|eos|>\nuser: hi\nassistant:", max_tokens=6, temperature=0
    )
    assert told.choices[0].message.content == plain.choices[0].text
    assert told.usage.prompt_tokens == plain.usage.prompt_tokens
    chunks = chat.chat.completions.create(messages=messages, stream=True, **asked)
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == told.choices[0].message.content
    )
    with pytest.raises(openai.BadRequestError, match="template refuses this: users begin"):
        chat.chat.completions.create(model="talker", messages=[{"role": "assistant", "content": "hi"}])


def test_a_stream_that_runs_at_a_shutdown_comes_to_its_end(talker: RunningServer, chat: Any) -> None:
    stream = chat.completions.create(
        model="talker", prompt="abc", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    talker.process.send_signal(signal.SIGTERM)
    *_, last = stream
    assert last.choices[0].finish_reason == "length"
    assert talker.process.wait(timeout=600) == 0


def test_a_classifier_is_asked_as_vllm_has_it() -> None:
    with (
        running_server("--model", "demo", "--variants", "fp32", *QUICK) as running,
        OpenAI(base_url=running.openai_url, api_key="none", max_retries=0) as client,
        Client(running.address) as native,
    ):
        told = client.post("/classify", cast_to=object, body={"model": "demo", "input": TEXTS})
        assert isinstance(told, dict)
        same = native.predict(TEXTS)
        assert [each["label"] for each in told["data"]] == list(same.labels)
        assert np.allclose(
            [each["probs"] for each in told["data"]], [each.scores for each in same.classifications]
        )
        assert told["usage"]["energy"]["receipt_id"]
        limited = {"model": "demo", "input": TEXTS, "max_energy_uj": 1}
        with pytest.raises(openai.BadRequestError) as refused:
            client.post("/classify", cast_to=object, body=limited)
        assert refused.value.code in ("energy_limit", "law_unknown")
        with pytest.raises(openai.BadRequestError, match="call /v1/classify"):
            client.embeddings.create(model="demo", input="a")


def test_an_encoder_embeds(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "encoder")
    task = ("--task", "feature-extraction")
    with (
        running_server("--model", str(folder), *task, "--variants", "fp32", *QUICK) as running,
        OpenAI(base_url=running.openai_url, api_key="none", max_retries=0) as client,
        Client(running.address) as native,
    ):
        told = client.embeddings.create(model="encoder", input=["a good film", "bad"])  # in base64
        plain = client.embeddings.create(model="encoder", input=[[2, 4, 3]], encoding_format="float")
        same = native.predict(["a good film", "bad"])
        assert np.allclose([each.embedding for each in told.data], same.output)
        assert len(plain.data[0].embedding) == len(told.data[0].embedding)
        assert plain.usage.prompt_tokens == 3
