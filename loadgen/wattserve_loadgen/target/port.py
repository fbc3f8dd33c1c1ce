"""What the rest of loadgen needs of a server. Every answer is read in the native protocol's messages,
whatever was spoken on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wattserve_loadgen.data.dataset import Dataset
from wattserve_loadgen.target.channel import Connection
from wattserve_proto.v1 import inference_pb2 as pb


class Target(Protocol):
    """One server. Every question raises TargetError when it is not answered."""

    address: str

    @property
    def protocol(self) -> str:
        """For results: `native unary`, `native stream`, `open inference protocol`."""
        ...

    @property
    def connection(self) -> Connection:
        """How the hot path reaches it."""
        ...

    async def server_info(self, seconds: float = ...) -> pb.ServerInfo:
        """What the server says it is."""
        ...

    def make_requests(self, dataset: Dataset, groups: Sequence[Sequence[int]], variant: str) -> list[bytes]:
        """One serialised request for each group of rows."""
        ...

    def read(self, answer: bytes) -> pb.PredictResponse:
        """ValueError when the bytes are no answer that can be used; the text says why."""
        ...

    async def close(self) -> None: ...
