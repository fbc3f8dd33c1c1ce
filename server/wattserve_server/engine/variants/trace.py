"""Reading a profiler's trace: which matrix products ran, in which layer, on which operands, by what."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Before a layer's path, the name of the range that is recorded around every run of it.
LAYER_MARK = "wattserve layer: "
CONVOLUTION = "aten::convolution"

# The shapes of an operator's arguments; empty for those that are no tensors.
Dims = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class MatrixCall:
    """One matrix product, by the innermost operator that names it."""

    op: str
    operands: tuple[str, str]  # the precisions of the two
    macs: int  # multiply-accumulates, from the shapes
    microseconds: float  # of its kernels, or, where none are reported, of the operator
    layer: str  # the path of the layer that it ran in; empty outside of the layers that were marked
    on_weights: bool  # one operand is a weight; otherwise both are activations, as in attention
    kernels: tuple[str, ...] = ()  # CUDA kernels that it launched


@dataclass(frozen=True, slots=True)
class Trace:
    calls: tuple[MatrixCall, ...]  # in the order of their ends
    layers: frozenset[str]  # the marked layers that ran


@dataclass(frozen=True, slots=True)
class _Operator:
    left: int  # which argument is the left operand
    right: int
    # From the two operands' shapes, all shapes, and the arguments as text.
    macs: Callable[[Sequence[int], Sequence[int], Dims, Sequence[str]], int]
    between_activations: bool = False  # what it is for, unless it runs in a marked layer


def _plain(left: Sequence[int], right: Sequence[int], dims: Dims, texts: Sequence[str]) -> int:
    """[..., m, k] x [..., k, n], or x [k]"""
    return math.prod(left) * (right[-1] if len(right) > 1 else 1)


def _transposed(left: Sequence[int], right: Sequence[int], dims: Dims, texts: Sequence[str]) -> int:
    """[..., k] x [n, k], whatever k numbers are packed in"""
    return math.prod(left) * right[0]


def _attention(query: Sequence[int], key: Sequence[int], dims: Dims, texts: Sequence[str]) -> int:
    """[..., l, e] x [..., s, e], then x [..., s, v]; masks and causality are not subtracted."""
    return math.prod(query[:-1]) * key[-2] * (query[-1] + dims[2][-1])


def _convolution(image: Sequence[int], weight: Sequence[int], dims: Dims, texts: Sequence[str]) -> int:
    """aten::convolution(input [n, c, ...], weight [out, c / groups, ...], bias, stride, padding, dilation,
    transposed, output_padding, groups); each input pixel counts where it is transposed."""
    taps = math.prod(weight[1:])
    if texts[6] == "True":
        return math.prod(image) * taps
    stride, padding, dilation = (_numbers(texts[index], len(image) - 2) for index in (3, 4, 5))
    out = [
        (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, spread in zip(
            image[2:], weight[2:], stride, padding, dilation, strict=True
        )
    ]
    return image[0] * weight[0] * math.prod(out) * taps


def _numbers(text: str, count: int) -> list[int]:
    values = [int(value) for value in ast.literal_eval(text)]
    return values * count if len(values) == 1 else values


# Operators that multiply matrices. One that calls another of them leaves the work to it and is not counted.
_OPERATORS: dict[str, _Operator] = {
    name: operator
    for operator, names in (
        (_Operator(0, 1, _plain), "aten::mm aten::mv aten::_int_mm"),
        (_Operator(0, 1, _plain), "aten::_scaled_mm aten::_scaled_mm_v2"),
        (_Operator(0, 1, _plain), "aten::_grouped_mm aten::_scaled_grouped_mm"),
        (_Operator(1, 2, _plain), "aten::addmv aten::addmm aten::_addmm_activation"),
        (_Operator(0, 1, _transposed), "aten::linear aten::_weight_int8pack_mm"),
        (_Operator(0, 1, _transposed), "aten::_weight_int4pack_mm_for_cpu"),
        (_Operator(0, 1, _transposed), "aten::mkldnn_linear mkldnn::_linear_pointwise"),
        (_Operator(0, 2, _transposed), "mkl::_mkl_linear"),
        (_Operator(0, 3, _plain), "onednn::qlinear_pointwise"),
        (_Operator(0, 1, _convolution), CONVOLUTION),
        (_Operator(0, 1, _plain, between_activations=True), "aten::matmul aten::bmm"),
        (_Operator(1, 2, _plain, between_activations=True), "aten::baddbmm"),
        (
            _Operator(0, 1, _attention, between_activations=True),
            "aten::scaled_dot_product_attention aten::_scaled_dot_product_flash_attention "
            "aten::_scaled_dot_product_efficient_attention aten::_scaled_dot_product_cudnn_attention "
            "aten::_scaled_dot_product_flash_attention_for_cpu",
        ),
    )
    for name in names.split()
}

# Names that torch's profiler gives to element types -> ours; others are shown as they are.
_TYPES = {
    "double": "fp64",
    "float": "fp32",
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "signed char": "int8",
    "unsigned char": "int8",
    "c10::qint8": "int8",
    "c10::quint8": "int8",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
}


@dataclass(eq=False, slots=True)
class _Range:
    """A span of time on a thread: an operator, a marked layer, or a call of the CUDA runtime."""

    event: Mapping[str, Any]
    parent: _Range | None
    counts: bool = field(init=False)
    kernels: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = self.event["cat"] == "cpu_op" and self.event["name"] in _OPERATORS
        if self.counts:
            above = self.parent
            while above is not None:
                above.counts = False
                above = above.parent

    @property
    def end(self) -> float:
        return float(self.event["ts"]) + float(self.event["dur"])


_RANGES = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")


def read_trace(events: Sequence[Mapping[str, Any]]) -> Trace:
    """events: `traceEvents` of the JSON that torch's profiler exports, recorded with shapes."""
    ranges = _nested([event for event in events if event.get("ph") == "X" and event.get("cat") in _RANGES])
    _hand_out([event for event in events if event.get("cat") == "kernel"], ranges)
    calls = (_call(product) for product in ranges if product.counts)
    layers = (layer for inside in ranges if (layer := _layer(inside)))
    return Trace(tuple(call for call in calls if call is not None), frozenset(layers))


def _nested(events: list[Mapping[str, Any]]) -> list[_Range]:
    ranges: list[_Range] = []
    open_on: dict[object, list[_Range]] = {}
    for event in sorted(events, key=lambda event: (float(event["ts"]), -float(event["dur"]))):
        around = open_on.setdefault((event.get("pid"), event.get("tid")), [])
        while around and around[-1].end <= float(event["ts"]):
            around.pop()
        around.append(_Range(event, around[-1] if around else None))
        ranges.append(around[-1])
    return ranges


def _hand_out(kernels: list[Mapping[str, Any]], ranges: list[_Range]) -> None:
    """To the products that launched them: by the operator's id, or by the runtime call's correlation."""
    by_id: dict[object, _Range] = {}
    by_correlation: dict[object, _Range] = {}
    for span in ranges:
        arguments = span.event.get("args", {})
        if span.event["cat"] == "cpu_op" and "External id" in arguments:
            by_id[arguments["External id"]] = span
        if span.event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in arguments:
            by_correlation[arguments["correlation"]] = span
    for kernel in kernels:
        arguments = kernel.get("args", {})
        owner = by_id.get(arguments.get("External id")) or by_correlation.get(arguments.get("correlation"))
        while owner is not None and not owner.counts:
            owner = owner.parent
        if owner is not None:
            owner.kernels.append(kernel)


def _call(product: _Range) -> MatrixCall | None:
    """None where the profiler did not record the shapes, or the product is of another kind."""
    arguments = product.event.get("args", {})
    dims, types = arguments.get("Input Dims", ()), arguments.get("Input type", ())
    operator = _OPERATORS[product.event["name"]]
    try:
        left, right = dims[operator.left], dims[operator.right]
        macs = operator.macs(left, right, dims, arguments.get("Concrete Inputs", ()))
        operands = types[operator.left], types[operator.right]
    except (IndexError, ValueError, SyntaxError):
        return None
    times = [float(kernel["dur"]) for kernel in product.kernels] or [float(product.event["dur"])]
    layer = _layer(product)
    return MatrixCall(
        op=product.event["name"],
        operands=(_TYPES.get(operands[0], operands[0]), _TYPES.get(operands[1], operands[1])),
        macs=macs,
        microseconds=sum(times),
        layer=layer,
        on_weights=bool(layer) or not operator.between_activations,
        kernels=tuple(str(kernel["name"]) for kernel in product.kernels),
    )


def _layer(inside: _Range | None) -> str:
    while inside is not None:
        name = str(inside.event["name"])
        if inside.event["cat"] == "user_annotation" and name.startswith(LAYER_MARK):
            return name.removeprefix(LAYER_MARK)
        inside = inside.parent
    return ""
