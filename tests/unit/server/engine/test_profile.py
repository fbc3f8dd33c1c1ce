"""What the profiler's trace, the kernels' names and the CPU libraries' own words are read to mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.fixtures.models import save_bert_classifier, save_classifier, save_vit
from wattserve_server.engine.model import load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants import profile as profile_module
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.cpu_verbose import parse
from wattserve_server.engine.variants.profile import Fp32Flags, Profile, profile_batch
from wattserve_server.engine.variants.trace import MatrixCall
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.engine.variants.verification import sample

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def fp32_variant(folder: Path, task: str = "sequence-classification") -> Variant:
    return build_variant(load_model(str(folder), task_named(task)), Choice("fp32", KINDS["fp32"], CPU))


TF32_KERNEL = (
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel"
)


# The precision of a product


def addmm(types: tuple[str, str] = ("fp32", "fp32"), kernels: tuple[str, ...] = ()) -> MatrixCall:
    return MatrixCall("aten::addmm", types, 1000, 1.0, "x", True, kernels)


@pytest.mark.parametrize(
    ("kernels", "flag", "precision"),
    [
        ((TF32_KERNEL,), "ieee", "tf32"),
        (("ampere_sgemm_128x64_tn",), "tf32", "fp32"),
        (("nvjet_sss_64x32_64x16_1x2_h_bz_NNT",), "tf32", "tf32"),
        (("nvjet_sss_64x32_64x16_1x2_h_bz_NNT",), "ieee", "fp32"),
        ((), "none", "fp32"),
    ],
)
def test_on_a_gpu_kernels_tell_tf32_from_fp32_and_the_flag_decides_where_they_do_not(
    kernels: tuple[str, ...], flag: str, precision: str
) -> None:
    profile = Profile("cuda", (), frozenset(), flags=Fp32Flags(products=flag))
    assert profile.precision(addmm(kernels=kernels)) == precision


def test_convolutions_have_a_flag_of_their_own() -> None:
    profile = Profile("cuda", (), frozenset(), flags=Fp32Flags(products="ieee", convolutions="tf32"))
    convolution = MatrixCall("aten::convolution", ("fp32", "fp32"), 1, 1.0, "", True)
    assert profile.precision(convolution) == "tf32"
    assert profile.precision(addmm()) == "fp32"


@pytest.mark.parametrize(
    ("operands", "precision"),
    [
        (("int8", "int8"), "int8"),
        (("fp8", "fp8"), "fp8"),
        (("bf16", "int8"), "bf16"),
        (("fp32", "int8"), "fp32"),
        (("fp16", "fp16"), "fp16"),
        (("some new type", "int8"), "some new type"),
    ],
)
def test_the_wider_operand_says_how_a_product_was_computed(operands: tuple[str, str], precision: str) -> None:
    assert Profile("cpu", (), frozenset()).precision(addmm(operands)) == precision


def test_a_cpu_library_that_rounds_fp32_operands_to_bf16_is_not_taken_for_fp32() -> None:
    rounding = parse(
        [
            "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_amx,undef,"
            "src:f32::blocked:ab::f0 wei:f32::blocked:ba::f0 dst:f32::blocked:ab::f0,"
            "attr-scratchpad:user attr-fpmath:bf16,,64x64:64x64,0.1"
        ]
    ).implementations
    allowed = Fp32Flags(products="bf16")
    assert Profile("cpu", (), frozenset(), "", rounding, allowed).precision(addmm()) == "bf16"
    ignoring = parse(["MKL_VERBOSE SGEMM(T,N,8,8,8,0x7f,0x55,8,0x55,8,0x7f,0x55,8) 1us NThr:2"])
    profile = Profile("cpu", (), frozenset(), "", ignoring.implementations, allowed)
    assert profile.precision(addmm()) == "fp32"


def test_silent_libraries_are_reported_as_silent() -> None:
    assert Profile("cpu", (), frozenset()).units() == "instructions not reported"
    assert Profile("cuda", (addmm(),), frozenset()).units() == "kernels not reported"


# A batch, really profiled


class Stumble(Exception):
    pass


def test_every_linear_layer_of_a_model_is_seen_with_exactly_its_work(folder: Path) -> None:
    variant = fp32_variant(save_bert_classifier(folder / "bert"))
    items = sample(variant)
    profile = profile_batch(variant, variant.prepare(items))
    assert profile.layers == set(variant.built.converted)
    assert not profile.unseen
    tokens = sum(len(item) for item in items)
    work = {call.layer: call.macs for call in profile.calls if call.on_weights}
    for path, part in variant.built.module.named_modules():
        if isinstance(part, nn.Linear):
            rows = tokens if path.startswith("bert.encoder") else len(items)
            assert work[path] == rows * part.in_features * part.out_features, path


def test_convolutions_count_as_work_by_weights(folder: Path) -> None:
    variant = fp32_variant(save_vit(folder / "vit"), "image-classification")
    profile = profile_batch(variant, variant.prepare(sample(variant)))
    convolutions = [call for call in profile.calls if call.op == "aten::convolution"]
    patches = (32 // 8) * (48 // 8)
    assert [call.macs for call in convolutions] == [2 * patches * 32 * 3 * 8 * 8]
    assert all(call.on_weights for call in convolutions)


def test_two_batches_alike_have_the_same_products(folder: Path) -> None:
    variant = fp32_variant(save_classifier(folder / "tiny"))
    inputs = variant.prepare(sample(variant))
    first, second = (profile_batch(variant, inputs).calls for _ in range(2))
    assert [(call.op, call.macs, call.layer) for call in first] == [
        (call.op, call.macs, call.layer) for call in second
    ]


@pytest.fixture
def failing(folder: Path) -> Iterator[Variant]:
    variant = fp32_variant(save_classifier(folder / "failing"))

    def stumble(module: nn.Module, inputs: object) -> None:
        raise Stumble

    last = [part for part in variant.built.module.modules() if isinstance(part, nn.Linear)][-1]
    with torch.no_grad():
        handle = last.register_forward_pre_hook(stumble)
        yield variant
        handle.remove()


def test_after_a_batch_that_fails_the_profiler_is_off_and_no_hook_is_left(failing: Variant) -> None:
    with pytest.raises(Stumble):
        profile_batch(failing, failing.prepare(sample(failing)))
    assert not torch._C._autograd._profiler_enabled()
    assert not profile_module._ONE_AT_A_TIME.locked()
    hooks = [
        len(part._forward_pre_hooks) + len(part._forward_hooks) for part in failing.built.module.modules()
    ]
    assert sum(hooks) == 1  # the one that fails
