"""Calls that were not answered, as the records that a result keeps."""

from __future__ import annotations

import grpc
import grpc.aio

from wattserve_loadgen.drive.outcome import Failure

_MESSAGE_CHARACTERS = 200


class Unanswered(Exception):
    """A request on a stream that got an error, or nothing at all. Never leaves the drive."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.code} {failure.message}")
        self.failure = failure


CALL_ERRORS = (grpc.aio.AioRpcError, Unanswered)


def failure_of(error: grpc.aio.AioRpcError | Unanswered) -> Failure:
    """The record of one of CALL_ERRORS."""
    if isinstance(error, Unanswered):
        return error.failure
    return Failure(error.code().name, cause(error))


def cause(error: grpc.aio.AioRpcError) -> str:
    """What went wrong, in one short line."""
    details = one_line(error.details() or "")
    if error.code() == grpc.StatusCode.UNAVAILABLE:  # grpc nests the cause at the end: "Connection refused"
        details = details.rpartition(": ")[2].rstrip("]")
    return details


def one_line(message: str) -> str:
    """`message` without line breaks, and cut when it is long."""
    return " ".join(message.split())[:_MESSAGE_CHARACTERS]
