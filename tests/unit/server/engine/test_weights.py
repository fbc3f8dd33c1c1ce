"""What variants share, and what they would take before they are made."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import ModernBertConfig, ModernBertForSequenceClassification

from tests.fixtures.models import tiny_config
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.port import ActivationScales, Materials
from wattserve_server.engine.weights import Weights, bytes_of, tensor_bytes

CPU = torch.device("cpu")


def tiny() -> nn.Module:
    from transformers import DistilBertForSequenceClassification

    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: nn.Module = DistilBertForSequenceClassification(tiny_config()).eval()
    return model


class Loads:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> nn.Module:
        self.count += 1
        return tiny()


def materials(weights: Weights) -> Materials:
    linears = [path for path, part in weights.module.named_modules() if isinstance(part, nn.Linear)]
    return Materials(weights, ActivationScales(dict.fromkeys(linears, 0.05), "made up"))


def test_two_variants_of_a_dtype_share_what_neither_converts() -> None:
    weights = Weights(tiny)
    fp32 = KINDS["fp32"].build(materials(weights), CPU).module
    int8 = KINDS["int8"].build(materials(weights), CPU).module
    name = "distilbert.embeddings.word_embeddings.weight"
    assert fp32.get_parameter(name).data_ptr() == int8.get_parameter(name).data_ptr()
    assert tensor_bytes(fp32, int8) < tensor_bytes(fp32) + tensor_bytes(int8)


def test_sharing_survives_that_the_source_is_let_go_of_and_read_again() -> None:
    loads = Loads()
    weights = Weights(loads)
    fp32 = weights.copy(CPU, torch.float32)
    weights.release()
    again = weights.copy(CPU, torch.float32)
    assert loads.count == 2
    assert tensor_bytes(fp32, again) == tensor_bytes(fp32)


def test_shared_tensors_leave_with_the_last_variant_that_holds_them() -> None:
    weights = Weights(tiny)
    half = weights.copy(CPU, torch.bfloat16)
    keys = weights.sketch()
    keys.copy(CPU, torch.bfloat16)
    counted = [tensor for tensor in weights.shared(keys.taken) if tensor.dtype != torch.int64]
    assert bytes_of(counted) == tensor_bytes(half)
    del half, counted
    gc.collect()
    assert weights.shared(keys.taken) == []


def test_the_source_is_never_changed_by_its_variants() -> None:
    weights = Weights(tiny)
    before = {name: tensor.clone() for name, tensor in weights.module.state_dict().items()}
    for kind in KINDS.values():
        if kind.support(CPU).native:
            kind.build(materials(weights), CPU)
    for name, tensor in weights.module.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.dtype == before[name].dtype


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.support(CPU).native])
def test_a_sketch_takes_no_memory_and_knows_the_bytes_of_the_real_one(name: str) -> None:
    from wattserve_server.engine.weights import bytes_after_loading

    weights = Weights(tiny)
    made = materials(weights)
    foretold = bytes_after_loading(made, Choice(name, KINDS[name], CPU), [])
    assert foretold == tensor_bytes(KINDS[name].build(made, CPU).module)


def test_rotary_frequencies_stay_as_precise_as_transformers_keeps_them(tmp_path: Path) -> None:
    config = ModernBertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(3)
        ModernBertForSequenceClassification(config).save_pretrained(tmp_path)
    weights = Weights(lambda: ModernBertForSequenceClassification.from_pretrained(tmp_path).eval())
    ours = weights.copy(CPU, torch.bfloat16)
    theirs = ModernBertForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    dtypes = {name: tensor.dtype for name, tensor in theirs.named_buffers()}
    assert {name: tensor.dtype for name, tensor in ours.named_buffers()} == dtypes
    ids = torch.arange(60)[None].repeat(2, 9) % 60 + 3
    with torch.inference_mode():
        torch.testing.assert_close(ours(input_ids=ids).logits, theirs(input_ids=ids).logits)


def test_a_tied_weight_stays_tied_and_is_cast_though_its_first_name_is_converted() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 64)
            self.table = nn.Embedding(64, 16)
            self.table.weight = self.head.weight

    weights = Weights(Tied)
    made = weights.copy(CPU, torch.bfloat16, lambda path, part: nn.Identity() if path == "head" else None)
    assert made.get_parameter("table.weight").dtype is torch.bfloat16
