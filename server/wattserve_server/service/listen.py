"""The gRPC server itself: what it listens on and what it registers."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc
from wattserve_server.errors import ConfigError
from wattserve_server.service.inference import InferenceService

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The same for every model, because it is set before one is loaded: 64 MiB hold 111 images of 3 x 224 x 224,
or texts far beyond the limits on them. The client has the same limit."""

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"].full_name

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second server would quietly share the port
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


class Listener:
    """A gRPC server with the native service, health and reflection. Not serving until told so."""

    def __init__(self, service: InferenceService, host: str, port: int) -> None:
        """port: 0 picks a free one. Raises ConfigError when it cannot listen there."""
        self._server = grpc.aio.server(options=_OPTIONS)
        self._health = health.aio.HealthServicer()
        pb_grpc.add_InferenceServicer_to_server(service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        shown = f"[{host}]" if ":" in host else host
        try:
            bound = self._server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {shown}:{port}: the port is in use or the address is not this machine's; "
                "choose another --port or --host"
            ) from error
        self.address = f"{shown}:{bound}"

    async def start(self) -> None:
        await self.say(serving=False)
        await self._server.start()

    async def say(self, serving: bool) -> None:
        """What the health service answers, for the server as a whole and for its service."""
        status = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls at once; give those in progress `grace_s` to end."""
        await self._server.stop(grace_s)
