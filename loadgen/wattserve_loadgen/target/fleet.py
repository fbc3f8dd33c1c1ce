"""Several Wattserve servers of one model, loaded as one: calls go to them in turns, joules are summed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from wattserve_client import Scores, ServerInfo
from wattserve_common.dataset import Dataset
from wattserve_loadgen.errors import PlanError, TargetError
from wattserve_loadgen.model.codec import as_stored
from wattserve_loadgen.model.server_info import difference
from wattserve_loadgen.target.generation import Generated
from wattserve_loadgen.target.wattserve import NativeTarget
from wattserve_loadgen.target.wire import CallFailure, Connection
from wattserve_proto.v1 import inference_pb2 as pb

MOST_SERVERS = 255  # a byte before each answer tells whose it is


class Fleet:
    """Asked and loaded as `NativeTarget` is."""

    def __init__(self, members: Sequence[NativeTarget]) -> None:
        if len(members) > MOST_SERVERS:
            raise PlanError(f"--target: {len(members)} servers; {MOST_SERVERS} are the most")
        self.members = tuple(members)
        self.address = ",".join(member.address for member in members)

    @property
    def protocol(self) -> str:
        return self.members[0].protocol

    @property
    def generates(self) -> bool:
        return self.members[0].generates

    @property
    def connection(self) -> Connection:
        first, *others = self.members
        return replace(first.connection, others=tuple(member.address for member in others))

    async def server_info(self, limit_s: float = 30.0) -> ServerInfo:
        """What the first says of itself, under an id of them all; TargetError when one does not answer, or is
        not like the first."""
        infos = await asyncio.gather(*(member.server_info(limit_s) for member in self.members))
        for member, info in zip(self.members, infos, strict=True):
            unlike = difference(as_stored(infos[0]), as_stored(info))
            if unlike:
                raise TargetError(
                    f"{member.address} is not like {self.members[0].address}: {unlike} there; the"
                    " servers of a --target are measured as one, so they must serve the same"
                )
        return replace(infos[0], instance_id="+".join(info.instance_id for info in infos))

    def make_requests(self, dataset: Dataset, groups: Sequence[Sequence[int]], variant: str) -> list[bytes]:
        return self.members[0].make_requests(dataset, groups, variant)

    def read(self, answer: bytes) -> pb.PredictResponse | Generated:
        return self.members[answer[0]].read(answer[1:])

    def servers_of(self, outcomes: Sequence[bytes | CallFailure]) -> list[str]:
        """The address of the server that each of the requests went to."""
        return [
            outcome.server if isinstance(outcome, CallFailure) else self.members[outcome[0]].address
            for outcome in outcomes
        ]

    async def score(self, rows: Sequence[list[int]], variant: str) -> Scores:
        """By the first: all serve the same weights."""
        return await self.members[0].score(rows, variant)

    async def close(self) -> None:
        for member in self.members:
            await member.close()
