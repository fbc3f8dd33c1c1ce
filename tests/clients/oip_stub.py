"""A bare client of the Open Inference Protocol: our own messages at its public path, nothing in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message_factory import GetMessageClass

from wattserve_proto.oip import open_inference_pb2 as oip

PATH = "inference.GRPCInferenceService"
_DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}
Parameters = Mapping[str, bool | int | str]


class OipStub:
    """The service's methods, on a channel of grpc or of grpc.aio."""

    def __init__(self, channel: Any) -> None:
        self._methods = {}
        for method in oip.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            kinds = [
                "stream" if is_stream else "unary"
                for is_stream in (method.client_streaming, method.server_streaming)
            ]
            self._methods[method.name] = getattr(channel, "_".join(kinds))(
                f"/{PATH}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )

    def __getattr__(self, name: str) -> Any:
        return self._methods[name]


def parameters(given: Parameters) -> dict[str, oip.InferParameter]:
    fields = {bool: "bool_param", int: "int64_param", str: "string_param"}
    made = {name: oip.InferParameter() for name in given}
    for name, value in given.items():
        setattr(made[name], fields[type(value)], value)
    return made


def infer_request(model: str, given: Parameters | None = None, **arrays: Any) -> oip.ModelInferRequest:
    """arrays: inputs by name, numpy arrays, or texts; sent as bytes."""
    request = oip.ModelInferRequest(model_name=model, parameters=parameters(given or {}))
    for name, array in arrays.items():
        if isinstance(array, np.ndarray):
            datatype, shape, raw = _DATATYPES[array.dtype.name], array.shape, array.tobytes()
        else:
            elements = [text.encode() for text in array]
            datatype, shape = "BYTES", (len(elements),)
            raw = b"".join(len(element).to_bytes(4, "little") + element for element in elements)
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    return request


def rows(reply: oip.ModelInferResponse) -> np.ndarray:
    """The one output of a reply."""
    (output,), (raw,) = reply.outputs, reply.raw_output_contents
    assert output.datatype == "FP32"
    return np.frombuffer(raw, "<f4").reshape(output.shape)


def told(reply: oip.ModelInferResponse) -> dict[str, bool | int | str]:
    """The parameters of a reply."""
    values = {}
    for name, parameter in reply.parameters.items():
        field = parameter.WhichOneof("parameter_choice")
        assert field is not None, f"the parameter {name} has no value"
        values[name] = getattr(parameter, field)
    return values
