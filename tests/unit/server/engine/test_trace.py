"""What is read from a trace as torch writes it, on an H100 among others."""

from __future__ import annotations

from typing import Any

import pytest

from wattserve_server.engine.variants.trace import LAYER_MARK, MatrixCall, Trace, read_trace


def cpu_op(
    name: str,
    start: float,
    duration: float,
    dims: list[list[int]],
    types: list[str],
    external: int,
    texts: list[str] | None = None,
) -> dict[str, Any]:
    arguments = {
        "External id": external,
        "Record function id": 0,
        "Concrete Inputs": texts or [""] * len(dims),
        "Input type": types,
        "Input Dims": dims,
    }
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7, "ts": start, "dur": duration}
    return event | {"args": arguments}


def layer(path: str, start: float, duration: float) -> dict[str, Any]:
    event = {"ph": "X", "cat": "user_annotation", "name": LAYER_MARK + path, "pid": 7, "tid": 7}
    return event | {"ts": start, "dur": duration, "args": {"External id": 999}}


def launch(start: float, correlation: int) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": start}
    return event | {"dur": 2.0, "args": {"cbid": 211, "correlation": correlation}}


def kernel(name: str, duration: float, correlation: int, external: int | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"device": 0, "context": 1, "stream": 7, "correlation": correlation}
    if external is not None:
        arguments["External id"] = external
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 900.0, "dur": duration}
    return event | {"args": arguments}


F32, S8 = "float", "signed char"
INT8_KERNEL = "cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16"
ADDMM_DIMS = [[256], [64, 128], [128, 256], [], []]
ADDMM_TYPES = [F32, F32, F32, "Scalar", "Scalar"]


def int8_trace() -> Trace:
    return read_trace(
        [
            {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
            layer("encoder.query", 10, 80),
            cpu_op("aten::_int_mm", 20, 50, [[64, 128], [128, 256]], [S8, S8], 5),
            launch(40, 77),
            kernel(INT8_KERNEL, 6.5, 77, 5),
            cpu_op("aten::bmm", 100, 30, [[8, 16, 32], [8, 32, 16]], ["c10::Half"] * 2, 9),
            launch(110, 78),
            kernel("nvjet_hsh_64x32_64x16_1x2_h_bz_NNT", 3.0, 78),
        ]
    )


def test_an_integer_product_has_its_operands_its_work_its_layer_and_its_kernel() -> None:
    product, _ = int8_trace().calls
    assert product == MatrixCall(
        op="aten::_int_mm",
        operands=("int8", "int8"),
        macs=64 * 128 * 256,
        microseconds=6.5,
        layer="encoder.query",
        on_weights=True,
        kernels=(INT8_KERNEL,),
    )


def test_attention_is_not_work_by_weights_and_its_kernel_is_found_by_its_launch() -> None:
    _, attention = int8_trace().calls
    assert not attention.on_weights
    assert attention.macs == 8 * 16 * 32 * 16
    assert attention.kernels == ("nvjet_hsh_64x32_64x16_1x2_h_bz_NNT",)


def test_a_batched_product_inside_a_layer_is_its_work() -> None:
    events = [layer("x", 0, 50), cpu_op("aten::bmm", 1, 9, [[2, 4, 8], [2, 8, 4]], [F32] * 2, 1)]
    assert [call.on_weights for call in read_trace(events).calls] == [True]


def test_a_product_is_counted_once_however_many_operators_wrap_it() -> None:
    events = [
        cpu_op("aten::linear", 0, 90, [[2, 32, 128], [256, 128], [256]], [F32] * 3, 1),
        cpu_op("aten::addmm", 10, 70, ADDMM_DIMS, ADDMM_TYPES, 2),
        cpu_op("aten::matmul", 100, 90, [[4, 4], [4, 4]], [F32] * 2, 3),
        cpu_op("aten::mm", 110, 70, [[4, 4], [4, 4]], [F32] * 2, 4),
    ]
    assert [(call.op, call.macs) for call in read_trace(events).calls] == [
        ("aten::addmm", 64 * 128 * 256),
        ("aten::mm", 64),
    ]


def test_the_kernel_of_a_helper_inside_a_product_counts_as_the_products() -> None:
    events = [
        cpu_op("aten::addmm", 0, 90, ADDMM_DIMS, ADDMM_TYPES, 1),
        cpu_op("aten::copy_", 10, 20, [[256], [256]], [F32] * 2, 2),
        kernel("void at::native::elementwise_kernel<128, 2>", 1.0, 50, 2),
        kernel("ampere_sgemm_128x64_tn", 4.0, 51, 1),
    ]
    (call,) = read_trace(events).calls
    assert call.kernels == ("void at::native::elementwise_kernel<128, 2>", "ampere_sgemm_128x64_tn")
    assert call.microseconds == 5.0


def test_products_of_other_threads_do_not_nest() -> None:
    other = cpu_op("aten::mm", 10, 20, [[4, 4], [4, 4]], [F32] * 2, 2) | {"tid": 8}
    events = [cpu_op("aten::mm", 0, 90, [[2, 2], [2, 2]], [F32] * 2, 1), other]
    assert sorted(call.macs for call in read_trace(events).calls) == [8, 64]


@pytest.mark.parametrize(
    ("name", "dims", "texts", "macs"),
    [
        ("aten::mv", [[5, 7], [7]], None, 35),
        ("aten::_weight_int8pack_mm", [[5, 7], [11, 7], [11]], None, 5 * 7 * 11),
        ("aten::scaled_dot_product_attention", [[2, 3, 5, 7], [2, 3, 11, 7], [2, 3, 11, 13]], None, 6600),
        (
            "aten::convolution",
            [[2, 4, 9, 11], [6, 2, 3, 3], [6]],
            ["", "", "", "[2, 2]", "[1]", "[1, 1]", "False", "[0, 0]", "2"],
            2 * 6 * 5 * 6 * 2 * 9,
        ),
        (
            "aten::convolution",
            [[2, 4, 9], [4, 6, 3], []],
            ["", "", "", "[2]", "[0]", "[1]", "True", "[0]", "1"],
            2 * 4 * 9 * 6 * 3,
        ),
    ],
)
def test_the_work_of_a_product_comes_from_its_shapes(
    name: str, dims: list[list[int]], texts: list[str] | None, macs: int
) -> None:
    (call,) = read_trace([cpu_op(name, 0, 1, dims, [F32] * len(dims), 1, texts)]).calls
    assert call.macs == macs


def test_a_product_without_recorded_shapes_is_left_out_rather_than_guessed() -> None:
    assert read_trace([cpu_op("aten::mm", 0, 1, [], [], 1), layer("x", 0, 3)]) == Trace((), frozenset({"x"}))
