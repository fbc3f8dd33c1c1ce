"""A model for MLServer, which imports this file in its own environment. Open Inference Protocol over gRPC."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from tests.bench.peers.padded import Model


class Classifier(MLModel):  # type: ignore[misc]  # mlserver lives in another environment
    async def load(self) -> bool:
        extra = self.settings.parameters.extra
        self._model = Model(extra["folder"], extra["variant"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        logits = self._model.logits(NumpyCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("logits", logits)])
