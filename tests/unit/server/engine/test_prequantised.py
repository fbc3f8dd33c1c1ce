"""Checkpoints that another library quantised: one variant each, by its true name, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.exports import CLASSIFY, CPU, served
from tests.fixtures.quantised import save_claim, save_compressed, save_torchao
from wattserve_server.engine import prequantised as quantisers
from wattserve_server.engine.model import kinds_of, load_model
from wattserve_server.engine.prequantised import made_of, scheme_of
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.variants.profile import profile_batch
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.variants.verification import judge, verify
from wattserve_server.engine.weights import bytes_after_loading, tensor_bytes
from wattserve_server.errors import ConfigError

IDS = [np.array([2, 4, 6, 3], dtype=np.int64), np.array([2, 9, 8, 7, 5, 3], dtype=np.int64)]


def torchao(config: str) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": config}}}


def compressed(*groups: tuple[int, str, int | None]) -> dict[str, Any]:
    """groups: of bits and type of the weights, and bits of the activations."""
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {
            f"group_{index}": {
                "weights": {"num_bits": bits, "type": form},
                "input_activations": None if inputs is None else {"num_bits": inputs, "type": form},
            }
            for index, (bits, form, inputs) in enumerate(groups)
        },
    }


@pytest.mark.parametrize(
    ("found", "name", "weights", "operands", "is_proxy"),
    [
        (torchao("Int8WeightOnlyConfig"), "torchao-int8-weight-only", "int8", "", False),
        (torchao("Int8DynamicActivationInt8WeightConfig"), "torchao-int8", "int8", "int8", False),
        (torchao("Float8WeightOnlyConfig"), "torchao-fp8-weight-only", "fp8", "", False),
        (compressed((8, "int", 8)), "compressed-tensors-w8a8", "int8 levels", "", True),
        (compressed((4, "int", None)), "compressed-tensors-w4a16", "int4 levels", "", True),
        (compressed((8, "float", 8)), "compressed-tensors-w8a8-fp", "fp8 levels", "", True),
        (compressed((8, "int", 8), (8, "int", 8)), "compressed-tensors-w8a8", "int8 levels", "", True),
        ({"quant_method": "gptq", "bits": 4}, "gptq-4bit", "int4", "", False),
        ({"quant_method": "awq", "bits": 4}, "awq-4bit", "int4", "", False),
        ({"quant_method": "awq", "w_bit": 4}, "awq-4bit", "int4", "", False),
        ({"load_in_8bit": True}, "bitsandbytes-int8", "int8", "int8", False),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "bitsandbytes-nf4", "nf4", "", False,
        ),
    ],
)  # fmt: skip
def test_a_kind_is_named_after_its_method_and_bits(
    found: dict[str, Any], name: str, weights: str, operands: str, is_proxy: bool
) -> None:
    scheme = scheme_of("model", found)
    assert (scheme.name, scheme.operands, bool(scheme.proxy)) == (name, operands, is_proxy)
    assert scheme.weights.endswith(weights)
    assert scheme.name not in KINDS


@pytest.mark.parametrize(
    "found",
    [
        {"quant_method": "mxfp4"},
        {"quant_method": "fp8"},  # which transformers widens to bf16 where there is no GPU
        {"quant_method": "gptq"},
        {"quant_method": "gptq", "bits": "four"},
        {"quant_method": "bitsandbytes"},
        {},
        torchao("SomethingNewConfig"),
        torchao("Int4WeightOnlyConfig"),  # by kernels of a library that nobody here has tried
        {"quant_method": "torchao", "quant_type": "int8_weight_only"},
        compressed(),
        compressed((8, "int", 8), (4, "int", None)),
        compressed((8, "complex", 8)),
    ],
)
def test_what_has_no_true_name_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model 'model' is quantised by .* and so has no name for"):
        scheme_of("model", found)


def absent(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    monkeypatch.setattr(quantisers, "find_spec", lambda name: None if name in modules else find_spec(name))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            {"quant_method": "gptq", "bits": 4},
            r"is quantised by GPTQ \(4 bit\): not installed: gptqmodel, optimum, accelerate; "
            "pip install gptqmodel optimum accelerate",
        ),
        (
            {"quant_method": "awq", "bits": 4},
            r"is quantised by AWQ \(4 bit\): not installed: gptqmodel, accelerate; pip install gptqmodel acc",
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            r"is quantised by bitsandbytes \(int8\): not installed: bitsandbytes, accelerate; pip install b",
        ),
        (
            torchao("Int8WeightOnlyConfig"),
            r"is quantised by torchao \(Int8WeightOnlyConfig\): not installed: torchao; pip install torchao",
        ),
        (
            compressed((8, "int", 8)),
            r"\(w8a8\): not installed: compressed_tensors; pip install compressed",
        ),
    ],
)
@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_a_missing_library_is_named_before_anything_is_loaded(
    found: dict[str, Any], words: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent(monkeypatch, "torchao", "compressed_tensors", "gptqmodel", "optimum", "accelerate", "bitsandbytes")
    folder = save_claim(tmp_path / "model", found, key)
    (folder / "model.safetensors").unlink()
    for ask in (kinds_of, load_model):
        with pytest.raises(ConfigError, match=words):
            ask(str(folder), task_named(CLASSIFY))


def test_the_library_is_missing_for_real_where_it_is(tmp_path: Path) -> None:
    if not scheme_of("model", {"quant_method": "gptq", "bits": 4}).missing:
        pytest.skip("gptqmodel is installed")
    folder = save_claim(tmp_path / "model", {"quant_method": "gptq", "bits": 4})
    with pytest.raises(ConfigError, match=r"pip install gptqmodel"):
        served(folder)


def test_bytes_are_those_of_the_tensors_inside_of_a_librarys_own_sort_of_tensor() -> None:
    inside = torch.zeros(8, 4, dtype=torch.int8), torch.zeros(8, 1, dtype=torch.bfloat16)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapped(*inside), requires_grad=False)
    assert module.weight.dtype == torch.float32
    assert tensor_bytes(module) == 8 * 4 + 8 * 2


class Wrapped(torch.Tensor):
    """Levels and scales that look like one fp32 tensor, as torchao has them."""

    @staticmethod
    def __new__(cls, levels: torch.Tensor, scales: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, levels.shape, dtype=torch.float32)

    def __init__(self, levels: torch.Tensor, scales: torch.Tensor) -> None:
        self.levels, self.scales = levels, scales

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["levels", "scales"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], meta: None, size: Any, stride: Any) -> Wrapped:
        return Wrapped(inner["levels"], inner["scales"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as torch calls it
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return Wrapped(args[0].levels, args[0].scales)
        raise NotImplementedError(func)


def test_an_ordinary_model_can_be_any_kind(tmp_path: Path) -> None:
    folder = save_claim(tmp_path / "model", {}, "something_else")
    kinds, only = kinds_of(str(folder), task_named(CLASSIFY))
    assert kinds is KINDS
    assert not only


def ao(config: str) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        quantization = pytest.importorskip("torchao.quantization")
        return save_torchao(folder, getattr(quantization, config)())

    return save


def ct(preset: str) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        pytest.importorskip("compressed_tensors")
        return save_compressed(folder, preset)

    return save


CHECKPOINTS = {
    "torchao-int8-weight-only": (ao("Int8WeightOnlyConfig"), "fp32"),
    "torchao-int8": (ao("Int8DynamicActivationInt8WeightConfig"), "int8"),
    "torchao-fp8-weight-only": (ao("Float8WeightOnlyConfig"), "fp32"),
    "compressed-tensors-w8a8": (ct("W8A8"), "fp32"),
    "compressed-tensors-w4a16": (ct("W4A16"), "fp32"),
    "compressed-tensors-w8a8-fp": (ct("FP8_DYNAMIC"), "fp32"),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a checkpoint of that name, made once."""
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            folders[name] = CHECKPOINTS[name][0](tmp_path_factory.mktemp("quantised") / name)
        return folders[name]

    return get


Checkpoint = Callable[[str], Path]


def native(name: str, variant: Callable[[], Variant]) -> Variant:
    """Skips where the CPU has no instructions for it."""
    if not KINDS[CHECKPOINTS[name][1]].support(CPU).native:
        pytest.skip("not native on this CPU")
    return variant()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_served_as_what_the_profiler_sees(name: str, checkpoint: Checkpoint) -> None:
    folder = checkpoint(name)
    variant = native(name, lambda: served(folder))
    assert variant.name == name
    assert f"as {CHECKPOINTS[name][1]} x {CHECKPOINTS[name][1]}" in verify(variant).words
    assert bool(variant.kind.proxy) == name.startswith("compressed-tensors")
    assert variant.built.kept == (("classifier",) if variant.kind.proxy else ())


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_its_answers_are_those_of_transformers(name: str, checkpoint: Checkpoint) -> None:
    from transformers import AutoModelForSequenceClassification

    folder = checkpoint(name)
    variant = native(name, lambda: served(folder))
    theirs = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    batch = variant.prepare(IDS)
    with torch.inference_mode():
        np.testing.assert_array_equal(variant.run(batch), theirs(**batch.inputs).logits.numpy())


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_its_bytes_are_those_in_memory_and_foretold(name: str, checkpoint: Checkpoint) -> None:
    folder = checkpoint(name)
    variant = native(name, lambda: served(folder))
    choice = Choice(name, variant.kind, CPU)
    assert bytes_after_loading(Materials(variant.model.weights), choice, []) == variant.parameter_bytes
    wide = 4 * variant.model.parameters
    assert (variant.parameter_bytes > wide) == bool(variant.kind.proxy)
    variant.run(variant.prepare(IDS))
    assert tensor_bytes(variant.built.module) == variant.parameter_bytes  # nothing is unpacked behind it


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_quantised_checkpoint_never_passes_for_another_kind(name: str, checkpoint: Checkpoint) -> None:
    folder = checkpoint(name)
    with pytest.raises(ConfigError, match=f"variant 'fp32': model .* holds only {name}"):
        served(folder, names="fp32")
    model = load_model(str(folder), task_named(CLASSIFY))
    for kind in ("fp32", "int8-simulated"):
        with pytest.raises(ConfigError, match=f"holds only {name}: nothing else can be made from it"):
            KINDS[kind].build(Materials(model.weights), CPU)


def test_int8_that_is_only_simulated_would_be_found_out_without_its_proxy(checkpoint: Checkpoint) -> None:
    variant = served(checkpoint("compressed-tensors-w8a8"))
    boastful = replace(variant.kind.support(CPU), operands="int8")
    lying = replace(variant, kind=replace(variant.kind, proxy="", support=lambda device: boastful))
    assert not judge(lying, profile_batch(lying, lying.prepare(IDS))).verified


def test_a_quantisation_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": "int8"}')
    with pytest.raises(ConfigError, match=r"quantization_config of its .* is 'int8'; it must be"):
        made_of(str(tmp_path), task_named(CLASSIFY))


def test_a_quantised_config_without_quantised_weights_is_not_served(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    folder = save_claim(tmp_path / "model", torchao("Int8WeightOnlyConfig"))
    with pytest.raises(ConfigError):
        served(folder)
