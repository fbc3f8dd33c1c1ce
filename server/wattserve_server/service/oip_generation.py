"""Generations by the Open Inference Protocol, with the tensors of Triton's backend for vLLM. Errors name the
field in the request message.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

import numpy as np

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.engine.generation.port import TokenIds
from wattserve_server.engine.policy import FIRST_PRIORITY, NORMAL_PRIORITY
from wattserve_server.errors import InvalidRequest
from wattserve_server.service.caller import Caller
from wattserve_server.service.checks import GivenTensor, check_tokenizer, ids_of_tensors, shown
from wattserve_server.service.generation import AskedGeneration, Generated, begin
from wattserve_server.service.oip_reply import bytes_element, parameter, with_cost
from wattserve_server.service.oip_request import VERSION, given_tensors, hosted_of, read_options, texts_in
from wattserve_server.service.oip_sampling import KEYS, PLACES, TENSOR, given_by, object_of
from wattserve_server.service.prediction import Host, Predictor
from wattserve_server.service.spent import spent_on
from wattserve_server.service.wishes import check_prompt, wish_of

TEXT, IDS, OUTPUT = "text_input", "input_ids", "text_output"
STREAM, EXCLUDE = "stream", "exclude_input_in_output"

# Outputs beside the text, each given where the BOOL input `return_NAME` is true.
FINISH, PROMPT_TOKENS, OUTPUT_TOKENS = "finish_reason", "num_input_tokens", "num_output_tokens"
OPTIONAL_OUTPUTS = {FINISH: "BYTES", PROMPT_TOKENS: "UINT32", OUTPUT_TOKENS: "UINT32"}
_NOT_OFFERED = ("return_logprobs", "return_cumulative_logprob")
FLAGS = (STREAM, EXCLUDE, *(f"return_{name}" for name in OPTIONAL_OUTPUTS), *_NOT_OFFERED)

_UNFINISHED = "None"  # what vLLM says of a reason that there is not yet


class AskedText(NamedTuple):
    """asked: of the engine. The rest: how it is told."""

    asked: AskedGeneration
    streams: bool
    before: str  # the prompt, where the answer begins with it
    outputs: frozenset[str]  # beside the text


def described_inputs(has_tokenizer: bool) -> list[oip.ModelInput]:
    """Dimensions without that of a batch, which there is not: requests come one by one."""
    prompt = oip.ModelInput(name=IDS, data_type=oip.TYPE_INT64, dims=[1, -1])
    if has_tokenizer:
        prompt = oip.ModelInput(name=TEXT, data_type=oip.TYPE_STRING, dims=[1])
    kinds = {TENSOR: oip.TYPE_STRING, **dict.fromkeys(FLAGS, oip.TYPE_BOOL)}
    optional = [
        oip.ModelInput(name=name, data_type=kind, dims=[1], optional=True) for name, kind in kinds.items()
    ]
    return [prompt, *optional]


def described_outputs() -> list[oip.ModelOutput]:
    described = {"BYTES": oip.TYPE_STRING, "UINT32": oip.TYPE_UINT32}
    return [
        oip.ModelOutput(name=name, data_type=described[datatype], dims=[1])
        for name, datatype in {OUTPUT: "BYTES", **OPTIONAL_OUTPUTS}.items()
    ]


async def generated(
    request: oip.ModelInferRequest,
    predictor: Predictor,
    left_s: float | None,
    caller: Caller,
    may_stream: bool,
) -> AsyncGenerator[oip.ModelInferResponse, None]:
    """The replies, of which the last alone says what it cost; without a stream it is the only one. Raises
    WattserveError."""
    with predictor.accept(left_s, caller) as prediction:
        host = prediction.host
        first = FIRST_PRIORITY if "priority" in request.parameters else NORMAL_PRIORITY
        prediction.choose(hosted_of(request, host.engine), first)
        wanted = text_asked(request, host, may_stream)
        pieces: list[str] = []
        told_tokens = 0
        async with aclosing(await begin(prediction, wanted.asked)) as running:
            async for piece in running:
                if not wanted.streams:
                    pieces.append(piece.text)
                    continue
                message = oip.ModelInferResponse(
                    model_name=request.model_name, model_version=VERSION, id=request.id
                )
                message.parameters["receipt_id"].string_param = running.receipt.receipt_id
                if piece.energy_uj is not None:
                    message.parameters["energy_uj"].int64_param = piece.energy_uj
                    message.parameters["energy_state"].string_param = "provisional"
                told_tokens += len(piece.token_ids)
                _write_outputs(message, piece.text, wanted, _UNFINISHED, None, len(piece.token_ids))
                yield message
            done = await running.end()
        last = with_cost(request, host, done.receipt, done.times)
        _write_end(last, done)
        text = wanted.before + "".join(pieces)
        ended = done.ended
        rest = ended.output_tokens - told_tokens
        _write_outputs(last, text, wanted, ended.reason.value, ended.prompt_tokens, rest)
    yield last


def text_asked(request: oip.ModelInferRequest, host: Host, may_stream: bool) -> AskedText:
    """Raises InvalidRequest; NotPossibleHere for a text where there is no tokenizer."""
    model, has_tokenizer = host.engine.model, host.tokenizer is not None
    tensors: dict[str, GivenTensor] = {}
    for tensor in given_tensors(request):
        if tensor.name not in (TEXT, IDS, TENSOR, *FLAGS):
            raise InvalidRequest(
                f"unknown tensor {shown(tensor.name)}; this model takes {', '.join((TEXT, TENSOR, *FLAGS))}, "
                f"and {IDS} in place of {TEXT}",
                f"{tensor.field}.name",
            )
        if tensor.name in tensors:
            raise InvalidRequest(f"tensor {tensor.name!r} is given twice", f"{tensor.field}.name")
        tensors[tensor.name] = tensor
    flags = {name: _flag(tensors[name]) for name in FLAGS if name in tensors}
    for name in _NOT_OFFERED:
        if flags.get(name):
            raise InvalidRequest(
                "log-probabilities are told by Generate of the native protocol", tensors[name].data_field
            )
    streams = flags.get(STREAM, False)
    if streams and not may_stream:
        raise InvalidRequest("ModelInfer answers whole: call ModelStreamInfer", tensors[STREAM].data_field)
    repeats = not flags.get(EXCLUDE, streams)
    if repeats and streams:
        raise InvalidRequest("a stream does not repeat its input", tensors[EXCLUDE].data_field)
    prompt: str | TokenIds
    if (TEXT in tensors and IDS in tensors) or not (TEXT in tensors or IDS in tensors):
        raise InvalidRequest(f"a generation needs a prompt: either {TEXT} or {IDS}", "inputs")
    if TEXT in tensors:
        tensor = tensors[TEXT]
        check_tokenizer(model, has_tokenizer, tensor.field)
        field = tensor.data_field
        prompt = check_prompt(_only_text(tensor), field)
    else:
        tensor = tensors[IDS]
        field = tensor.data_field
        (prompt,) = ids_of_tensors([tensor], "inputs", model.facts, 1)
    wish = wish_of(given_by(_sampling(request, tensors)), model.facts, has_tokenizer, PLACES)
    variant_field = "parameters[variant]" if "variant" in request.parameters else "model_name"
    asked = AskedGeneration(read_options(request), prompt, field, wish, PLACES, variant_field)
    before = prompt if repeats and isinstance(prompt, str) else ""
    return AskedText(asked, streams, before, _outputs_asked(request, flags))


def _sampling(request: oip.ModelInferRequest, tensors: dict[str, GivenTensor]) -> dict[str, object]:
    """By the tensor, or else by parameters of the request that have their names."""
    if TENSOR in tensors:
        tensor = tensors[TENSOR]
        return object_of(_only_text(tensor), tensor.data_field)
    found: dict[str, object] = {}
    for name in KEYS:
        if name in request.parameters:
            kind = request.parameters[name].WhichOneof("parameter_choice")
            found[name] = None if kind is None else getattr(request.parameters[name], kind)
    return found


def _outputs_asked(request: oip.ModelInferRequest, flags: dict[str, bool]) -> frozenset[str]:
    asked = {name for name in OPTIONAL_OUTPUTS if flags.get(f"return_{name}")}
    for index, output in enumerate(request.outputs):
        if output.name != OUTPUT and output.name not in OPTIONAL_OUTPUTS:
            known = ", ".join((OUTPUT, *OPTIONAL_OUTPUTS))
            raise InvalidRequest(
                f"unknown output {shown(output.name)}; this model has {known}", f"outputs[{index}].name"
            )
        for name in ("classification", "shared_memory_region"):
            if name in output.parameters:
                raise InvalidRequest(
                    "an answer that is text comes as it is, in the reply",
                    f"outputs[{index}].parameters[{name}]",
                )
        if output.name != OUTPUT:
            asked.add(output.name)
    return frozenset(asked)


def _check_one(tensor: GivenTensor, datatype: str) -> None:
    if tensor.datatype != datatype:
        raise InvalidRequest(
            f"datatype {shown(tensor.datatype)} of {tensor.name}; it is {datatype}",
            f"{tensor.field}.datatype",
        )
    if tensor.shape not in ((1,), (1, 1)):
        raise InvalidRequest(f"shape {list(tensor.shape)} is not [1]", f"{tensor.field}.shape")


def _only_text(tensor: GivenTensor) -> str:
    _check_one(tensor, "BYTES")
    (text,) = texts_in(tensor, 1)
    return text


def _flag(tensor: GivenTensor) -> bool:
    _check_one(tensor, "BOOL")
    if len(tensor.data) != 1:
        raise InvalidRequest(f"{len(tensor.data)} elements; a BOOL of shape [1] has 1", tensor.data_field)
    return bool(tensor.data[0])


def _write_outputs(
    message: oip.ModelInferResponse,
    text: str,
    wanted: AskedText,
    finish_reason: str,
    prompt_tokens: int | None,
    output_tokens: int,
) -> None:
    values: dict[str, bytes] = {OUTPUT: bytes_element(text.encode())}
    if FINISH in wanted.outputs:
        values[FINISH] = bytes_element(finish_reason.encode())
    if PROMPT_TOKENS in wanted.outputs and prompt_tokens is not None:
        values[PROMPT_TOKENS] = np.uint32(prompt_tokens).tobytes()
    if OUTPUT_TOKENS in wanted.outputs:
        values[OUTPUT_TOKENS] = np.uint32(output_tokens).tobytes()
    for name, data in values.items():
        message.outputs.add(name=name, datatype=OPTIONAL_OUTPUTS.get(name, "BYTES"), shape=[1])
        message.raw_output_contents.append(data)


def _write_end(message: oip.ModelInferResponse, done: Generated) -> None:
    ended = done.ended
    told: dict[str, int | float | str | None] = {
        "finish_reason": ended.reason.value,
        "stop_string": ended.stop or None,
        "prompt_tokens": ended.prompt_tokens,
        "output_tokens": ended.output_tokens,
        "first_token_ns": done.first_token_ns,
        "seed": done.seed,
        **spent_on(done.receipt).energies,
    }
    for name, value in told.items():
        if value is not None:
            message.parameters[name].CopyFrom(parameter(value))
