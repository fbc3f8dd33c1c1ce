"""What the service serves, once there is something to serve."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.text import Tokenizer
from wattserve_server.errors import UnavailableError
from wattserve_server.meters.sampler import Sampler

SETTLEMENT_LIMIT_S = 10.0
"""For how long a call waits for settled energy at the most."""


@dataclass(frozen=True, slots=True)
class DeviceMeter:
    """One device's energy figures. info: what MeterInfo says, but for what changes."""

    device: str
    sampler: Sampler
    info: pb.MeterInfo


@dataclass(slots=True)
class Ready:
    """A server that answers. meters: by device, that of the default variant first. info: what GetServerInfo
    says, but for what changes."""

    engine: Engine
    meters: dict[str, DeviceMeter]
    tokenizer: Tokenizer | None
    info: pb.ServerInfo

    def source_of(self, receipt: Receipt) -> pb.EnergySource:
        """The source of a receipt's figures."""
        return self.meters[receipt.device].info.source


@dataclass(slots=True)
class Serving:
    """`ready` is None until the model is warm; `draining` is set once the server shuts down."""

    ready: Ready | None = None
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    _accepted: int = 0
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_accepting(self) -> bool:
        """Whether a new request would be accepted."""
        return self.ready is not None and not self.draining.is_set()

    def get(self) -> Ready:
        """Raises UnavailableError while there is nothing to serve yet."""
        if self.ready is None:
            raise UnavailableError("the server is starting: its model is not warm yet")
        return self.ready

    def check_not_draining(self) -> None:
        """Raises UnavailableError when the server shuts down."""
        if self.draining.is_set():
            raise UnavailableError("the server is shutting down")

    def accept(self) -> Ready:
        """As `get`, for a new request, which is being worked on until `done`."""
        self.check_not_draining()
        ready = self.get()
        self._accepted += 1
        return ready

    def done(self) -> None:
        """A request that was accepted has ended."""
        self._accepted -= 1
        if not self._accepted:
            self._idle.set()

    async def until_idle(self) -> None:
        """Wait until no accepted request is being worked on. For a server that accepts no more."""
        while self._accepted:
            self._idle.clear()
            await self._idle.wait()
