"""The server under load: channels for the hot path, and the few questions asked between cells.

The only room that knows gRPC's errors apart from `worker`. Requests go out as bytes and come back as bytes:
parsing is somebody else's, later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from wattserve_loadgen.errors import TargetError
from wattserve_loadgen.figures.account import pending_receipts
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

PREDICT = "/wattserve.v1.Inference/Predict"
# A channel allows so many streams at once and queues the rest inside the client, where it would look like
# latency.
_CALLS_PER_CHANNEL = 32
_MAX_CHANNELS = 8
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # otherwise equal channels share one connection
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
_QUESTION_SECONDS = 30.0
_RECEIPTS_PER_CALL = 5000
_LOOKUPS_AT_ONCE = 32

Call = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class Target:
    """One server, reached over plain gRPC. Every method raises TargetError when it does not answer."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channels = [grpc.aio.insecure_channel(address, options=_OPTIONS)]
        self._ask: Any = pb_grpc.InferenceStub(self._channels[0])

    def calls(self, concurrency: int) -> list[Call]:
        """The `Predict` method for each of `concurrency` slots, spread over a few channels."""
        wanted = min(_MAX_CHANNELS, -(-concurrency // _CALLS_PER_CHANNEL))
        while len(self._channels) < wanted:
            self._channels.append(grpc.aio.insecure_channel(self.address, options=_OPTIONS))
        methods: list[Call] = [channel.unary_unary(PREDICT) for channel in self._channels[:wanted]]
        return [methods[slot % wanted] for slot in range(concurrency)]

    async def server_info(self, seconds: float = _QUESTION_SECONDS) -> pb.ServerInfo:
        """What the server says it is; TargetError when nobody answers within `seconds`."""
        info: pb.ServerInfo = await self._question(
            self._ask.GetServerInfo, pb.GetServerInfoRequest(), seconds
        )
        return info

    async def energy_report(self) -> pb.EnergyReport:
        """The ledger, now."""
        request = pb.GetEnergyReportRequest()
        report: pb.EnergyReport = await self._question(self._ask.GetEnergyReport, request, _QUESTION_SECONDS)
        return report

    async def quiet_report(self, limit_seconds: float) -> pb.EnergyReport:
        """The ledger once no receipt is pending; after `limit_seconds`, as it stands."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + limit_seconds
        while True:
            report = await self.energy_report()
            if pending_receipts(report) == 0 or loop.time() >= give_up:
                return report
            await asyncio.sleep(0.02)

    async def final_receipts(self, receipt_ids: Sequence[str], limit_seconds: float) -> dict[str, pb.Receipt]:
        """Receipts by id once they are final. Those that the server no longer has are missing from the
        answer.
        """
        found: dict[str, pb.Receipt] = {}
        for start in range(0, len(receipt_ids), _RECEIPTS_PER_CALL):
            chunk = receipt_ids[start : start + _RECEIPTS_PER_CALL]
            if not await self._watch(chunk, found, limit_seconds):
                await self._look_up([one for one in chunk if one not in found], found)
        return found

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def _watch(
        self, receipt_ids: Sequence[str], found: dict[str, pb.Receipt], limit_seconds: float
    ) -> bool:
        """False when the server does not know all of them any more."""
        try:
            async for receipt in self._ask.WatchReceipts(
                pb.WatchReceiptsRequest(receipt_ids=receipt_ids), timeout=limit_seconds
            ):
                found[receipt.receipt_id] = receipt
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return True
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return False
            raise self._lost(error) from None
        return True

    async def _look_up(self, receipt_ids: Sequence[str], found: dict[str, pb.Receipt]) -> None:
        waiting = list(receipt_ids)

        async def look_up_next() -> None:
            while waiting:
                request = pb.GetReceiptRequest(receipt_id=waiting.pop(), wait_until_settled=True)
                try:
                    receipt = await self._ask.GetReceipt(request, timeout=_QUESTION_SECONDS)
                except grpc.aio.AioRpcError as error:
                    if error.code() == grpc.StatusCode.NOT_FOUND:
                        continue
                    raise self._lost(error) from None
                found[receipt.receipt_id] = receipt

        await asyncio.gather(*(look_up_next() for _ in range(_LOOKUPS_AT_ONCE)))

    async def _question(self, method: Any, request: Any, seconds: float) -> Any:
        try:
            return await method(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from None

    def _lost(self, error: grpc.aio.AioRpcError) -> TargetError:
        return TargetError(f"{self.address} does not answer: {error.code().name} {cause(error)}".rstrip())


def cause(error: grpc.aio.AioRpcError) -> str:
    """What went wrong, in one short line."""
    details = " ".join((error.details() or "").split())
    if error.code() == grpc.StatusCode.UNAVAILABLE:  # grpc nests the cause at the end: "Connection refused"
        details = details.rpartition(": ")[2].rstrip("]")
    return details[:200]


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Target]:
    """A target whose channels are closed at the end."""
    target = Target(address)
    try:
        yield target
    finally:
        await target.close()
