"""Loading causal language models: how their task is found, what is refused by name, and those with random
weights with their tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BartConfig, BertConfig, GPT2Config, T5Config, ViTConfig

from tests.fixtures.models import save_classifier
from wattserve_server.engine.builtin.byte_tokenizer import byte_tokenizer
from wattserve_server.engine.builtin.random_weights import RANDOM_MODELS, build_random_model
from wattserve_server.engine.model import load_model, task_of
from wattserve_server.engine.tasks import task_by_config, task_named
from wattserve_server.errors import ConfigError

SMALL = ("gpt2-tiny", "llama-tiny", "qwen-tiny", "mistral-tiny", "gemma-tiny")
GENERATE = task_named("text-generation")
BYTES = byte_tokenizer(GPT2Config(vocab_size=300, bos_token_id=299, eos_token_id=299))


def save_config(folder: Path, config: Any, **more: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_dict() | more), "utf-8")
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `save_pretrained` writes it, without a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    model: Any = build_random_model("llama-tiny")
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "text-generation"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "text-generation"),
        ({"architectures": ["DistilBertForSequenceClassification"]}, "sequence-classification"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "sequence-classification"),
        ({"architectures": ["ResNetForImageClassification"]}, "image-classification"),
        ({"auto_map": {"AutoModelForCausalLM": "ours.Ours"}, "architectures": ["Ours"]}, "text-generation"),
        ({"architectures": ["BertModel"]}, "sequence-classification"),
        ({"architectures": None}, "sequence-classification"),
        ({}, "sequence-classification"),
    ],
)
def test_the_task_is_found_from_the_config(config: dict[str, Any], task: str) -> None:
    assert task_by_config(config).name == task


def test_a_name_goes_before_what_is_found(llama: Path, tmp_path: Path) -> None:
    assert task_of(str(llama)).name == "text-generation"
    assert task_of(str(llama), "feature-extraction").name == "feature-extraction"
    assert task_of(str(save_classifier(tmp_path / "classifier"))).name == "sequence-classification"
    assert task_of("demo").name == "sequence-classification"
    assert task_of("random:resnet18").name == "image-classification"
    assert {task_of(f"random:{name}").name for name in (*SMALL, "gpt2")} == {"text-generation"}


def test_a_folder_that_is_not_there_is_refused_before_its_task_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"'\./nowhere' does not exist"):
        task_of("./nowhere")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            T5Config(),
            "cannot do the task text-generation: t5 is an encoder and a decoder, and only a decoder alone",
        ),
        (BartConfig(), "cannot do the task text-generation: bart is an encoder and a decoder"),
        (
            BertConfig(),
            "cannot do the task text-generation: bert is an encoder: a token sees those behind it",
        ),
        (ViTConfig(), "cannot do the task text-generation: its architecture has no AutoModelForCausalLM"),
    ],
)
def test_what_has_no_causal_decoder_is_refused_by_name(tmp_path: Path, config: Any, why: str) -> None:
    folder = save_config(tmp_path / "model", config)
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    with pytest.raises(ConfigError, match=why):
        load_model(str(folder), GENERATE)


def test_a_checkpoint_without_its_head_is_refused(llama: Path, tmp_path: Path) -> None:
    model: Any = build_random_model("llama-tiny")
    model.base_model.save_pretrained(tmp_path / "headless")
    with pytest.raises(
        ConfigError, match=r"no weights for lm_head\.weight: it is not a text-generation checkpoint"
    ):
        load_model(str(tmp_path / "headless"), GENERATE)


def test_a_causal_model_comes_from_a_folder_as_it_was_saved(llama: Path) -> None:
    model = load_model(str(llama), GENERATE)
    assert model.tokenizer is None  # so that requests send ids
    assert (model.facts.max_tokens, model.facts.vocabulary_size) == (1024, 1024)
    ours, theirs = model.weights.module.state_dict(), build_random_model("llama-tiny").state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("name", SMALL)
def test_a_random_language_model_tells_the_next_token_in_any_company(name: str) -> None:
    model = load_model(f"random:{name}", GENERATE)
    assert model.has_random_weights
    assert model.parameters <= 1_100_000
    items = [GENERATE.example(model.facts, model.tokenizer, length, length) for length in (3, 90, 17)]
    with torch.inference_mode():
        together = GENERATE.forward(model.weights.module, GENERATE.collate(items, model.facts))
        for item, row in zip(items, together, strict=True):
            alone = model.weights.module(input_ids=torch.from_numpy(item)[None]).logits[0, -1]
            assert torch.allclose(row, alone, atol=1e-4)
            best = alone.topk(2).values
            assert best[0] - best[1] > 1e-3


def test_random_gpt2_has_gpt2s_size() -> None:
    with torch.device("meta"):
        module = RANDOM_MODELS["gpt2"].make()
    assert sum(parameter.numel() for parameter in module.parameters()) == 124_439_808


@given(st.text(max_size=60))
def test_the_byte_tokenizer_gives_every_text_back(text: str) -> None:
    ids = BYTES(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert BYTES.decode(ids, skip_special_tokens=True) == text


def test_the_byte_tokenizer_knows_each_id_of_the_model_and_takes_no_text_for_a_special_one() -> None:
    assert len(BYTES) == 300
    assert [BYTES.decode([i]) for i in (256, 257, 298)] == [" aa", " ab", " bq"]
    assert BYTES.eos_token_id == 299
    assert 299 not in BYTES("<|eos|><|bos|>")["input_ids"]


def test_a_vocabulary_too_small_for_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="a vocabulary of 200 has no room for 256 bytes"):
        byte_tokenizer(GPT2Config(vocab_size=200))
