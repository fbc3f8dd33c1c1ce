"""Every family of models answers in steps what transformers' own `generate` answers, in any company."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    DiffLlamaConfig,
    Lfm2Config,
    Llama4TextConfig,
    PhimoeConfig,
    PreTrainedConfig,
)

from tests.fixtures.language_models import FAMILIES, SIZES, VOCABULARY, generated, language_model
from tests.fixtures.step_world import StepWorld
from wattserve_server.engine.generation import stepper
from wattserve_server.engine.generation.attention import use_own_attention
from wattserve_server.engine.generation.cache import BLOCK, CachePool, token_bytes
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.port import TokenIds
from wattserve_server.engine.generation.proof import check_steps
from wattserve_server.engine.generation.scheduler import Step
from wattserve_server.engine.generation.stepper import Part
from wattserve_server.engine.tasks.causal import with_linear_layers
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError

NEW = 24
CHUNK = 16
LENGTHS = (5, 40, 17)  # shorter and longer than a window, and than a chunk


def variant_of(module: Any) -> Variant:
    built = SimpleNamespace(module=module)
    return cast(
        Variant, SimpleNamespace(device=torch.device("cpu"), built=built, at_work=torch.inference_mode)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_it_generates_what_transformers_does(family: str) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, VOCABULARY, length).tolist() for length in LENGTHS]
    expected = [generated(language_model(family), prompt, NEW) for prompt in prompts]
    module = with_linear_layers(language_model(family))
    use_own_attention(cast(Any, module), family)
    check_steps(family, module)
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
    layers = caches[0]._layers.values()  # of room for as many tokens as its capacity
    held_bytes = sum(tensor.numel() * tensor.element_size() for pair in layers for tensor in pair)
    assert held_bytes == caches[0].capacity * token_bytes(cast(Any, module).config, 4)


class WithModel(StepWorld):
    """A queue whose steps a model computes."""

    def __init__(self, variant: Variant, members: int, step_tokens: int, blocks: int) -> None:
        super().__init__(members, step_tokens, blocks)
        self._variant = variant

    def compute(self, step: Step) -> list[NDArray[np.float32]]:
        parts = []
        for member, count, _ in step.parts:
            assert member.cache is not None
            parts.append(Part(member.tokens(count), member.cache, 1, decodes=member.is_decoding))
        return stepper.run(self._variant, stepper.prepare(parts))


class Asked(NamedTuple):
    text: int  # which of the prompts
    joins: int  # before so many steps
    leaves: int | None  # behind so many


asked = st.builds(Asked, st.integers(0, 5), st.integers(0, 30), st.none() | st.none() | st.integers(0, 40))
CROWD = [Asked(text, 0, None) for text in (3, 4, 3, 4)]  # whose second blocks there is no room for


@functools.cache
def served(family: str) -> tuple[Variant, list[TokenIds], list[list[int]]]:
    """With prompts, and what transformers answers them."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(1, VOCABULARY, length) for length in (2, 20, 45, BLOCK - 9, BLOCK - 2, 90)]
    answers = [generated(language_model(family), prompt.tolist(), NEW) for prompt in prompts]
    module = with_linear_layers(language_model(family))
    use_own_attention(cast(Any, module), family)
    return variant_of(module), prompts, answers


@pytest.mark.parametrize("family", ["gpt2", pytest.param("mistral", marks=pytest.mark.long)])
@given(
    jobs=st.lists(asked, min_size=1, max_size=7),
    members=st.integers(1, 5),
    step_tokens=st.integers(4, 40),
    blocks=st.integers(2, 6),
)
@example(jobs=CROWD, members=4, step_tokens=64, blocks=4)
@settings(max_examples=12, deadline=None)
def test_whoever_joins_leaves_or_loses_its_place_each_answers_what_it_would_alone(
    family: str, jobs: list[Asked], members: int, step_tokens: int, blocks: int
) -> None:
    variant, prompts, answers = served(family)
    world, steps, began = WithModel(variant, members, step_tokens, blocks), 0, list[tuple[Asked, Member]]()
    waiting = sorted(jobs, key=lambda job: job.joins, reverse=True)
    while True:
        while waiting and waiting[-1].joins <= steps:
            job = waiting.pop()
            began.append((job, world.ask(prompts[job.text], NEW)))
        for job, member in began:
            if job.leaves == steps and world.queue.withdraw(member.request) == 0:
                world.queue.leave(member)
        is_over = world.step() is None
        steps += 1
        if is_over and not waiting:
            break
    for job, member in began:
        expected = answers[job.text]
        assert member.produced == expected[: len(member.produced)]
        assert job.leaves is not None or member.produced == expected
    if jobs == CROWD:
        assert world.queue.preemptions > 0


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


_OTHERWISE = "answers otherwise step by step, beside others, than transformers does by itself"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (DiffLlamaConfig(**SIZES), _OTHERWISE),  # heads are subtracted from each other
        (Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]), _OTHERWISE),  # states beside keys
        (Llama4TextConfig(**SIZES, head_dim=16, num_local_experts=2, attention_chunk_size=12), _OTHERWISE),
        (PhimoeConfig(**SIZES, num_local_experts=2, sliding_window=12), _OTHERWISE),  # only a mask has it
        (PhimoeConfig(**SIZES, num_local_experts=2, sliding_window=200), "attends to windows of 200 tokens"),
        (PhimoeConfig(**SIZES, num_local_experts=2, sliding_window=None), ""),
    ],
)
def test_a_model_that_does_more_than_attend_to_keys_and_values_is_refused(
    config: PreTrainedConfig, why: str
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = AutoModelForCausalLM.from_config(config).eval()
    use_own_attention(module, "some/model")
    if not why:
        check_steps("some/model", module)
        return
    name = type(module).__name__
    with pytest.raises(ConfigError, match=f"model 'some/model' is a {name}, which {why}"):
        check_steps("some/model", module)


def test_a_model_that_breaks_in_steps_is_refused_in_a_line() -> None:
    module = language_model("llama")
    use_own_attention(module, "some/model")
    module.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ConfigError, match=r"cannot be run step by step: division by zero$"):
        check_steps("some/model", module)
