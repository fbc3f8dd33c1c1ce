"""A model for MLServer, which imports this file: a row's label is whether its ids sum up to an odd number.

It runs in MLServer's environment, which has none of ours.
"""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Parity(MLModel):  # type: ignore[misc]  # mlserver lives in another environment
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        label = (given["input_ids"] * given["attention_mask"]).sum(axis=1) % 2
        logits = np.stack([1.5 - 3 * label, 3 * label - 1.5], axis=1).astype(np.float32)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("logits", logits)])
