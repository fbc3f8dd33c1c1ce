"""The methods of the server, and one call of one of them as the fuzzer made it: told in a line that can be
sent again."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cached_property

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.service.gate import NEEDS, OPEN, SHORT_BYTES

PREDICT = "/wattserve.v1.Inference/Predict"
PREDICT_STREAM = "/wattserve.v1.Inference/PredictStream"
INFER = "/inference.GRPCInferenceService/ModelInfer"
INFER_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
WATCH_RECEIPTS = "/wattserve.v1.Inference/WatchReceipts"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"

ENDLESS = (WATCH_RECEIPTS, HEALTH_WATCH)
"""They may have nothing to say for ever: the caller leaves."""

LOADING = ("LoadVariant", "UnloadVariant", "RepositoryModelLoad", "RepositoryModelUnload")
"""They may take as long as it takes to make a variant."""

NOT_OFFERED = (
    "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister", "TraceSetting", "LogSettings",
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """path: on the wire; it need not be the descriptor's."""

    path: str
    kind: type[Message]
    reply: type[Message]
    takes_stream: bool
    gives_stream: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def parses(self, data: bytes) -> bool:
        """Whether the server reads it, and takes it for a message."""
        if NEEDS[self.name] == OPEN and len(data) > SHORT_BYTES:
            return False
        try:
            self.kind.FromString(data)
        except DecodeError:
            return False
        return True


def _methods(path: str, service: ServiceDescriptor) -> list[Method]:
    return [
        Method(
            f"/{path}/{method.name}",
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for method in service.methods
    ]


_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

METHODS: dict[str, Method] = {
    method.path: method
    for method in (
        *_methods("wattserve.v1.Inference", pb.DESCRIPTOR.services_by_name["Inference"]),
        *_methods("inference.GRPCInferenceService", oip.DESCRIPTOR.services_by_name["GRPCInferenceService"]),
        *_methods("grpc.health.v1.Health", health_pb2.DESCRIPTOR.services_by_name["Health"]),
        *_methods("grpc.reflection.v1alpha.ServerReflection", _REFLECTION),
        *_methods("grpc.reflection.v1.ServerReflection", _REFLECTION),
    )
}


@dataclass(frozen=True)
class Call:
    """family: who made it: generic, nearly valid, raw. ending: "read" all replies; "answer" each message
    before the next is sent; "cancel" after `after` replies (of a unary call: as many milliseconds).
    timeout_s: the call's deadline as gRPC tells it to the server; None: none."""

    path: str
    messages: tuple[bytes, ...]
    family: str = "generic"
    ending: str = "read"
    after: int = 0
    timeout_s: float | None = None

    @property
    def method(self) -> Method:
        return METHODS[self.path]

    @cached_property
    def parsed(self) -> int:
        """How many messages the server gets to see: those before the first that is none."""
        for index, data in enumerate(self.messages):
            if not self.method.parses(data):
                return index
        return len(self.messages)

    @property
    def is_sound(self) -> bool:
        """Whether every message parses."""
        return self.parsed == len(self.messages)

    def line(self) -> str:
        """One line of JSON, from which `read_call` makes the same call."""
        messages = [base64.b64encode(data).decode() for data in self.messages]
        return json.dumps(
            {
                "path": self.path,
                "messages": messages,
                "family": self.family,
                "ending": self.ending,
                "after": self.after,
                "timeout_s": self.timeout_s,
            }
        )

    def shown(self) -> str:
        """For a person, shortened."""
        parts = []
        for data in self.messages:
            try:
                text = repr(str(self.method.kind.FromString(data)))
            except DecodeError:
                text = f"no message: {data[:60]!r}"
            parts.append(text if len(text) < 400 else f"{text[:300]} ... {text[-80:]} ({len(data)} bytes)")
        how = f"{self.ending} after {self.after}, timeout {self.timeout_s}"
        return f"{self.path} [{self.family}; {how}] {' | '.join(parts) or 'no message'}"


def read_call(line: str) -> Call:
    fields = json.loads(line)
    fields["messages"] = tuple(base64.b64decode(data) for data in fields["messages"])
    return Call(**fields)
