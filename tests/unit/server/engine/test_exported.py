"""Exported variants: the same bits again, or one line that says why not."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fixtures.exports import CLASSIFY, CPU, edit, exported, made, made_up_scales, seal, served
from tests.fixtures.models import save_bert_classifier, save_classifier, save_encoder, save_vit
from wattserve_server.engine import exported as exporting
from wattserve_server.engine.checkpoint import named_tensors
from wattserve_server.engine.exported import FILE, WEIGHTS, export
from wattserve_server.engine.model import load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.int8 import Int8Linear
from wattserve_server.engine.variants.linears import convert_linears
from wattserve_server.engine.variants.port import Materials, Support
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.weights import bytes_after_loading, tensor_bytes
from wattserve_server.errors import ConfigError

NATIVE = [name for name, kind in KINDS.items() if kind.support(CPU).native]
IDS = [np.array([2, 4, 6, 3], dtype=np.int64), np.array([2, 9, 8, 7, 5, 3], dtype=np.int64)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def int8(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that no test may change."""
    folder = tmp_path_factory.mktemp("exports") / "int8"
    exported(source, "int8", folder)
    return folder


@pytest.fixture
def folder(int8: Path, tmp_path: Path) -> Path:
    """One to be changed."""
    return Path(shutil.copytree(int8, tmp_path / "int8"))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def assert_same_bits(found: Variant, wanted: Variant) -> None:
    theirs = named_tensors(wanted.built.module)
    ours = named_tensors(found.built.module)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(bits(tensor), bits(theirs[name])), name
    assert list(found.built.module.state_dict()) == list(wanted.built.module.state_dict())


@pytest.mark.parametrize("name", NATIVE)
def test_every_kind_comes_back_bit_for_bit(name: str, source: Path, tmp_path: Path) -> None:
    before = exported(source, name, tmp_path / "out")
    after = served(tmp_path / "out")
    assert_same_bits(after, before)
    assert after.run(after.prepare(IDS)).tobytes() == before.run(before.prepare(IDS)).tobytes()
    assert (after.kind.name, after.kind.weights, after.kind.proxy) == (
        name, before.kind.weights, before.kind.proxy,
    )  # fmt: skip
    assert (after.built.converted, after.built.kept) == (before.built.converted, before.built.kept)
    assert after.built.detail.startswith(before.built.detail)
    assert after.model.parameters == before.model.parameters


@pytest.mark.parametrize(
    ("save", "task", "kind"),
    [(save_encoder, "feature-extraction", "int8"), (save_vit, "image-classification", "int8-weight-only")],
)
def test_other_tasks_come_back_too(
    save: Callable[[Path], Path], task: str, kind: str, tmp_path: Path
) -> None:
    before = exported(save(tmp_path / "model"), kind, tmp_path / "out", task)
    after = served(tmp_path / "out", task)
    assert_same_bits(after, before)
    items = [before.model.task.example(before.model.facts, None, 8, seed) for seed in range(2)]
    assert after.run(after.prepare(items)).tobytes() == before.run(before.prepare(items)).tobytes()


class Made(TorchDispatchMode):
    """Notes every tensor with numbers that torch makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.found: set[tuple[tuple[int, ...], torch.dtype]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result.is_meta:
            self.found.add((tuple(result.shape), result.dtype))
        return result


def test_no_linear_weight_exists_in_fp32_while_an_export_is_loaded(int8: Path) -> None:
    with Made() as seen:
        variant = served(int8)
    module = variant.built.module
    shapes = {tuple(module.get_buffer(f"{path}.weight").shape) for path in variant.built.converted}
    shapes -= {tuple(parameter.shape) for parameter in module.parameters()}  # as the embeddings have them
    assert shapes == {(32, 32), (32, 64)}
    assert not {(shape, torch.float32) for shape in shapes} & seen.found
    assert all(tensor.is_meta for tensor in named_tensors(variant.model.weights.module).values())


def test_an_export_tells_no_path_and_all_of_its_origin(int8: Path, source: Path) -> None:
    text = (int8 / FILE).read_text()
    told = json.loads(text)
    assert str(source.parent) not in text
    assert told["made_from"] == "tiny"
    assert told["device"] == "cpu"
    assert told["torch"] == torch.__version__
    assert "weights per channel" in told["detail"]


def test_texts_become_the_same_tokens(int8: Path, source: Path) -> None:
    before, after = made(source, "int8")[0].model, served(int8).model
    texts = ["good film", "a very very bad unheard film"]
    assert before.tokenizer is not None
    assert after.tokenizer is not None
    assert after.tokenizer(texts)["input_ids"] == before.tokenizer(texts)["input_ids"]
    assert (after.facts, after.labels) == (before.facts, before.labels)


def test_the_origin_of_static_scales_is_kept(source: Path, tmp_path: Path) -> None:
    exported(source, "int8-static", tmp_path / "out")
    assert json.loads((tmp_path / "out" / FILE).read_text())["calibration"] == "made up"


@pytest.mark.parametrize("name", ["fp32", "int8-simulated", "int3", "fp32@cpu"])
def test_no_other_variant_can_be_asked_of_an_export(name: str, int8: Path) -> None:
    with pytest.raises(ConfigError, match=f"variant '{name}': model .* holds only int8, exported from tiny"):
        served(int8, names=name)


@pytest.mark.parametrize("name", NATIVE)
def test_no_other_kind_can_be_built_of_an_exports_weights(name: str, int8: Path) -> None:
    weights = served(int8).model.weights
    scales = made_up_scales(weights.module)
    for source in (weights, weights.sketch()):
        with pytest.raises(ConfigError, match="holds only int8"):
            KINDS[name].build(Materials(source, scales), CPU)


def test_a_proxy_stays_one(source: Path, tmp_path: Path) -> None:
    exported(source, "int8-simulated", tmp_path / "out")
    assert served(tmp_path / "out").kind.proxy == KINDS["int8-simulated"].proxy


@pytest.mark.parametrize("name", NATIVE)
def test_the_bytes_of_an_export_are_foretold(name: str, source: Path, tmp_path: Path) -> None:
    exported(source, name, tmp_path / "out")
    variant = served(tmp_path / "out")
    choice = Choice(name, variant.kind, CPU)
    assert bytes_after_loading(Materials(variant.model.weights), choice, []) == variant.parameter_bytes


def test_an_export_that_was_let_go_of_can_be_loaded_again(int8: Path) -> None:
    first = served(int8)
    first.model.weights.release()
    again = first.kind.build(Materials(first.model.weights), CPU)
    assert_same_bits(replace_module(first, again.module), first)


def replace_module(variant: Variant, module: torch.nn.Module) -> Variant:
    return replace(variant, built=replace(variant.built, module=module))


Change = Callable[[Path], object]


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def apply(folder: Path) -> None:
        content = load_file(folder / WEIGHTS)
        change(content)
        save_file(content, folder / WEIGHTS)
        seal(folder)

    return apply


def manifest(**values: object) -> Change:
    return lambda folder: edit(folder, lambda content: content.update(values))


def truncate(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:1000])


def truncate_and_seal(folder: Path) -> None:
    truncate(folder)
    seal(folder)


def flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(content)


def config_of_another(folder: Path) -> None:
    other = save_bert_classifier(folder.parent / "other")
    shutil.copyfile(other / "config.json", folder / "config.json")


SCALE = "pre_classifier.weight_scale"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (truncate, "model.safetensors has the sha256 .* it is damaged or another file"),
        (truncate_and_seal, "model.safetensors is no safetensors file"),
        (flip_a_bit, "has the sha256"),
        (tensors(lambda found: found.pop(SCALE)), f"model.safetensors lacks {SCALE}"),
        (tensors(lambda found: found.update(more=torch.ones(1))), "also holds more"),
        (tensors(lambda found: found.update({SCALE: torch.ones(3)})), rf"holds {SCALE} as float32 \[3\]"),
        (tensors(lambda found: found.update({SCALE: found[SCALE].half()})), rf"holds {SCALE} as float16"),
        (manifest(format=2), "has the format 2, this version reads 1"),
        (manifest(kind="int3"), "names the unknown kind 'int3'"),
        (manifest(rest_dtype="fp3"), "names the unknown rest_dtype 'fp3'"),
        (manifest(task="feature-extraction"), "exported for --task feature-extraction"),
        (manifest(converted=["nowhere"]), "'nowhere' is no linear layer of this architecture"),
        (manifest(sha256=7), "'sha256' is missing or not what it must be"),
        (manifest(kept=[1]), "'kept' is missing"),
        (lambda folder: edit(folder, lambda content: content.pop("detail")), "'detail' is missing"),
        (lambda folder: (folder / FILE).write_text("{"), "wattserve_variant.json is damaged"),
        (lambda folder: (folder / FILE).write_text("[]"), "holds no object"),
        (lambda folder: (folder / WEIGHTS).unlink(), "holds no model.safetensors"),
        (config_of_another, "wattserve_variant.json and its config.json disagree"),
    ],
)
def test_an_export_that_is_not_what_was_written_is_refused(folder: Path, change: Change, words: str) -> None:
    change(folder)
    with pytest.raises(ConfigError, match=words) as caught:
        served(folder)
    assert "\n" not in str(caught.value)


def on_a_device_of(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this device computed int8 with the rest in another dtype, as a GPU does."""
    support = Support(True, "made up", "int8 GEMM", dtype, "int8")
    monkeypatch.setitem(KINDS, "int8", replace(KINDS["int8"], support=lambda device: support))


def test_an_fp32_rest_becomes_what_a_variant_made_on_the_device_has(
    int8: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = made(source, "int8")
    on_a_device_of("fp16", monkeypatch)
    after = served(int8)
    there = convert_linears(
        Materials(before.model.weights), CPU, torch.float16, "int8", "", lambda _, layer: Int8Linear.of(layer)
    )
    assert_same_bits(after, replace_module(before, there.module))
    assert after.built.detail.endswith("cast from fp32 to fp16")


def test_a_rest_of_fp16_keeps_its_values_in_fp32_and_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant, scales = made(source, "int8")
    with monkeypatch.context() as there:
        on_a_device_of("fp16", there)
        half = convert_linears(
            Materials(variant.model.weights), CPU, torch.float16, "int8", "how",
            lambda _, layer: Int8Linear.of(layer),
        )  # fmt: skip
        export(replace(variant, dtype="fp16", built=half), scales, tmp_path / "out")
    after = served(tmp_path / "out")
    name = "distilbert.embeddings.word_embeddings.weight"
    assert torch.equal(named_tensors(after.built.module)[name], named_tensors(half.module)[name].float())
    assert after.built.detail.endswith("cast from fp16 to fp32")
    with monkeypatch.context() as elsewhere:
        on_a_device_of("bf16", elsewhere)
        with pytest.raises(ConfigError, match="quantised layers in fp16, and cpu computes int8 with bf16"):
            served(tmp_path / "out")


def test_an_out_folder_with_something_in_it_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not an empty folder"):
        exported(source, "fp32", tmp_path)
    with pytest.raises(ConfigError, match="exists and is not an empty folder"):
        exported(source, "fp32", tmp_path / "note")
    assert (tmp_path / "note").read_text() == "mine"


def test_an_empty_out_folder_is_filled(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    exported(source, "fp32", tmp_path / "out")
    assert served(tmp_path / "out").kind.name == "fp32"


def test_a_place_that_cannot_be_written_to_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--out .*: "):
        exported(source, "fp32", tmp_path / "file" / "out")


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left on device")]
)
def test_a_full_disk_leaves_nothing_behind(
    error: Exception, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(exporting, "save_file", fail)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        exported(source, "fp32", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_needs_its_own_code_is_not_exported(source: Path, tmp_path: Path) -> None:
    variant, _ = made(source, "fp32")
    variant.model.config.auto_map = {"AutoConfig": "code.Config"}
    with pytest.raises(ConfigError, match="needs code that comes with it"):
        export(variant, None, tmp_path / "out")


def test_the_bytes_of_int8_are_a_quarter_where_they_were_converted(int8: Path, source: Path) -> None:
    before, after = made(source, "fp32")[0], served(int8)
    paths = after.built.converted
    wide = tensor_bytes(*(before.built.module.get_submodule(path) for path in paths))
    narrow = tensor_bytes(*(after.built.module.get_submodule(path) for path in paths))
    assert narrow < 0.35 * wide


def test_an_export_without_its_description_is_no_checkpoint(source: Path, tmp_path: Path) -> None:
    exported(source, "int8", tmp_path / "out")
    (tmp_path / "out" / FILE).unlink()
    with pytest.raises(ConfigError, match=r"is an exported int8 whose wattserve_variant\.json is missing"):
        load_model(str(tmp_path / "out"), task_named(CLASSIFY))
