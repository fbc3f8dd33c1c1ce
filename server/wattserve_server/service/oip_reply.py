"""From an answered request to a ModelInferResponse: raw outputs, and what it cost in the parameters. Pure."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.reading import Source
from wattserve_server.energy.receipt import Receipt
from wattserve_server.meters.composite import joined
from wattserve_server.service.inference import known_state, quality_word, unknown_reason
from wattserve_server.service.oip_request import VERSION, classes_asked
from wattserve_server.service.prediction import Answered, Host
from wattserve_server.service.source import source_message
from wattserve_server.service.status import Failure
from wattserve_server.telemetry.observer import Times


def response(request: oip.ModelInferRequest, host: Host, answered: Answered) -> oip.ModelInferResponse:
    model, receipt = host.engine.model, answered.receipt
    classes = classes_asked(request, model.task.output_name)
    rows = answered.rows[0][None] if len(answered.rows) == 1 else np.stack(answered.rows)
    message = with_cost(request, host, receipt, answered.times)
    if answered.cut_tokens:
        message.parameters["cut_tokens"].int64_param = sum(answered.cut_tokens)
    output = message.outputs.add(name=model.task.output_name)
    if classes:
        shape, data = _classification(rows, min(classes, rows.shape[1]), model.labels)
        output.datatype = "BYTES"
    else:
        shape, data = rows.shape, np.ascontiguousarray(rows, dtype="<f4").tobytes()
        output.datatype = "FP32"
    output.shape.extend(shape)
    message.raw_output_contents.append(data)
    return message


def with_cost(
    request: oip.ModelInferRequest, host: Host, receipt: Receipt, times: Times
) -> oip.ModelInferResponse:
    """All of a reply but its outputs."""
    message = oip.ModelInferResponse()
    sources = tuple(host.sources_of(receipt).values())
    alike, source = _alike(receipt.variant, receipt.proxy, receipt.is_unverified, sources)
    message.CopyFrom(alike)
    message.model_name = request.model_name
    message.id = request.id
    _write_parameters(message.parameters, receipt, times)
    _write_energy(message.parameters, receipt, source)
    return message


def stream_error(request: oip.ModelInferRequest, failure: Failure) -> oip.ModelStreamInferResponse:
    """What a stream has instead of a status and its details."""
    told = {
        "error_reason": failure.reaction.reason,
        "error_field": failure.field,
        "receipt_id": failure.receipt_id,
    }
    parameters = {name: parameter(value) for name, value in told.items() if value}
    if failure.retry_after_ms:
        parameters["retry_after_ms"] = parameter(failure.retry_after_ms)
    return oip.ModelStreamInferResponse(
        error_message=f"[{failure.reaction.code_name}] {failure.message}",
        infer_response=oip.ModelInferResponse(
            model_name=request.model_name, id=request.id, parameters=parameters
        ),
    )


def _classification(
    rows: NDArray[np.float32], classes: int, labels: Sequence[str]
) -> tuple[tuple[int, int], bytes]:
    """The best classes of each row as Triton writes them, "value:index:label", best first."""
    data = bytearray()
    for row in rows:
        for index in np.argsort(-row, kind="stable")[:classes]:
            label = f":{labels[index]}" if labels else ""
            element = f"{row[index]:f}:{index}{label}".encode()
            data += bytes_element(element)
    return (len(rows), classes), bytes(data)


def bytes_element(element: bytes) -> bytes:
    """As it stands in a BYTES tensor."""
    return len(element).to_bytes(4, "little") + element


@lru_cache(maxsize=256)
def _alike(
    variant: str, proxy: str, is_unverified: bool, sources: tuple[Source, ...]
) -> tuple[oip.ModelInferResponse, pb.EnergySource]:
    """What is the same in many replies: to be copied, which takes a tenth of making it; and their source."""
    source = source_message(joined(sources))
    values: dict[str, bool | str] = {
        "variant": variant,
        "energy_source": source.name,
        "energy_method": source.method,
        "energy_quality": quality_word(source),
    }
    if source.boundary:
        values["energy_boundary"] = source.boundary
    if proxy:
        values["proxy"] = proxy
    if is_unverified:
        values["unverified"] = True
    parameters = {name: parameter(value) for name, value in values.items()}
    return oip.ModelInferResponse(model_version=VERSION, parameters=parameters), source


Parameters = MutableMapping[str, oip.InferParameter]


def _write_parameters(parameters: Parameters, receipt: Receipt, times: Times) -> None:
    parameters["receipt_id"].string_param = receipt.receipt_id
    parameters["queue_ns"].int64_param = times.queue_ns
    parameters["compute_ns"].int64_param = times.compute_ns
    batch_size = tokens = padded_tokens = 0
    for line in receipt.lines:
        batch_size = max(batch_size, line.batch_size)
        tokens += line.tokens
        padded_tokens += line.padded_tokens
    parameters["batch_size"].int64_param = batch_size
    parameters["tokens"].int64_param = tokens
    parameters["padded_tokens"].int64_param = padded_tokens


def _write_energy(parameters: Parameters, receipt: Receipt, source: pb.EnergySource) -> None:
    """What is not known is left out, and `energy_unknown_reason` says why."""
    whole = receipt.whole
    parameters["energy_state"].string_param = known_state(whole.state, source).value
    if whole.energy_uj is not None:
        parameters["energy_uj"].int64_param = whole.energy_uj
    else:
        reason = unknown_reason(receipt.variant, whole, source)
        parameters["energy_unknown_reason"].string_param = reason
    if whole.interval_uj is not None:
        low_uj, high_uj = whole.interval_uj
        parameters["energy_low_uj"].int64_param = low_uj
        parameters["energy_high_uj"].int64_param = high_uj
    if whole.idle_share_uj is not None:
        parameters["idle_share_uj"].int64_param = whole.idle_share_uj
    if len(receipt.parts) > 1:
        for name in receipt.parts:
            if (part_uj := receipt.of_part(name).energy_uj) is not None:
                parameters[f"{name}_energy_uj"].int64_param = part_uj
    if receipt.warnings:
        parameters["energy_warnings"].string_param = "; ".join(receipt.warnings)


def parameter(value: bool | int | float | str) -> oip.InferParameter:
    if isinstance(value, bool):
        return oip.InferParameter(bool_param=value)
    if isinstance(value, int):
        return oip.InferParameter(int64_param=value)
    if isinstance(value, float):
        return oip.InferParameter(double_param=value)
    return oip.InferParameter(string_param=value)
