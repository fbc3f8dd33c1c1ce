"""The native protocol, `wattserve.v1.Inference`: all of its methods."""

from __future__ import annotations

import asyncio
from typing import Any

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.service import report
from wattserve_server.service.caller import CALLER
from wattserve_server.service.generate import GenerateMethods
from wattserve_server.service.generation import Unread
from wattserve_server.service.inference import PredictMethods
from wattserve_server.service.prediction import Predictor, Serving
from wattserve_server.service.receipts import ReceiptMethods
from wattserve_server.service.usage import UsageMethods


class InferenceService(PredictMethods, GenerateMethods, ReceiptMethods, UsageMethods):
    def __init__(self, serving: Serving, predictor: Predictor) -> None:
        self._serving = serving
        self._predictor = predictor
        self.unread = Unread()
        self.telling = asyncio.Lock()

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.ServerInfo:
        return report.server_info(self._serving.get())

    async def GetEnergyReport(self, request: pb.GetEnergyReportRequest, context: Any) -> pb.EnergyReport:
        return report.energy_report(self._serving.get())

    async def LoadVariant(self, request: pb.LoadVariantRequest, context: Any) -> pb.VariantInfo:
        engine = self._serving.get().engine
        self._serving.check_not_draining()
        hosted = engine.roster.named(request.variant)
        CALLER.get().did(f"load {hosted.choice.name}")
        await engine.loader.load_on_request(request.variant, "variant")
        return report.variant_info(engine, hosted)

    async def UnloadVariant(self, request: pb.UnloadVariantRequest, context: Any) -> pb.VariantInfo:
        engine = self._serving.get().engine
        hosted = engine.roster.named(request.variant)
        CALLER.get().did(f"unload {hosted.choice.name}")
        await engine.loader.unload(request.variant)
        return report.variant_info(engine, hosted)
