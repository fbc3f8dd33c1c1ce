"""The gRPC server itself: what it listens on, with which certificates, and what it registers: both protocols,
health and reflection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import duration_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from wattserve_proto.limits import message_sizes
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.oip import open_inference_pb2 as oip_pb
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import ConfigError, NotFound, OverloadedError
from wattserve_server.service.caller import CALLER
from wattserve_server.service.certificates import CertificateFiles
from wattserve_server.service.checks import shown
from wattserve_server.service.gate import Gate
from wattserve_server.service.methods import Deadlines, OpenCalls, handlers
from wattserve_server.service.native import InferenceService
from wattserve_server.service.oip import OipService
from wattserve_server.telemetry.observer import Observer

log = logging.getLogger(__name__)

WRITING_S = 0.1  # for what grpc has been told last, and not yet sent

_OPEN_FILES = Path("/proc/self/fd")

OIP_PACKAGE = "inference"  # the public name of the Open Inference Protocol's package

# Its messages are those of v1alpha, which is all that grpcio-reflection brings; tools ask for it first.
REFLECTION_PACKAGE = "grpc.reflection.v1"

_NATIVE = pb.DESCRIPTOR.services_by_name["Inference"]
_OIP = oip_pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

NATIVE_PATH = _NATIVE.full_name
OIP_PATH = f"{OIP_PACKAGE}.{_OIP.name}"
REFLECTION_PATHS = (f"{REFLECTION_PACKAGE}.{_REFLECTION.name}", _REFLECTION.full_name)

_REFLECTED = (
    pb.DESCRIPTOR,
    health_pb2.DESCRIPTOR,
    reflection_pb2.DESCRIPTOR,
    duration_pb2.DESCRIPTOR,
    error_details_pb2.DESCRIPTOR,  # so that tools can show what an error holds
)

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second server would quietly share the port
    # Clients may ask every 10 s whether the connection still stands, also while they wait for nothing.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client that has vanished is noticed within 80 s rather than hours.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What gRPC itself holds each connection to."""

    message_bytes: int  # of a message that comes
    calls: int = 1024  # in progress; a client holds back more
    age_s: float = 0.0  # at which it is closed; 0: never
    grace_s: float = 0.0  # that calls in progress have then

    def options(self) -> list[tuple[str, int]]:
        limits = [
            *message_sizes(received=self.message_bytes),
            ("grpc.max_concurrent_streams", self.calls),
            # Else calls that have ended count until gRPC has freed them: who keeps to the limit is refused.
            ("grpc.http.overload_protection", 0),
            ("grpc.per_message_decompression", 0),  # no limit of gRPC bounds that: `unpacked` does it
        ]
        if self.age_s:
            limits.append(("grpc.max_connection_age_ms", math.ceil(self.age_s * 1e3)))
            limits.append(("grpc.max_connection_age_grace_ms", math.ceil(self.grace_s * 1e3)))
        return limits


class Listener:
    """A gRPC server with the native service, the Open Inference Protocol, health and reflection. Not serving
    until told so."""

    def __init__(
        self,
        native: InferenceService,
        oip: OipService,
        observer: Observer,
        gate: Gate,
        host: str,
        port: int,
        limits: ConnectionLimits,
        deadlines: Deadlines,
        tls: CertificateFiles | None,
    ) -> None:
        """port: 0 picks a free one. Raises ConfigError when it cannot listen there."""
        self._server = grpc.aio.server(options=[*_OPTIONS, *limits.options()])
        self._health = HealthService((NATIVE_PATH, OIP_PATH))
        names = (NATIVE_PATH, OIP_PATH, _HEALTH.full_name, *REFLECTION_PATHS)
        pool = reflection_pool(_REFLECTED)
        mirror = reflection.aio.ReflectionServicer(names, pool)
        self.calls = OpenCalls(deadlines, limits.calls)  # by every protocol
        registered = (
            (NATIVE_PATH, _NATIVE, native),
            (OIP_PATH, _OIP, oip),
            (_HEALTH.full_name, _HEALTH, self._health),
            *((path, _REFLECTION, mirror) for path in REFLECTION_PATHS),
        )
        self._server.add_generic_rpc_handlers(
            [handlers(*each, observer, gate, self.calls) for each in registered]
        )
        shown = f"[{host}]" if ":" in host else host
        credentials = tls.credentials() if tls else None
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(f"{shown}:{port}")
            else:
                bound = self._server.add_secure_port(f"{shown}:{port}", credentials)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {shown}:{port}: {_why_not(host, port) or error}") from error
        self.address, self._port = f"{shown}:{bound}", bound

    async def start(self) -> None:
        await self._server.start()

    def say(self, serving: bool) -> None:
        """What the health service answers, for the server as a whole and for its services."""
        self._health.say(serving)

    def revoke(self, key_ids: frozenset[str]) -> None:
        """End every call in progress that showed one of these keys."""
        self.calls.revoke(key_ids)

    async def cut(self) -> None:
        """Tell every call in progress UNAVAILABLE. New ones are still taken."""
        await self.calls.end(0)

    async def stop(self, grace_s: float) -> None:
        """Give calls in progress `grace_s` to end, and tell the others UNAVAILABLE; then take no more."""
        self._health.end()
        await self.calls.end(grace_s)
        await asyncio.sleep(WRITING_S)
        _hang_up(self._port)
        await self._server.stop(0)


def _hang_up(port: int) -> None:
    """Shut that port of this process and all connections to it. grpc would tell CANCELLED, which nobody sends
    again, to who has just sent something; so his own side tells him UNAVAILABLE."""
    for listens in (True, False):
        for file in list(_OPEN_FILES.iterdir()) if _OPEN_FILES.is_dir() else ():
            with suppress(OSError):  # it has been closed meanwhile
                if not file.is_socket():
                    continue
                with socket.socket(fileno=os.dup(int(file.name))) as one:
                    is_ours = one.family != socket.AF_UNIX and one.getsockname()[1] == port
                    if is_ours and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == listens:
                        one.shutdown(socket.SHUT_RDWR)


def _why_not(host: str, port: int) -> str:
    """Why nothing can listen there, which gRPC does not tell. Empty: it is not that."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(address)
    except (OSError, UnicodeError) as error:  # the latter of what can be no name
        reason = error.strerror if isinstance(error, OSError) else "no name of a machine"
        return f"{reason}; choose another --port or --host"
    return ""


_Status = health_pb2.HealthCheckResponse

# Watches of the server's health at once: of one caller, which without a key is an address, and of all.
MOST_WATCHES_OF_ONE, MOST_WATCHES = 64, 4096


class HealthService:
    """`grpc.health.v1`, with the official messages: what is served, and whether it is.

    The servicer that comes with grpcio-health-checking forgets everybody who watches a service as soon as one
    of them leaves (1.81: they share one condition, which the first to go deletes), so this is our own.

    services: names that may be asked for, besides the empty one for the server as a whole. Not serving
    until told so. It asks for no key, so that what watches hold is bounded here."""

    def __init__(self, services: Iterable[str]) -> None:
        self._known = {"", *services}
        self._watches: Counter[str] = Counter()  # by caller
        self._serving = False
        self._is_over = False
        self._changed = asyncio.Event()

    def say(self, serving: bool) -> None:
        self._serving = serving
        self._wake()

    def end(self) -> None:
        """End every watch: they would keep a server that stops from stopping."""
        self._is_over = True
        self._wake()

    async def Check(self, request: Any, context: Any) -> Any:
        if request.service not in self._known:
            raise NotFound(
                f"unknown service {shown(request.service)}; known: {', '.join(sorted(self._known - {''}))}",
                "service",
            )
        return self._reply(request.service)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The status now, and whenever it changes; SERVICE_UNKNOWN for a service that is not here."""
        caller = CALLER.get().name
        if self._watches[caller] >= MOST_WATCHES_OF_ONE or self._watches.total() >= MOST_WATCHES:
            raise OverloadedError(
                f"{caller} watches the health of this server {self._watches[caller]} times, all callers "
                f"{self._watches.total()} times, and no more may: {MOST_WATCHES_OF_ONE} and {MOST_WATCHES}; "
                "call Check"
            )
        self._watches[caller] += 1
        try:
            last = None
            while not self._is_over:
                changed = self._changed
                reply = self._reply(request.service)
                if reply != last:
                    yield reply
                    last = reply
                await changed.wait()
        finally:
            self._watches[caller] -= 1
            if not self._watches[caller]:
                del self._watches[caller]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _reply(self, service: str) -> Any:
        if service not in self._known:
            return _Status(status=_Status.SERVICE_UNKNOWN)
        return _Status(status=_Status.SERVING if self._serving else _Status.NOT_SERVING)


def reflection_pool(files: Sequence[FileDescriptor]) -> DescriptorPool:
    """What reflection shows: these files and, under their public names, what the process has under others.

    The Open Inference Protocol's descriptors cannot stand in the process's own pool under their public name,
    `inference`: a client library of it in the same process would clash. They do in a pool of their own.
    """
    pool = DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.serialized_pb)
    pool.Add(_renamed(oip.DESCRIPTOR, OIP_PACKAGE))
    pool.Add(_renamed(reflection_pb2.DESCRIPTOR, REFLECTION_PACKAGE))
    return pool


def _renamed(file: FileDescriptor, package: str) -> FileDescriptorProto:
    """The file with another package's name. It imports nothing."""
    own, public = f".{file.package}.", f".{package}."
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    proto.package = package
    proto.name = f"{package.replace('.', '/')}.proto"

    def rename(message: DescriptorProto) -> None:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(own, public, 1)
        for nested in message.nested_type:
            rename(nested)

    for message in proto.message_type:
        rename(message)
    for method in proto.service[0].method:
        method.input_type = method.input_type.replace(own, public, 1)
        method.output_type = method.output_type.replace(own, public, 1)
    return proto
