"""Both protocols as one replica of several answers them: as a server does, but for what is others' too."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import NotFound, NotPossibleHere
from wattserve_server.service.native import InferenceService
from wattserve_server.service.oip import OipService
from wattserve_server.service.prediction import SETTLEMENT_LIMIT_S, Predictor, Serving

REPORT = "GetEnergyReport"
LOOK_AGAIN_S = 0.25
NO_BOOK = "give the application an account book that its replicas share: account_book: postgresql://..."


class ReplicaInference(InferenceService):
    def __init__(self, serving: Serving, predictor: Predictor, directory: Any) -> None:
        """directory: Ray's handle of the `Directory`."""
        super().__init__(serving, predictor)
        self._directory = directory

    async def GetReceipt(self, request: pb.GetReceiptRequest, context: Any) -> pb.Receipt:
        give_up = asyncio.get_running_loop().time() + SETTLEMENT_LIMIT_S
        while True:
            try:
                return await super().GetReceipt(request, context)
            except NotFound as error:
                instance_id = request.receipt_id.partition("-")[0]
                name, is_here = await self._directory.whose.remote(instance_id)
                host = self._serving.get()
                if not name or instance_id == host.engine.book.run.instance_id:
                    raise
                if host.stored is None or not is_here or asyncio.get_running_loop().time() > give_up:
                    raise _elsewhere(request.receipt_id, name, is_here, host.stored is not None) from error
            await asyncio.sleep(LOOK_AGAIN_S)  # it is in the account book once it has settled

    async def FindReceipts(self, request: pb.FindReceiptsRequest, context: Any) -> pb.FindReceiptsResponse:
        try:
            return await super().FindReceipts(request, context)
        except NotFound as error:
            if self._serving.get().stored is None:
                raise NotFound(f"{error}; or it is on another replica: {NO_BOOK}", "request_id") from error
            raise

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.ServerInfo:
        """With one instance for the application, whoever is asked: that of the report's first ledger."""
        info = await super().GetServerInfo(request, context)
        info.instance_id = await self._directory.first.remote() or info.instance_id
        return info

    async def GetEnergyReport(self, request: pb.GetEnergyReportRequest, context: Any) -> pb.EnergyReport:
        """Of all replicas: a call reaches any of them, and a ledger is one replica's."""
        self._serving.get()
        told = await self._directory.ask_all.remote(REPORT)
        return together({name: pb.EnergyReport.FromString(data) for name, data in told.items() if data})

    async def own_report(self) -> bytes:
        """Empty while the replica starts."""
        if self._serving.host is None:
            return b""
        report = await super().GetEnergyReport(pb.GetEnergyReportRequest(), None)
        return report.SerializeToString()

    async def LoadVariant(self, request: pb.LoadVariantRequest, context: Any) -> pb.VariantInfo:
        raise _one_only()

    async def UnloadVariant(self, request: pb.UnloadVariantRequest, context: Any) -> pb.VariantInfo:
        raise _one_only()


class ReplicaOip(OipService):
    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        raise _one_only()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        raise _one_only()


def _elsewhere(receipt_id: str, name: str, is_here: bool, has_book: bool) -> NotFound:
    if not has_book:
        why = NO_BOOK
    elif is_here:
        why = "it is not in the account book yet"
    else:
        why = "that one has ended, and the account book has no such receipt"
    return NotFound(f"receipt {receipt_id[:80]!r} is on another replica, {name}: {why}", "receipt_id")


def _one_only() -> NotPossibleHere:
    return NotPossibleHere(
        "a call reaches one replica of several, which are to serve the same variants: say them in the "
        "application's settings (variants) and deploy it again"
    )


def together(reports: Mapping[str, pb.EnergyReport]) -> pb.EnergyReport:
    """The ledgers of all replicas, by their names: the first with its own devices, those of the others as
    `DEVICE@REPLICA`. reports: not empty."""
    first, *others = sorted(reports)
    whole = pb.EnergyReport()
    whole.CopyFrom(reports[first])
    for name in others:
        for ledger in (reports[name], *reports[name].other_devices):
            added = whole.other_devices.add()
            added.CopyFrom(ledger)
            del added.other_devices[:]
            added.device = f"{ledger.device}@{name}"
    return whole
