"""`grpc.health.v1`, with the official messages: what is served, and whether it is.

The servicer that comes with grpcio-health-checking forgets everybody who watches a service as soon as one of
them leaves (1.81: they share one condition, which the first to go deletes), so this is our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from grpc_health.v1 import health_pb2

from wattserve_server.errors import NotFound
from wattserve_server.service.checks import shown

PATH = "grpc.health.v1.Health"
SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]

_Status = health_pb2.HealthCheckResponse


class HealthService:
    """services: names that may be asked for, besides the empty one for the server as a whole. Not serving
    until told so."""

    def __init__(self, services: Iterable[str]) -> None:
        self._known = {"", *services}
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
        last = None
        while not self._is_over:
            changed = self._changed
            reply = self._reply(request.service)
            if reply != last:
                yield reply
                last = reply
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _reply(self, service: str) -> Any:
        if service not in self._known:
            return _Status(status=_Status.SERVICE_UNKNOWN)
        return _Status(status=_Status.SERVING if self._serving else _Status.NOT_SERVING)
