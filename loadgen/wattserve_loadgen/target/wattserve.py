"""A Wattserve server: its rows as requests, and the few questions asked between cells.

Questions go through `wattserve_client`. Requests go out as bytes and come back as bytes, see `wire`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from wattserve_client import (
    AsyncClient,
    DeadlineExceeded,
    EnergyReport,
    NotAllowed,
    NotFound,
    Receipt,
    Scores,
    ServerInfo,
    Tls,
    WattserveError,
)
from wattserve_client.errors import in_shared_flags
from wattserve_client.keys import ApiKey
from wattserve_client.wire import from_message
from wattserve_common.dataset import Dataset
from wattserve_loadgen.errors import PlanError, RefusedError, TargetError
from wattserve_loadgen.target.generation import Generated, make_generation, read_generation
from wattserve_loadgen.target.wire import GENERATE, PREDICT, PREDICT_STREAM, Connection, cause, open_channel
from wattserve_proto.v1 import inference_pb2 as pb

GENERATING_TASK = "text-generation"  # as a ServerInfo names it
_WATCH_RECEIPTS = "/wattserve.v1.Inference/WatchReceipts"
_QUESTION_S = 30.0
_SCORING_S = 600.0  # of a few long rows on a slow machine, and until their energy is settled
_RECEIPTS_PER_CALL = 5000
_LOOKUPS_AT_ONCE = 32


class NativeTarget:
    """One Wattserve server. Every question raises TargetError when it is not answered."""

    def __init__(
        self,
        address: str,
        *,
        stream: bool = False,
        tls: Tls | None = None,
        api_key_file: Path | None = None,
    ) -> None:
        """Raises PlanError where there is no API key in the file, or it would be sent in clear."""
        self.address = address
        self._stream, self._tls = stream, tls
        try:
            self._key = ApiKey(file=api_key_file)
            # A question that is lost is not asked again: a sweep has patience of its own.
            self._client = AsyncClient(
                address, timeout_s=_QUESTION_S, retry=False, tls=tls or False, api_key_file=api_key_file
            )
        except OSError as error:
            raise PlanError(f"--api-key-file {api_key_file}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise PlanError(in_shared_flags(str(error))) from None
        self._serialised: tuple[str, list[bytes]] = ("", [])  # of the dataset with that hash
        self.generates = False  # whether its model writes tokens, once the server has said so

    @property
    def protocol(self) -> str:
        if self.generates:
            return "native generation"
        return "native stream" if self._stream else "native unary"

    @property
    def connection(self) -> Connection:
        if self.generates:
            return Connection(self.address, GENERATE, tls=self._tls, metadata=self._key.metadata)
        method = PREDICT_STREAM if self._stream else PREDICT
        return Connection(self.address, method, self._stream, self._tls, self._key.metadata)

    async def server_info(self, limit_s: float = _QUESTION_S) -> ServerInfo:
        """What the server says it is; TargetError when nobody answers within `limit_s`."""
        with self._losing():
            info = await self._client.server_info(timeout_s=limit_s)
        self.generates = info.task == GENERATING_TASK
        return info

    async def score(self, rows: Sequence[list[int]], variant: str) -> Scores:
        """How likely the variant finds each row of token ids, with its settled energy."""
        with self._losing():
            return await self._client.score(
                list(rows), variant=variant, wait_for_settled_energy=True, timeout_s=_SCORING_S
            )

    async def energy_report(self) -> EnergyReport:
        """The ledger, now."""
        with self._losing():
            return await self._client.energy_report()

    async def final_receipts(self, receipt_ids: Sequence[str], limit_s: float) -> dict[str, Receipt]:
        """Receipts by id once they are final. Those that the server no longer has are missing."""
        receipts: dict[str, Receipt] = {}
        for start in range(0, len(receipt_ids), _RECEIPTS_PER_CALL):
            chunk = receipt_ids[start : start + _RECEIPTS_PER_CALL]
            with self._losing():
                try:
                    async for receipt in self._client.watch_receipts(chunk, timeout_s=limit_s):
                        receipts[receipt.receipt_id] = receipt
                except DeadlineExceeded:
                    continue
                except NotFound:  # the server does not know all of them any more
                    await self._look_up([id_ for id_ in chunk if id_ not in receipts], receipts)
        return receipts

    async def harvest_receipts(self, sink: list[bytes]) -> None:
        """Put every receipt into `sink` as it becomes final, for `read_receipts`; until cancelled, or the
        server ends the stream.
        """
        everything = pb.WatchReceiptsRequest().SerializeToString()
        async with open_channel(self.address, self._tls) as channel:
            with suppress(grpc.aio.AioRpcError):
                watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_WATCH_RECEIPTS)
                async for receipt in watch(everything, metadata=self._key.metadata):
                    sink.append(receipt)

    def read_receipts(self, harvested: Sequence[bytes]) -> dict[str, Receipt]:
        """By their ids, the last of each."""
        receipts = [from_message(Receipt, pb.Receipt.FromString(data)) for data in harvested]
        return {receipt.receipt_id: receipt for receipt in receipts}

    def make_requests(self, dataset: Dataset, groups: Sequence[Sequence[int]], variant: str) -> list[bytes]:
        """One PredictRequest for each group of rows, or for each row alone one GenerateRequest."""
        if self.generates:
            return self._generations(dataset, groups, variant)
        prefix = pb.PredictRequest(variant=variant).SerializeToString()
        if dataset.pixel_shape and any(len(group) > 1 for group in groups):
            return [prefix + _images(dataset, group) for group in groups]
        if self._serialised[0] != dataset.sha256:
            serialise = _images if dataset.pixel_shape else _tokens
            rows = [serialise(dataset, [row]) for row in range(len(dataset.rows))]
            self._serialised = dataset.sha256, rows
        rows = self._serialised[1]
        # Joined protobuf messages merge: the sequences of several requests become those of one.
        return [prefix + b"".join(rows[row] for row in group) for group in groups]

    def _generations(self, dataset: Dataset, groups: Sequence[Sequence[int]], variant: str) -> list[bytes]:
        rows = {row: make_generation(dataset, row, variant) for (row,) in set(map(tuple, groups))}
        return [rows[row] for (row,) in groups]

    def read(self, answer: bytes) -> pb.PredictResponse | Generated:
        if self.generates:
            return read_generation(answer)
        try:
            return pb.PredictResponse.FromString(answer)
        except DecodeError:
            raise ValueError("the answer is not a PredictResponse") from None

    async def close(self) -> None:
        await self._client.close()

    async def _look_up(self, receipt_ids: Collection[str], receipts: dict[str, Receipt]) -> None:
        waiting = list(receipt_ids)

        async def look_up_next() -> None:
            while waiting:
                receipt_id = waiting.pop()
                with suppress(NotFound):
                    receipts[receipt_id] = await self._client.receipt(receipt_id, wait_until_settled=True)

        await asyncio.gather(*(look_up_next() for _ in range(_LOOKUPS_AT_ONCE)))

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """What the client raises in it is a TargetError."""
        try:
            yield
        except WattserveError as error:
            why = cause(error.__cause__) if isinstance(error.__cause__, grpc.RpcError) else error.message
            if isinstance(error, NotAllowed):
                raise RefusedError(self.address, error.code, why) from None
            raise TargetError(f"{self.address} does not answer: {error.code} {why}".rstrip()) from None


def _tokens(dataset: Dataset, group: Sequence[int]) -> bytes:
    sequences = [pb.TokenIds(ids=dataset.rows[row].tolist()) for row in group]
    return pb.PredictRequest(tokens=pb.TokenInput(sequences=sequences)).SerializeToString()


def _images(dataset: Dataset, group: Sequence[int]) -> bytes:
    data = b"".join(dataset.rows[row].astype("<f4", copy=False).tobytes() for row in group)
    shape = (len(group), *dataset.pixel_shape)
    tensor = pb.Tensor(name="pixel_values", datatype="FP32", shape=shape, data=data)
    return pb.PredictRequest(tensors=pb.TensorInput(tensors=[tensor])).SerializeToString()
