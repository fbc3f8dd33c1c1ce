"""The parameters of a ModelInferRequest. Names that mean nothing here are ignored, unless they are reserved.

Pure; errors name the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.errors import InvalidRequest
from wattserve_server.service.checks import MAX_SHOWN, check_priority, check_request_id, shown
from wattserve_server.service.prediction import Options

Parameters = Mapping[str, oip.InferParameter]

_OF_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")
_HARMLESS = ("triton_enable_empty_final_response",)
"""Always sent by perf_analyzer: asks for what only models with several answers per request have."""

_ENERGY = {"": False, "provisional": False, "settled": True}


def read_options(request: oip.ModelInferRequest) -> Options:
    """Raises InvalidRequest."""
    parameters = request.parameters
    for name in parameters:
        if name.startswith("triton_") and name not in _HARMLESS:
            raise InvalidRequest(f"{shown(name)} is reserved", _field(name[:MAX_SHOWN]))
    for name in _OF_SEQUENCES:
        if name in parameters and _value(parameters, name):
            raise InvalidRequest("this model keeps nothing from one request to the next", _field(name))
    energy = text_parameter(parameters, "energy")
    if energy not in _ENERGY:
        raise InvalidRequest(f"{shown(energy)}; either 'provisional' or 'settled'", _field("energy"))
    timeout_us = whole_parameter(parameters, "timeout")
    return Options(
        check_request_id(request.id, "id"),
        check_priority(whole_parameter(parameters, "priority"), _field("priority")),
        _ENERGY[energy],
        timeout_us * 1000 if timeout_us else None,
    )


def text_parameter(parameters: Parameters, name: str) -> str:
    """Empty when it is not given."""
    value = _value(parameters, name) if name in parameters else ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{value!r} is no string_param", _field(name))
    return value


def whole_parameter(parameters: Parameters, name: str, where: str = "") -> int:
    """0 when it is not given. where: whose parameters they are, if not the request's."""
    value = _value(parameters, name) if name in parameters else 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        given = shown(value) if isinstance(value, str) else repr(value)
        raise InvalidRequest(f"{given} is no whole number from 0", f"{where}{_field(name)}")
    return value


def _value(parameters: Parameters, name: str) -> bool | int | str | float | None:
    """None for a parameter without a value."""
    parameter = parameters[name]
    kind = parameter.WhichOneof("parameter_choice")
    value: bool | int | str | float | None = None if kind is None else getattr(parameter, kind)
    return value


def _field(name: str) -> str:
    return f"parameters[{name}]"
