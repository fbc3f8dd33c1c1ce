"""The catalogue of variants: what is native where, what is refused and why, and what a made variant holds."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from wattserve_server.engine.variants.catalogue import KINDS, choose
from wattserve_server.engine.variants.floats import Tf32Switch
from wattserve_server.engine.variants.int8 import Int8Linear
from wattserve_server.engine.variants.linears import convert_linears
from wattserve_server.engine.variants.port import OPERANDS, ActivationScales, Built, Materials
from wattserve_server.engine.weights import Weights, tensor_bytes
from wattserve_server.errors import ConfigError

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
NAMES = [
    "fp32", "tf32", "bf16", "fp16", "int8", "int8-static", "int8-weight-only", "int4-weight-only",
    "llm-int8", "fp8", "int8-simulated", "fp16-as-int8-proxy",
]  # fmt: skip


def weights_of(module: nn.Module) -> Weights:
    module.eval()
    return Weights(lambda: module)


def to_int8(module: nn.Module) -> Built:
    materials = Materials(weights_of(module))
    return convert_linears(
        materials, CPU, torch.float32, "int8", "how", lambda _, layer: Int8Linear.of(layer)
    )


def body_and_head() -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 3))


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, major: int, minor: int) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))


def test_the_catalogue_names_every_kind_in_its_order() -> None:
    assert list(KINDS) == NAMES
    assert [name for name, kind in KINDS.items() if kind.proxy] == ["int8-simulated", "fp16-as-int8-proxy"]
    assert [name for name, kind in KINDS.items() if kind.needs_calibration] == ["int8-static"]


@pytest.mark.parametrize("name", NAMES)
def test_every_refusal_says_why(name: str) -> None:
    support = KINDS[name].support(CPU)
    assert support.why
    assert bool(support.kernels) == support.native
    assert bool(support.dtype) == support.native
    assert (support.operands in OPERANDS) == support.native


@pytest.mark.parametrize(
    ("capability", "refused"),
    [
        ((9, 0), set()),
        ((8, 9), {"fp8"}),
        ((8, 0), {"fp8"}),
        ((7, 5), {"fp8", "tf32", "bf16"}),
        ((7, 0), {"fp8", "tf32", "bf16", "int8", "int8-static", "llm-int8"}),
    ],
)
def test_a_gpu_runs_what_its_tensor_cores_multiply(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], refused: set[str]
) -> None:
    pretend_gpu(monkeypatch, *capability)
    supports = {name: kind.support(CUDA) for name, kind in KINDS.items()}
    assert not supports.pop("int4-weight-only").native  # made for CPUs so far
    assert {name for name, support in supports.items() if not support.native} == refused
    for name in refused:
        assert f"compute capability {capability[0]}.{capability[1]}" in supports[name].why


@pytest.mark.parametrize(
    ("instructions", "native"),
    [
        ((), set()),
        (("avx2",), {"int8", "int8-static", "llm-int8"}),
        (("avx2", "vnni"), {"int8", "int8-static", "llm-int8"}),
        (("vnni", "amx_tile"), {"int8", "int8-static", "llm-int8"}),
    ],
)
def test_a_cpu_runs_those_int8_kinds_that_its_instructions_multiply(
    monkeypatch: pytest.MonkeyPatch, instructions: tuple[str, ...], native: set[str]
) -> None:
    for name in ("avx2", "vnni", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda name=name: name in instructions)
    names = {"int8", "int8-static", "llm-int8"}
    assert {name for name in names if KINDS[name].support(CPU).native} == native


@pytest.mark.parametrize(("value", "refused"), [("1", "fp32"), ("0", "tf32")])
def test_a_library_override_of_tf32_refuses_the_kind_that_it_would_falsify(
    monkeypatch: pytest.MonkeyPatch, value: str, refused: str
) -> None:
    pretend_gpu(monkeypatch, 9, 0)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", value)
    for name in ("fp32", "tf32"):
        support = KINDS[name].support(CUDA)
        assert support.native == (name != refused)
        assert ("NVIDIA_TF32_OVERRIDE" in support.why) == (name == refused)


def test_the_default_is_every_native_variant_that_is_no_proxy_and_fp32_is_always_one() -> None:
    native = [name for name, kind in KINDS.items() if kind.support(CPU).native and not kind.proxy]
    chosen = choose(None, CPU, is_calibrated=True, generates=True)
    assert [choice.name for choice in chosen] == native
    assert native[0] == "fp32"


def test_the_default_without_calibration_leaves_out_what_needs_it() -> None:
    names = [choice.name for choice in choose(None, CPU)]
    with_it = [choice.name for choice in choose(None, CPU, is_calibrated=True)]
    assert names == [name for name in with_it if name != "int8-static"]


def test_a_variant_may_name_its_device() -> None:
    (choice,) = choose("fp32@cpu", CUDA)
    assert (choice.name, choice.kind.name, choice.device) == ("fp32@cpu", "fp32", CPU)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("fp32,int3", f"unknown variant 'int3'; known: {', '.join(NAMES)}"),
        ("fp32,fp32", "variant 'fp32' is listed twice"),
        ("fp32,fp32@cpu", "variant 'fp32@cpu' is listed twice"),
        ("", "unknown variant ''"),
        ("fp32@tpu", "variant 'fp32@tpu': after the @ comes cpu, cuda or cuda:N, not 'tpu'"),
        ("tf32", "variant 'tf32' cannot run on cpu: TF32 is a format of NVIDIA's Tensor Cores"),
        ("fp8", "variant 'fp8' cannot run on cpu: no CPU multiplies fp8"),
    ],
)
def test_a_wrong_list_of_variants_is_refused(names: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(names, CPU)
    assert message in str(caught.value)


def test_a_listed_variant_that_is_not_native_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    for name in ("fp16", "fp16-as-int8-proxy"):
        with pytest.raises(
            ConfigError, match=f"variant '{name}' cannot run on cpu: this CPU has neither"
        ) as caught:
            choose(f"fp32,{name}", CPU)
        offered = ", ".join(choice.name for choice in choose(None, CPU))
        assert str(caught.value).endswith(f". It has {offered}")


def test_weight_only_multiplies_in_fp32_on_a_cpu_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    support = KINDS["int8-weight-only"].support(CPU)
    assert (support.native, support.dtype, support.operands) == (True, "fp32", "fp32")
    built = KINDS["int8-weight-only"].build(Materials(weights_of(body_and_head())), CPU)
    assert built.module.get_parameter("3.weight").dtype == torch.float32


def test_int8_refuses_a_model_that_it_would_leave_as_it_is() -> None:
    module = nn.Sequential(nn.Embedding(100, 16), nn.Conv1d(16, 16, 3), nn.Linear(16, 8))
    with pytest.raises(
        ConfigError, match="int8 would leave most of this model as it is: only 1 of its layers"
    ):
        KINDS["int8"].build(Materials(weights_of(module)), CPU)


def test_a_layer_whose_shape_the_integer_product_does_not_take_is_kept_and_named() -> None:
    built = to_int8(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 3)))
    assert (built.converted, built.kept) == (("0",), ("1",))
    assert type(built.module.get_submodule("0")) is Int8Linear
    assert type(built.module.get_submodule("1")) is nn.Linear
    assert built.detail == "1 of 2 linear layers; how; kept in float32: 1"


def test_a_subclass_of_a_linear_layer_is_kept_and_named() -> None:
    class Gated(nn.Linear):
        pass

    built = to_int8(nn.Sequential(Gated(64, 64), nn.Linear(64, 64)))
    assert (built.converted, built.kept) == (("1",), ("0",))


@pytest.mark.parametrize("name", ["int8", "int8-static", "int8-weight-only", "llm-int8", "int8-simulated"])
def test_every_quantised_kind_keeps_and_names_the_head(name: str) -> None:
    scales = ActivationScales({"1": 0.1}, "a test")
    built = KINDS[name].build(Materials(weights_of(body_and_head()), scales), CPU)
    assert (built.converted, built.kept) == (("1",), ("3",))
    assert "1 of 2 linear layers" in built.detail


def test_fp8_keeps_a_layer_whose_dimensions_are_no_multiple_of_16() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 24))
    built = KINDS["fp8"].build(Materials(weights_of(module)), CPU)
    assert (built.converted, built.kept) == (("0",), ("1",))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "int8-static"])
def test_a_second_variant_of_a_kind_shares_what_is_not_converted(name: str) -> None:
    materials = Materials(weights_of(body_and_head()))
    first, second = (KINDS[name].build(materials, CPU).module for _ in range(2))
    for name in ("0.weight", "2.weight", "3.weight"):
        assert first.get_parameter(name).data_ptr() == second.get_parameter(name).data_ptr()


@pytest.mark.parametrize(("name", "alike"), [("tf32", "fp32"), ("fp16-as-int8-proxy", "fp16")])
def test_kinds_of_the_same_numbers_share_all_their_weights(name: str, alike: str) -> None:
    materials = Materials(weights_of(body_and_head()))
    one, other = (KINDS[each].build(materials, CPU).module for each in (name, alike))
    assert tensor_bytes(one, other) == tensor_bytes(one)


def test_int8_static_refuses_to_guess_a_scale() -> None:
    weights = weights_of(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    build = KINDS["int8-static"].build
    with pytest.raises(ConfigError, match="int8-static needs activation scales"):
        build(Materials(weights), CPU)
    with pytest.raises(ConfigError, match="scales from ten rows lack layer '1'"):
        build(Materials(weights, ActivationScales({"0": 0.5}, "ten rows")), CPU)
    with pytest.raises(ConfigError, match=r"layer '1' from ten rows is 0.0: it must be above 0"):
        build(Materials(weights, ActivationScales({"0": 0.5, "1": 0.0}, "ten rows")), CPU)


def flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_tf32_is_on_during_a_tf32_batch_off_during_an_fp32_one_and_then_as_before() -> None:
    before = flags()
    for on in (True, False):
        with KINDS["tf32" if on else "fp32"].running(CUDA):
            assert flags() == (on, on)
        assert flags() == before


def test_a_failed_batch_leaves_tf32_as_it_was() -> None:
    before = flags()
    with pytest.raises(RuntimeError, match="out of memory"), KINDS["tf32"].running(CUDA):
        raise RuntimeError("out of memory")
    assert flags() == before


def test_batches_that_disagree_on_tf32_wait_for_each_other_and_those_that_agree_do_not() -> None:
    switch = Tf32Switch()
    entered = {True: threading.Event(), False: threading.Event()}

    def batch(on: bool) -> None:
        with switch.hold(on):
            entered[on].set()

    threads = [threading.Thread(target=batch, args=(on,), daemon=True) for on in (True, False)]
    with switch.hold(True):
        for thread in threads:
            thread.start()
        assert entered[True].wait(60)
        assert not entered[False].wait(0.1)
    assert entered[False].wait(60)
    for thread in threads:
        thread.join(60)


def test_an_fp32_batch_on_a_cpu_does_not_wait_for_a_tf32_one() -> None:
    with KINDS["tf32"].running(CUDA), KINDS["fp32"].running(CPU):
        assert flags() == (True, True)
