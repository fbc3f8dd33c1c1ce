"""What must hold after every call, whatever was sent."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from tests.fuzz.calls import INFER_STREAM, NOT_OFFERED, PREDICT_STREAM, Call
from tests.fuzz.sending import Outcome
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.service.status import DOMAIN, REACTIONS

Code = grpc.StatusCode

REASONS = {kind.reason: kind.code for kind in REACTIONS.values() if kind.code is not Code.INTERNAL}
"""What a caller may be told. Our models do not fail, so nothing that is the server's fault is among it."""

METADATA = 6000
"""Bytes that an error may take on the wire. Clients throw away a status of more than 8 KiB with the rest."""

_NUMBERS = {code.value[0]: code for code in Code}


def problems(call: Call, outcome: Outcome) -> list[str]:
    """What is wrong with how the server took it; empty: nothing."""
    return list(_problems(call, outcome))


def _problems(call: Call, outcome: Outcome) -> Iterator[str]:
    code, method = outcome.code, call.method
    if code is None:
        yield "it hangs"
        return
    for data in outcome.replies:
        try:
            reply = method.reply.FromString(data)
        except DecodeError:
            yield f"a reply is no message: {data[:80]!r}"
            return
        yield from _of_reply(call, reply)
    if code is Code.CANCELLED:
        if not outcome.left:
            yield "nobody cancelled it"
        return
    if code is Code.DEADLINE_EXCEEDED and not _server_said(code, outcome):
        if call.timeout_s is None or call.timeout_s >= 1:
            yield "it had no deadline to exceed"
        return
    if code is Code.OK:
        yield from _of_success(call, outcome)
        return
    yield from _of_failure(call, outcome)


def _server_said(code: Code, outcome: Outcome) -> bool:
    """Whether the server sent this status.

    Otherwise the client's own clock ran out, before the server's answer or in the middle of its trailers.
    """
    return bool(outcome.details) and status_pb2.Status.FromString(outcome.details).code == code.value[0]


def _of_success(call: Call, outcome: Outcome) -> Iterator[str]:
    if not call.is_sound:
        yield "bytes that are no message were taken for one"
    if call.method.takes_stream:
        yield from _of_count(call, outcome)
    if call.method.name in NOT_OFFERED:
        yield "a method that is not offered answered"


def _of_count(call: Call, outcome: Outcome) -> Iterator[str]:
    if not outcome.left and len(outcome.replies) != call.parsed:
        yield f"{len(outcome.replies)} replies for {call.parsed} messages"


def _of_failure(call: Call, outcome: Outcome) -> Iterator[str]:
    code, message = outcome.code, outcome.message
    told = f"{code.name if code else None}: {message[:200]}"
    if not outcome.details:
        yield f"no details with {told}"
        return
    size = len(quote(message)) + len(outcome.details) * 4 // 3
    if size > METADATA:
        yield f"the error takes {size} bytes of metadata"
    status = status_pb2.Status.FromString(outcome.details)
    info, wrong = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        for known in (info, wrong):
            if detail.Is(known.DESCRIPTOR):
                detail.Unpack(known)
    if info.domain != DOMAIN or REASONS.get(info.reason) is not code:
        yield f"reason {info.reason!r} of {info.domain!r} with {told}"
    if _NUMBERS[status.code] is not code or status.message != message:
        yield f"the details say {_NUMBERS[status.code].name}: {status.message!r}, the status {told!r}"
    if code is Code.UNIMPLEMENTED and call.method.name not in NOT_OFFERED:
        yield f"a method that is offered said {told}"
    if code is Code.INVALID_ARGUMENT and call.is_sound and not all(
        violation.field for violation in wrong.field_violations or [wrong.FieldViolation()]
    ):  # fmt: skip
        yield f"no field with {told}"
    if not call.is_sound and not call.method.takes_stream and code is not Code.INVALID_ARGUMENT:
        yield f"bytes that are no message got {told}"
    if code is Code.INVALID_ARGUMENT and call.method.takes_stream:
        if call.is_sound:
            yield f"the stream ended with {told}"
        yield from _of_count(call, outcome)


def _of_reply(call: Call, reply: object) -> Iterator[str]:
    """An error of one message of a stream is in its reply."""
    if isinstance(reply, pb.PredictStreamResponse) and reply.WhichOneof("result") == "error":
        error = reply.error
        code = _NUMBERS[error.code]
        if REASONS.get(error.reason) is not code:
            yield f"a reply with reason {error.reason!r}, {code.name}: {error.message[:200]}"
        if code is Code.INVALID_ARGUMENT and not error.field:
            yield f"a reply without a field: {error.message[:200]}"
    if isinstance(reply, oip.ModelStreamInferResponse) and reply.error_message:
        name = reply.error_message[1:].partition("]")[0]
        if name not in {code.name for code in REASONS.values()}:
            yield f"a reply with {reply.error_message[:200]}"


def codes(call: Call, outcome: Outcome) -> Iterator[str]:
    """For the tally: the call's own, and those within the replies of a stream."""
    yield outcome.code.name if outcome.code else "HANGS"
    for data in outcome.replies:
        if call.path == PREDICT_STREAM:
            reply = pb.PredictStreamResponse.FromString(data)
            yield f"reply {_NUMBERS[reply.error.code].name}"
        elif call.path == INFER_STREAM:
            message = oip.ModelStreamInferResponse.FromString(data).error_message
            yield f"reply {message[1:].partition(']')[0] if message else 'OK'}"
