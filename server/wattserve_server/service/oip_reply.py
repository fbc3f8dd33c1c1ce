"""From an answered request to a ModelInferResponse: raw outputs, and what it cost in the parameters. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.receipt import Receipt
from wattserve_server.service.inference import known_state, quality_word, unknown_reason
from wattserve_server.service.oip_request import VERSION, classes_asked
from wattserve_server.service.prediction import Answered, Host
from wattserve_server.service.status import Failure


def response(request: oip.ModelInferRequest, host: Host, answered: Answered) -> oip.ModelInferResponse:
    model = host.engine.model
    classes = classes_asked(request, model.task.output_name)
    rows = np.stack(answered.rows)
    message = oip.ModelInferResponse(
        model_name=request.model_name,
        model_version=VERSION,
        id=request.id,
        parameters=_parameters(answered, host.source_of(answered.receipt)),
    )
    if classes:
        shape, data = _classification(rows, min(classes, rows.shape[1]), model.labels)
        message.outputs.add(name=model.task.output_name, datatype="BYTES", shape=shape)
    else:
        data = np.ascontiguousarray(rows, dtype="<f4").tobytes()
        message.outputs.add(name=model.task.output_name, datatype="FP32", shape=rows.shape)
    message.raw_output_contents.append(data)
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
        error_message=f"[{failure.reaction.code.name}] {failure.message}",
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
            data += len(element).to_bytes(4, "little") + element
    return (len(rows), classes), bytes(data)


def _parameters(answered: Answered, source: pb.EnergySource) -> dict[str, oip.InferParameter]:
    receipt, times = answered.receipt, answered.times
    values = _energy(receipt, source) | {
        "variant": receipt.variant,
        "receipt_id": receipt.receipt_id,
        "batch_size": max(line.batch_size for line in receipt.lines),
        "tokens": sum(line.tokens for line in receipt.lines),
        "padded_tokens": sum(line.padded_tokens for line in receipt.lines),
        "queue_ns": times.queue_ns,
        "compute_ns": times.compute_ns,
    }
    if receipt.proxy:
        values["proxy"] = receipt.proxy
    if receipt.is_unverified:
        values["unverified"] = True
    if answered.cut_tokens:
        values["cut_tokens"] = sum(answered.cut_tokens)
    return {name: parameter(value) for name, value in values.items()}


def _energy(receipt: Receipt, source: pb.EnergySource) -> dict[str, bool | int | str]:
    """What is not known is left out, and `energy_unknown_reason` says why."""
    whole = receipt.whole
    values: dict[str, bool | int | str] = {
        "energy_state": known_state(whole.state, source).value,
        "energy_source": source.name,
        "energy_method": source.method,
        "energy_quality": quality_word(source),
    }
    if source.boundary:
        values["energy_boundary"] = source.boundary
    if whole.energy_uj is not None:
        values["energy_uj"] = whole.energy_uj
    else:
        values["energy_unknown_reason"] = unknown_reason(receipt.variant, whole, source)
    if whole.interval_uj is not None:
        values["energy_low_uj"], values["energy_high_uj"] = whole.interval_uj
    if whole.idle_share_uj is not None:
        values["idle_share_uj"] = whole.idle_share_uj
    if len(receipt.parts) > 1:
        for name in receipt.parts:
            if (part_uj := receipt.of_part(name).energy_uj) is not None:
                values[f"{name}_energy_uj"] = part_uj
    if receipt.warnings:
        values["energy_warnings"] = "; ".join(receipt.warnings)
    return values


def parameter(value: bool | int | str) -> oip.InferParameter:
    if isinstance(value, bool):
        return oip.InferParameter(bool_param=value)
    if isinstance(value, int):
        return oip.InferParameter(int64_param=value)
    return oip.InferParameter(string_param=value)
