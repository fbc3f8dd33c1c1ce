"""LitServe, in its own environment: `litserve_server.py FOLDER VARIANT PORT`. JSON over HTTP."""

from __future__ import annotations

import sys
from typing import Any

import litserve
import numpy as np
from numpy.typing import NDArray

from tests.bench.peers.padded import Model
from tests.bench.peers.settings import BATCH, DELAY_S, LONGEST, PAD


class Classifier(litserve.LitAPI):  # type: ignore[misc]  # litserve lives in another environment
    def __init__(self, folder: str, variant: str) -> None:
        super().__init__(max_batch_size=BATCH, batch_timeout=DELAY_S)
        self._what = folder, variant

    def setup(self, device: str) -> None:
        self._model = Model(*self._what)

    def decode_request(self, request: dict[str, list[int]]) -> list[int]:
        return request["input_ids"]

    def batch(self, inputs: list[list[int]]) -> NDArray[np.int64]:
        rows = np.full((len(inputs), LONGEST), PAD, dtype=np.int64)
        for row, ids in zip(rows, inputs, strict=True):
            row[: len(ids)] = ids
        return rows

    def predict(self, x: NDArray[np.int64]) -> list[list[float]]:
        logits: list[list[float]] = self._model.logits(x).tolist()
        return logits

    def unbatch(self, output: list[list[float]]) -> list[list[float]]:
        return output

    def encode_response(self, output: list[float]) -> dict[str, Any]:
        return {"logits": output}


if __name__ == "__main__":
    server = litserve.LitServer(Classifier(*sys.argv[1:3]), accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[3]), num_api_servers=1, generate_client_file=False,
        log_level="warning", access_log=False,
    )  # fmt: skip
