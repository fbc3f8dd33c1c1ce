"""The gRPC server itself: what it listens on and what it registers."""

from __future__ import annotations

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from wattserve_proto.oip import open_inference_pb2 as oip_pb
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import ConfigError
from wattserve_server.service import health
from wattserve_server.service.inference import InferenceService
from wattserve_server.service.methods import handlers
from wattserve_server.service.oip import OipService
from wattserve_server.service.reflection import OIP_PACKAGE, REFLECTION_PACKAGE, reflection_pool
from wattserve_server.service.tls import Tls
from wattserve_server.telemetry.calls import Calls

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The same for every model, because it is set before one is loaded: 64 MiB hold 111 images of 3 x 224 x 224,
or texts far beyond the limits on them. The client has the same limit."""

_NATIVE = pb.DESCRIPTOR.services_by_name["Inference"]
_OIP = oip_pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
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
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Clients may ask every 10 s whether the connection still stands, also while they wait for nothing.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client that has vanished is noticed within 80 s rather than hours.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class Listener:
    """A gRPC server with the native service, the Open Inference Protocol, health and reflection. Not serving
    until told so."""

    def __init__(
        self, native: InferenceService, oip: OipService, calls: Calls, host: str, port: int, tls: Tls | None
    ) -> None:
        """calls: counts them. port: 0 picks a free one. Raises ConfigError when it cannot listen there."""
        self._server = grpc.aio.server(options=_OPTIONS)
        self._health = health.HealthService((NATIVE_PATH, OIP_PATH))
        names = (NATIVE_PATH, OIP_PATH, health.PATH, *REFLECTION_PATHS)
        pool = reflection_pool(_REFLECTED)
        mirror = reflection.aio.ReflectionServicer(names, pool)
        self._server.add_generic_rpc_handlers(
            (
                handlers(NATIVE_PATH, _NATIVE, native, calls),
                handlers(OIP_PATH, _OIP, oip, calls),
                handlers(health.PATH, health.SERVICE, self._health, calls),
                *(handlers(path, _REFLECTION, mirror, calls) for path in REFLECTION_PATHS),
            )
        )
        shown = f"[{host}]" if ":" in host else host
        credentials = tls.credentials() if tls else None
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(f"{shown}:{port}")
            else:
                bound = self._server.add_secure_port(f"{shown}:{port}", credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {shown}:{port}: the port is in use, or the address is not this machine's "
                "or none at all; choose another --port or --host"
            ) from error
        self.address = f"{shown}:{bound}"

    async def start(self) -> None:
        await self._server.start()

    def say(self, serving: bool) -> None:
        """What the health service answers, for the server as a whole and for its services."""
        self._health.say(serving)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls at once; give those in progress `grace_s` to end."""
        self._health.end()
        await self._server.stop(grace_s)
