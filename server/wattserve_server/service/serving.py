"""What the service serves, once there is something to serve."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.text import Tokenizer
from wattserve_server.errors import UnavailableError
from wattserve_server.meters.sampler import Sampler

SETTLEMENT_LIMIT_S = 10.0
"""For how long a call waits for settled energy at the most."""


@dataclass(slots=True)
class Ready:
    """A loaded and warm model. info: what GetServerInfo says, but for what changes."""

    engine: Engine
    sampler: Sampler
    tokenizer: Tokenizer | None
    info: pb.ServerInfo


@dataclass(slots=True)
class Serving:
    """`ready` is None until the model is warm; `draining` is set once the server shuts down."""

    ready: Ready | None = None
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    def get(self) -> Ready:
        """Raises UnavailableError while there is nothing to serve yet."""
        if self.ready is None:
            raise UnavailableError("the server is starting: its model is not warm yet")
        return self.ready

    def accept(self) -> Ready:
        """As `get`, for new work: refused when the server shuts down."""
        if self.draining.is_set():
            raise UnavailableError("the server is shutting down")
        return self.get()
