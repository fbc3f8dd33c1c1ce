"""Language models that come as one variant: exported ones, and those that another library has quantised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, TorchAoConfig

from tests.fixtures.exports import exported, served
from tests.fixtures.language_models import save_language_model
from wattserve_server.engine.generation import stepper
from wattserve_server.engine.generation.cache import CachePool
from wattserve_server.engine.generation.stepper import Part
from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_server.engine.variants.variant import Variant

TASK = "text-generation"
CPU = torch.device("cpu")
PROMPTS = [np.arange(5, 12), np.arange(40, 71)]


def logits(variant: Variant) -> list[torch.Tensor]:
    """Of the last token of each prompt, which share a step."""
    pool = CachePool(1 << 20, 256)
    pool.token_bytes = 1
    parts = []
    for prompt in PROMPTS:
        cache = pool.open()
        assert cache.reserve(len(prompt))
        parts.append(Part(prompt, cache, 1, decodes=False))
    return [torch.from_numpy(rows[0]) for rows in stepper.run(variant, stepper.prepare(parts))]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("kind", ["fp32", "int8-weight-only", "int4-weight-only"])
def test_an_export_answers_in_steps_what_was_exported(family: str, kind: str, tmp_path: Path) -> None:
    if not KINDS[kind].support(CPU).native:
        pytest.skip("not native on this CPU")
    before = exported(save_language_model(tmp_path / "m", family), kind, tmp_path / "out", TASK)
    after = served(tmp_path / "out", TASK)
    for found, wanted in zip(logits(after), logits(before), strict=True):
        assert torch.equal(found, wanted)


def test_a_checkpoint_of_another_librarys_answers_in_steps_what_it_answers_alone(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    save_language_model(tmp_path / "m", "llama")
    scheme = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "m", quantization_config=scheme, dtype=torch.float32
    )
    model.save_pretrained(tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    for found, prompt in zip(logits(served(tmp_path / "out", TASK)), PROMPTS, strict=True):
        with torch.inference_mode():
            alone = plain(torch.from_numpy(prompt)[None]).logits[0, -1]
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-4)
