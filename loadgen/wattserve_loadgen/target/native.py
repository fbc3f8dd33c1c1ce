"""A Wattserve server: its rows as requests, and the few questions asked between cells.

Requests go out as bytes and come back as bytes; the hot path is in `drive`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from wattserve_loadgen.data.dataset import Dataset
from wattserve_loadgen.errors import TargetError
from wattserve_loadgen.target.channel import PREDICT, PREDICT_STREAM, Connection, Tls, open_channel
from wattserve_loadgen.target.failures import cause
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

_WATCH = "/wattserve.v1.Inference/WatchReceipts"
_QUESTION_SECONDS = 30.0
_RECEIPTS_PER_CALL = 5000
_LOOKUPS_AT_ONCE = 32


class NativeTarget:
    """One Wattserve server. Every question raises TargetError when it is not answered."""

    def __init__(self, address: str, *, stream: bool = False, tls: Tls | None = None) -> None:
        self.address = address
        self._stream, self._tls = stream, tls
        self._channel = open_channel(address, tls)
        self._ask: Any = pb_grpc.InferenceStub(self._channel)
        self._serialised: tuple[str, list[bytes]] = ("", [])  # of the dataset with that hash

    @property
    def protocol(self) -> str:
        return "native stream" if self._stream else "native unary"

    @property
    def connection(self) -> Connection:
        method = PREDICT_STREAM if self._stream else PREDICT
        return Connection(self.address, method, self._stream, self._tls)

    async def server_info(self, seconds: float = _QUESTION_SECONDS) -> pb.ServerInfo:
        """What the server says it is; TargetError when nobody answers within `seconds`."""
        info: pb.ServerInfo = await self._question(
            self._ask.GetServerInfo, pb.GetServerInfoRequest(), seconds
        )
        return info

    def make_requests(self, dataset: Dataset, groups: Sequence[Sequence[int]], variant: str) -> list[bytes]:
        """One PredictRequest for each group of rows."""
        prefix = pb.PredictRequest(variant=variant).SerializeToString()
        if dataset.pixel_shape and any(len(group) > 1 for group in groups):
            return [prefix + _images(dataset, group) for group in groups]
        if self._serialised[0] != dataset.sha256:
            one = _images if dataset.pixel_shape else _tokens
            self._serialised = dataset.sha256, [one(dataset, [row]) for row in range(len(dataset.rows))]
        rows = self._serialised[1]
        # Joined protobuf messages merge: the sequences of several requests become those of one.
        return [prefix + b"".join(rows[row] for row in group) for group in groups]

    def read(self, answer: bytes) -> pb.PredictResponse:
        try:
            return pb.PredictResponse.FromString(answer)
        except DecodeError:
            raise ValueError("the answer is not a PredictResponse") from None

    async def energy_report(self) -> pb.EnergyReport:
        """The ledger, now."""
        request = pb.GetEnergyReportRequest()
        report: pb.EnergyReport = await self._question(self._ask.GetEnergyReport, request, _QUESTION_SECONDS)
        return report

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

    async def harvest_receipts(self, sink: list[bytes]) -> None:
        """Put every receipt into `sink`, serialised, as it becomes final; until cancelled, or until the
        server ends the stream.
        """
        everything = pb.WatchReceiptsRequest().SerializeToString()
        try:
            watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(_WATCH)
            async for receipt in watch(everything):
                sink.append(receipt)
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from None

    async def close(self) -> None:
        await self._channel.close()

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


def _tokens(dataset: Dataset, group: Sequence[int]) -> bytes:
    sequences = [pb.TokenIds(ids=dataset.rows[row].tolist()) for row in group]
    return pb.PredictRequest(tokens=pb.TokenInput(sequences=sequences)).SerializeToString()


def _images(dataset: Dataset, group: Sequence[int]) -> bytes:
    data = b"".join(dataset.rows[row].astype("<f4", copy=False).tobytes() for row in group)
    shape = (len(group), *dataset.pixel_shape)
    tensor = pb.Tensor(name="pixel_values", datatype="FP32", shape=shape, data=data)
    return pb.PredictRequest(tensors=pb.TensorInput(tensors=[tensor])).SerializeToString()
