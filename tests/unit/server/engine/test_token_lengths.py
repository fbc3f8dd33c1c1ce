"""How long a text each architecture takes: the longest accepted sequence runs, and nothing is given away."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, GPT2Config, Phi3Config

from tests.fixtures.models import save_classifier
from wattserve_server.engine.model import load_model, task_of
from wattserve_server.engine.tasks import task_named
from wattserve_server.errors import ConfigError

POSITIONS = 24
TASK = task_named("sequence-classification")
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
}
OWN: dict[str, dict[str, Any]] = {
    "longformer": {"attention_window": [4]},
    "luke": {"entity_vocab_size": 8, "entity_emb_size": 8},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "esm": {"pad_token_id": 1},
}
PADDED = [
    "camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm",
    "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
]  # fmt: skip
FROM_ZERO = [
    "albert",
    "bert",
    "electra",
    "ernie",
    "layoutlm",
    "megatron-bert",
    "nystromformer",
    "rembert",
    "yoso",
]


def config_of(architecture: str, **more: Any) -> Any:
    return AutoConfig.for_model(architecture, **(SMALL | OWN.get(architecture, {}) | more))


def runs(config: Any, length: int) -> bool:
    facts = TASK.facts("x", config, None)
    items = [np.full(length, 5, dtype=np.int64), np.full(max(1, length - 3), 6, dtype=np.int64)]
    inputs = TASK.collate(items, facts)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    try:
        with torch.inference_mode():
            model(**inputs)
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("architecture", PADDED)
def test_the_longest_sequence_fits_a_table_that_starts_after_the_padding_id(architecture: str) -> None:
    config = config_of(architecture)
    facts = TASK.facts("x", config, None)
    assert facts.max_tokens == POSITIONS - config.pad_token_id - 1
    assert runs(config, facts.max_tokens)
    assert not runs(config, facts.max_tokens + 1)


@pytest.mark.parametrize("architecture", FROM_ZERO)
def test_the_longest_sequence_fits_a_table_that_starts_at_zero(architecture: str) -> None:
    config = config_of(architecture)
    facts = TASK.facts("x", config, None)
    assert facts.max_tokens == POSITIONS
    assert runs(config, facts.max_tokens)


@pytest.mark.parametrize("architecture", ["roberta", "mpnet", "markuplm"])
def test_the_longest_sequence_runs_whatever_the_padding_id(architecture: str) -> None:
    for pad_id in (0, 3):
        config = config_of(architecture, pad_token_id=pad_id)
        facts = TASK.facts("x", config, None)
        assert runs(config, facts.max_tokens)
        assert not runs(config, facts.max_tokens + 1)


def test_rotary_positions_need_no_table() -> None:
    config = config_of("esm", position_embedding_type="rotary")
    facts = TASK.facts("x", config, None)
    assert facts.max_tokens == POSITIONS
    assert runs(config, POSITIONS)


def test_long_rope_ends_where_one_text_would_turn_the_positions_of_others() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    scaling: dict[str, Any] = {"type": "longrope", **factors}
    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "pad_token_id": 0}
    config = Phi3Config(
        **sizes, max_position_embeddings=1024, original_max_position_embeddings=64, rope_scaling=scaling
    )
    assert TASK.facts("x", config, None).max_tokens == 64
    assert TASK.facts("x", Phi3Config(**sizes, max_position_embeddings=1024), None).max_tokens == 1024


@pytest.mark.parametrize("architecture", PADDED)
def test_a_model_without_padding_id_is_refused_with_the_reason(architecture: str) -> None:
    config = config_of(architecture)
    config.pad_token_id = None
    with pytest.raises(ConfigError, match="model 'x' has no padding token, without which"):
        TASK.facts("x", config, None)


@pytest.mark.parametrize("pad_id", [-1, 64, 10**9])
def test_a_padding_id_that_the_vocabulary_lacks_is_refused(pad_id: int) -> None:
    config = GPT2Config(vocab_size=64, pad_token_id=pad_id)
    with pytest.raises(ConfigError, match=rf"pad_token_id in .* is {pad_id}; .* the ids 0 to 63$"):
        TASK.facts("x", config, None)


@pytest.mark.parametrize("pad_id", [None, -1, 64])
def test_a_decoder_which_never_sees_padding_needs_no_padding_id(pad_id: int | None) -> None:
    facts = task_named("text-generation").facts("x", GPT2Config(vocab_size=64, pad_token_id=pad_id), None)
    assert facts.pad_id == 0


def test_a_tokenizer_file_that_lacks_something_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match=r"cannot load the tokenizer of .*: its file lacks 'added_tokens'"):
        load_model(str(folder), task_named("sequence-classification"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_heads", 0),
        ("eos_token_id", ["a"]),
        ("dtype", "os.system"),
        ("architectures", 5),
        ("auto_map", [[]]),
    ],
)
def test_a_config_with_a_wrong_value_is_refused_or_not_heeded(
    name: str, value: object, tmp_path: Path
) -> None:
    """Whatever transformers raises of it, there is one line for it."""
    folder = save_classifier(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))
    with suppress(ConfigError):
        load_model(str(folder), task_of(str(folder)))


@pytest.mark.parametrize("content", ["[]", "[" * 200_000])
def test_a_tokenizer_file_that_is_none_is_told_in_a_line(content: str, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"cannot load the tokenizer of .*"):
        load_model(str(folder), task_named("sequence-classification"))
