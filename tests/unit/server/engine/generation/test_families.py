"""Every family of models answers in steps what transformers' own `generate` answers, in any company."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from tests.fixtures.language_models import FAMILIES, VOCABULARY, generated, language_model
from wattserve_server.engine.generation import stepper
from wattserve_server.engine.generation.attention import use_own_attention
from wattserve_server.engine.generation.cache import CachePool
from wattserve_server.engine.generation.stepper import Part
from wattserve_server.engine.tasks.causal import with_linear_layers
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError

NEW = 24
CHUNK = 16
LENGTHS = (5, 40, 17)  # shorter and longer than a window, and than a chunk


def variant_of(module: Any) -> Variant:
    built = SimpleNamespace(module=module)
    return cast(Variant, SimpleNamespace(threads=0, device=torch.device("cpu"), built=built))


@pytest.mark.parametrize("family", FAMILIES)
def test_it_generates_what_transformers_does(family: str) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, VOCABULARY, length).tolist() for length in LENGTHS]
    expected = [generated(language_model(family), prompt, NEW) for prompt in prompts]
    module = with_linear_layers(language_model(family))
    use_own_attention(cast(Any, module), family)
    variant = variant_of(module)
    pool = CachePool(1 << 20, 256)
    pool.token_bytes = 1
    caches = [pool.open() for _ in prompts]
    pending, answers = [list(prompt) for prompt in prompts], [list[int]() for _ in prompts]
    for step in range(60):
        at = [index for index in range(len(prompts)) if step >= 3 * index and len(answers[index]) < NEW]
        parts = []
        for index in at:  # they come one after the other, and their prompts in parts
            ids = np.array(pending[index][:CHUNK], dtype=np.int64)
            assert caches[index].reserve(caches[index].length + len(ids))
            is_last = len(ids) == len(pending[index])
            parts.append(Part(ids, caches[index], int(is_last), decodes=bool(answers[index])))
        if not parts:
            break
        logits = stepper.run(variant, stepper.prepare(parts))
        for index, part, rows in zip(at, parts, logits, strict=True):
            caches[index].advance(len(part.token_ids))
            del pending[index][: len(part.token_ids)]
            if part.rows:
                answers[index].append(int(rows[-1].argmax()))
                pending[index].append(answers[index][-1])
    assert answers == expected


def test_without_a_step_sequences_stand_one_to_a_row() -> None:
    module = language_model("gemma2")
    ids = torch.tensor([[5, 6, 7, 8], [9, 5, 5, 6]])
    with torch.inference_mode():
        expected = module(ids).logits
        use_own_attention(module, "gemma2")
        assert torch.allclose(module(ids, use_cache=False).logits, expected, atol=1e-5)


def test_a_model_whose_attention_cannot_be_exchanged_is_refused_by_name() -> None:
    bloom = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2))
    with pytest.raises(ConfigError, match="'some/bloom' is a BloomForCausalLM, whose attention"):
        use_own_attention(bloom, "some/bloom")
