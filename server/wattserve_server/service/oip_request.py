"""From a ModelInferRequest to checked items. Pure; errors name the field in the request message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.errors import InvalidRequest, NotFound
from wattserve_server.service.checks import check_count, check_rank, check_tensors, check_texts, shown
from wattserve_server.service.oip_names import INFERRED, alias_of
from wattserve_server.service.oip_parameters import read_options, text_parameter
from wattserve_server.service.oip_reply import classes_asked
from wattserve_server.service.prediction import Asked
from wattserve_server.service.serving import Ready
from wattserve_server.service.tensors import GivenTensor, ids_of_tensors, images_of_tensors

Tensor = oip.ModelInferRequest.InferInputTensor

_CONTENTS = {
    "INT64": "int64_contents",
    "INT32": "int_contents",
    "FP32": "fp32_contents",
    "BYTES": "bytes_contents",
}
"""Where the elements of a datatype stand when they are not sent as bytes."""

_LENGTH_BYTES = 4
"""Before each element of a BYTES tensor that is sent as bytes."""


@dataclass(frozen=True, slots=True)
class OipCall:
    """A ModelInferRequest, to be read once there is a server to hold it against."""

    request: oip.ModelInferRequest

    @property
    def variant_field(self) -> str:
        return "parameters[variant]" if "variant" in self.request.parameters else "model_name"

    def variant(self, ready: Ready) -> str:
        request, engine = self.request, ready.engine
        alias = alias_of(engine, request.model_name, request.model_version, INFERRED)
        asked = text_parameter(request.parameters, "variant")
        if alias and asked and alias != asked:
            raise InvalidRequest(
                f"{shown(asked)}, and the model's name says {alias!r}: give one of them",
                "parameters[variant]",
            )
        if asked and asked not in engine.roster.names:
            raise NotFound(
                f"unknown variant {shown(asked)}; this server has {', '.join(engine.roster.names)}",
                "parameters[variant]",
            )
        return alias or asked or engine.default_variant

    def read(self, ready: Ready) -> Asked:
        """Raises InvalidRequest."""
        request, facts = self.request, ready.engine.model.facts
        limit = ready.engine.limits.max_request
        classes_asked(request, ready.engine.model.task.output_name)  # so that wrong ones never run
        options, inputs = read_options(request), _given(request)
        if facts.pixel_shape:
            return Asked(options, "inputs", [*images_of_tensors(inputs, "inputs", facts, limit)])
        if any(tensor.name == "text" for tensor in inputs):
            if len(inputs) > 1:
                raise InvalidRequest("text stands alone, and once: leave the other inputs out", "inputs")
            return Asked(options, inputs[0].data_field, texts=_texts(inputs[0], limit))
        or_else = "" if ready.tokenizer is None else ", or text (BYTES)"
        return Asked(options, "inputs", [*ids_of_tensors(inputs, "inputs", facts, limit, or_else)])


def _given(request: oip.ModelInferRequest) -> list[GivenTensor]:
    """The inputs as they were sent: as bytes, all of them, or as elements."""
    raw = request.raw_input_contents
    check_tensors(len(request.inputs), "inputs")
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequest(
            f"{len(raw)} raw contents for {len(request.inputs)} inputs: give one for each, or none",
            "raw_input_contents",
        )
    return [
        _raw(tensor, raw[index], index) if raw else _typed(tensor, index)
        for index, tensor in enumerate(request.inputs)
    ]


def _raw(tensor: Tensor, data: bytes, index: int) -> GivenTensor:
    field = _field(tensor, index)
    if tensor.contents.ListFields():
        raise InvalidRequest("both contents and raw_input_contents are given", f"{field}.contents")
    shape = check_rank(tensor.shape, f"{field}.shape")
    return GivenTensor(tensor.name, tensor.datatype, shape, data, field, f"raw_input_contents[{index}]")


def _typed(tensor: Tensor, index: int) -> GivenTensor:
    field = _field(tensor, index)
    name = _CONTENTS.get(tensor.datatype, "")
    filled = [found.name for found, _ in tensor.contents.ListFields()]
    if name and filled not in ([], [name]):
        raise InvalidRequest(
            f"{tensor.datatype} is given in {name}, not in {', '.join(filled)}", f"{field}.contents"
        )
    data: Any = getattr(tensor.contents, name) if name else ()
    if tensor.datatype == "FP32":  # they are packed: the end of the message is the array
        tensor.contents.DiscardUnknownFields()  # which would come after it
        data = tensor.contents.SerializeToString()[-4 * len(data) :] if data else b""
    return GivenTensor(
        tensor.name,
        tensor.datatype,
        check_rank(tensor.shape, f"{field}.shape"),
        data,
        field,
        f"{field}.contents.{name}",
    )


def _field(tensor: Tensor, index: int) -> str:
    field = f"inputs[{index}]"
    if "shared_memory_region" in tensor.parameters:
        raise InvalidRequest(
            "shared memory is not offered: send the data in the request",
            f"{field}.parameters[shared_memory_region]",
        )
    return field


def _texts(tensor: GivenTensor, limit: int) -> list[str]:
    if tensor.datatype != "BYTES":
        raise InvalidRequest(
            f"datatype {shown(tensor.datatype)} of text; it is BYTES", f"{tensor.field}.datatype"
        )
    shape = list(tensor.shape)
    if len(shape) not in (1, 2) or shape[0] < 1 or shape[1:] not in ([], [1]):
        raise InvalidRequest(f"shape {shape} is neither [texts] nor [texts, 1]", f"{tensor.field}.shape")
    check_count(shape[0], limit, f"{tensor.field}.shape")
    elements: Sequence[Any] = tensor.data
    if isinstance(tensor.data, bytes):
        elements = _elements(tensor.data, shape[0], tensor.data_field)
    if len(elements) != shape[0]:
        raise InvalidRequest(f"{len(elements)} elements; shape {shape} needs {shape[0]}", tensor.data_field)
    texts = [_text(element, f"{tensor.data_field}[{index}]") for index, element in enumerate(elements)]
    return check_texts(texts, limit, tensor.data_field)


def _elements(data: bytes, count: int, field: str) -> list[bytes]:
    """The elements of a BYTES tensor: each after its length in four bytes, little-endian."""
    elements: list[bytes] = []
    position = 0
    while position < len(data) and len(elements) < count:
        begin = position + _LENGTH_BYTES
        position = begin + int.from_bytes(data[position:begin], "little")
        if position > len(data) or begin > len(data):
            raise InvalidRequest(f"element {len(elements)} is longer than what was sent of it", field)
        elements.append(data[begin:position])
    if position < len(data):
        raise InvalidRequest(f"{len(data) - position} bytes are left after {count} elements", field)
    return elements


def _text(element: bytes, field: str) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8: {error}", field) from error
