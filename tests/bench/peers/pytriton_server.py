"""PyTriton, in its own environment: `pytriton_server.py FOLDER VARIANT GRPC_PORT HTTP_PORT METRICS_PORT`.

Open Inference Protocol over gRPC, which Triton itself speaks. Its backend wants numpy 1: by numpy 2 answers
are empty.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from tests.bench.peers.padded import Model
from tests.bench.peers.settings import BATCH, DELAY_S, LONGEST, MODEL_NAME


def main(folder: str, variant: str, grpc_port: str, http_port: str, metrics_port: str) -> None:
    model = Model(folder, variant)

    @batch  # type: ignore[untyped-decorator]  # pytriton lives in another environment
    def infer(input_ids: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
        return {"logits": model.logits(input_ids)}

    ports = TritonConfig(
        grpc_address="127.0.0.1", grpc_port=int(grpc_port),
        http_address="127.0.0.1", http_port=int(http_port), metrics_port=int(metrics_port),
    )  # fmt: skip
    with Triton(config=ports) as triton:
        triton.bind(
            model_name=MODEL_NAME,
            infer_func=infer,
            inputs=[Tensor(name="input_ids", dtype=np.int64, shape=(LONGEST,))],
            outputs=[Tensor(name="logits", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(
                max_batch_size=BATCH,
                batcher=DynamicBatcher(max_queue_delay_microseconds=int(DELAY_S * 1e6)),
            ),
        )
        triton.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
