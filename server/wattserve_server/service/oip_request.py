"""From a ModelInferRequest to checked items of a variant, by the names that the protocol gives to models.

`NAME` is the hosted model and stands for its default variant; `NAME@VARIANT` is one variant. There is one
version, "1": a precision is no version, and clients read versions as whole numbers. Parameters that mean
nothing here are ignored, unless their names are reserved. Pure; errors name the field in the request message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.roster import HostedVariant
from wattserve_server.errors import InvalidRequest, NotFound
from wattserve_server.service.checks import (
    MAX_SHOWN,
    GivenTensor,
    check_count,
    check_energy_limit,
    check_priority,
    check_rank,
    check_request_id,
    check_tensors,
    check_texts,
    check_truncates,
    ids_of_tensors,
    images_of_tensors,
    shown,
)
from wattserve_server.service.prediction import Asked, Host, Options

VERSION = "1"


def alias(engine: Engine, variant: str) -> str:
    """The name of one variant."""
    return f"{engine.model.name}@{variant}"


@dataclass(frozen=True, slots=True)
class Fields:
    """Where a message holds a model's name and version."""

    name: str
    version: str


INFERRED = Fields("model_name", "model_version")
DESCRIBED = Fields("name", "version")
LOADED = Fields("model_name", "")


def alias_of(engine: Engine, name: str, version: str, fields: Fields) -> str | None:
    """The variant that a model's name holds; None for the plain name. Raises NotFound or InvalidRequest."""
    if version not in ("", VERSION):
        if not version.isdecimal():
            raise InvalidRequest(
                f"version {shown(version)}: a version is a whole number, here {VERSION!r} or none; a "
                'variant is chosen by the parameter "variant" or the name MODEL@VARIANT',
                fields.version,
            )
        raise NotFound(f"version {shown(version)}: this server has version {VERSION!r} only", fields.version)
    own = engine.model.name
    if name == own:
        return None
    prefix, variant = name[: len(own) + 1], name[len(own) + 1 :]
    if prefix != f"{own}@":
        raise NotFound(
            f"unknown model {shown(name)}; this server has {own!r}, and each variant as {own}@VARIANT",
            fields.name,
        )
    if variant not in engine.roster.names:
        known = ", ".join(engine.roster.names)
        raise NotFound(f"unknown variant {shown(variant)} of {own!r}; this server has {known}", fields.name)
    return variant


def hosted_named(engine: Engine, name: str, version: str, fields: Fields) -> HostedVariant:
    """The variant that a name stands for. Raises as `alias_of`."""
    return engine.hosted(alias_of(engine, name, version, fields) or "")


Parameters = Mapping[str, oip.InferParameter]

_OF_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")
# Always sent by perf_analyzer: asks for what only models with several answers per request have.
_HARMLESS = ("triton_enable_empty_final_response",)

ENERGY_LIMIT = "max_energy_uj"

_ENERGY = {"": False, "provisional": False, "settled": True}


def read_options(request: oip.ModelInferRequest) -> Options:
    """Raises InvalidRequest."""
    parameters = request.parameters
    if not parameters:  # as nearly always
        return Options(check_request_id(request.id, "id"))
    for name in parameters:
        if name.startswith("triton_") and name not in _HARMLESS:
            raise InvalidRequest(f"{shown(name)} is reserved", _parameter(name[:MAX_SHOWN]))
    for name in _OF_SEQUENCES:
        if name in parameters and _value(parameters, name):
            raise InvalidRequest("this model keeps nothing from one request to the next", _parameter(name))
    energy = text_parameter(parameters, "energy")
    if energy not in _ENERGY:
        raise InvalidRequest(f"{shown(energy)}; either 'provisional' or 'settled'", _parameter("energy"))
    timeout_us = whole_parameter(parameters, "timeout")
    options = Options(
        check_request_id(request.id, "id"),
        check_priority(whole_parameter(parameters, "priority"), _parameter("priority")),
        _ENERGY[energy],
        timeout_us * 1000 if timeout_us else None,
        check_truncates(
            bool_parameter(parameters, "truncate"),
            any(tensor.name == "text" for tensor in request.inputs),
            _parameter("truncate"),
        ),
    )
    if ENERGY_LIMIT not in parameters:
        return options
    place = _parameter(ENERGY_LIMIT)
    most_uj = check_energy_limit(whole_parameter(parameters, ENERGY_LIMIT), place)
    return options._replace(max_energy_uj=most_uj, limit_field=place)


def bool_parameter(parameters: Parameters, name: str) -> bool:
    """False when it is not given."""
    value = _value(parameters, name) if name in parameters else False
    if not isinstance(value, bool):
        given = shown(value) if isinstance(value, str) else repr(value)
        raise InvalidRequest(f"{given} is no bool_param", _parameter(name))
    return value


def text_parameter(parameters: Parameters, name: str) -> str:
    """Empty when it is not given."""
    value = _value(parameters, name) if name in parameters else ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{value!r} is no string_param", _parameter(name))
    return value


def whole_parameter(parameters: Parameters, name: str, where: str = "") -> int:
    """0 when it is not given. where: whose parameters they are, if not the request's."""
    value = _value(parameters, name) if name in parameters else 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        given = shown(value) if isinstance(value, str) else repr(value)
        raise InvalidRequest(f"{given} is no whole number from 0", f"{where}{_parameter(name)}")
    return value


def _value(parameters: Parameters, name: str) -> bool | int | str | float | None:
    """None for a parameter without a value."""
    parameter = parameters[name]
    kind = parameter.WhichOneof("parameter_choice")
    value: bool | int | str | float | None = None if kind is None else getattr(parameter, kind)
    return value


def _parameter(name: str) -> str:
    return f"parameters[{name}]"


Tensor = oip.ModelInferRequest.InferInputTensor

_CONTENTS = {
    "INT64": "int64_contents",
    "INT32": "int_contents",
    "FP32": "fp32_contents",
    "BYTES": "bytes_contents",
    "BOOL": "bool_contents",
}
"""Where the elements of a datatype stand when they are not sent as bytes."""

_SHARED_MEMORY, _SEND_IT = "shared_memory_region", "send the data in the request"

_LENGTH_BYTES = 4  # before each element of a BYTES tensor that is sent as bytes


def hosted_of(request: oip.ModelInferRequest, engine: Engine) -> HostedVariant:
    """The variant that a request names, in the model's name or by the parameter. Raises NotFound or
    InvalidRequest."""
    alias = alias_of(engine, request.model_name, request.model_version, INFERRED)
    name = text_parameter(request.parameters, "variant")
    if alias and name and alias != name:
        raise InvalidRequest(
            f"{shown(name)}, and the model's name says {alias!r}: give one of them",
            "parameters[variant]",
        )
    if name and name not in engine.roster.names:
        raise NotFound(
            f"unknown variant {shown(name)}; this server has {', '.join(engine.roster.names)}",
            "parameters[variant]",
        )
    return engine.hosted(alias or name)


def asked_of(request: oip.ModelInferRequest, host: Host) -> Asked:
    """Raises InvalidRequest."""
    facts, limit = host.engine.model.facts, host.engine.limits.max_request
    classes_asked(request, host.engine.model.task.output_name)  # so that wrong ones never run
    asked = Asked(
        read_options(request),
        "inputs",
        variant_field="parameters[variant]" if "variant" in request.parameters else "model_name",
    )
    tensors = given_tensors(request)
    if facts.pixel_shape:
        return asked._replace(items=[*images_of_tensors(tensors, "inputs", facts, limit)])
    if any(tensor.name == "text" for tensor in tensors):
        if len(tensors) > 1:
            raise InvalidRequest("text stands alone, and once: leave the other inputs out", "inputs")
        return asked._replace(place=tensors[0].data_field, texts=_texts(tensors[0], limit))
    or_else = "" if host.tokenizer is None else ", or text (BYTES)"
    return asked._replace(items=[*ids_of_tensors(tensors, "inputs", facts, limit, or_else)])


def classes_asked(request: oip.ModelInferRequest, name: str) -> int:
    """How many classes the request wants named; 0: it wants the array itself. name: of the one output there
    is. Raises InvalidRequest."""
    classes = 0
    for index, output in enumerate(request.outputs):
        field = f"outputs[{index}]"
        if output.name != name:
            raise InvalidRequest(
                f"unknown output {shown(output.name)}; this model has {name!r}", f"{field}.name"
            )
        if index:
            raise InvalidRequest(f"output {name!r} is asked for twice", f"{field}.name")
        place = f"{field}.{_parameter(_SHARED_MEMORY)}"
        _check_no_shared_memory(output.parameters, place, "the answer comes in the reply")
        classes = whole_parameter(output.parameters, "classification", f"{field}.")
    return classes


def given_tensors(request: oip.ModelInferRequest) -> list[GivenTensor]:
    """The inputs as they were sent: as bytes, all of them, or as elements."""
    raw = request.raw_input_contents
    check_tensors(len(request.inputs), "inputs")
    _check_no_shared_memory(request.parameters, _parameter(_SHARED_MEMORY), _SEND_IT)
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
    others = [found.name for found, _ in tensor.contents.ListFields() if found.name != name]
    if name and others:
        raise InvalidRequest(
            f"{tensor.datatype} is given in {name}, not in {', '.join(others)}", f"{field}.contents"
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
    _check_no_shared_memory(tensor.parameters, f"{field}.{_parameter(_SHARED_MEMORY)}", _SEND_IT)
    return field


def _check_no_shared_memory(parameters: Parameters, place: str, instead: str) -> None:
    if _SHARED_MEMORY in parameters:
        raise InvalidRequest(f"shared memory is not offered: {instead}", place)


def _texts(tensor: GivenTensor, limit: int) -> list[str]:
    if tensor.datatype != "BYTES":
        raise InvalidRequest(
            f"datatype {shown(tensor.datatype)} of text; it is BYTES", f"{tensor.field}.datatype"
        )
    shape = list(tensor.shape)
    if len(shape) not in (1, 2) or shape[0] < 1 or shape[1:] not in ([], [1]):
        raise InvalidRequest(f"shape {shape} is neither [texts] nor [texts, 1]", f"{tensor.field}.shape")
    check_count(shape[0], limit, f"{tensor.field}.shape")
    return check_texts(texts_in(tensor, shape[0]), limit, tensor.data_field)


def texts_in(tensor: GivenTensor, count: int) -> list[str]:
    """The elements of a BYTES tensor of so many. Raises InvalidRequest."""
    elements: Sequence[Any] = tensor.data
    if isinstance(tensor.data, bytes):
        elements = _elements(tensor.data, count, tensor.data_field)
    if len(elements) != count:
        raise InvalidRequest(
            f"{len(elements)} elements; shape {list(tensor.shape)} needs {count}", tensor.data_field
        )
    return [_text(element, f"{tensor.data_field}[{index}]") for index, element in enumerate(elements)]


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
