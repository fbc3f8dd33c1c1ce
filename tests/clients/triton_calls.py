"""What tests say to tritonclient and read from its results, in short."""

from __future__ import annotations

from typing import Any

import numpy as np
import tritonclient.grpc as triton

KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32", "object": "BYTES"}


def given(name: str, array: np.ndarray) -> triton.InferInput:
    made = triton.InferInput(name, array.shape, _DATATYPES[array.dtype.name])
    made.set_data_from_numpy(array)
    return made


def parameters(result: triton.InferResult) -> dict[str, Any]:
    found = result.get_response().parameters
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in found.items()}


def counts(statistics: Any) -> dict[str, int]:
    """Of one name's statistics, a reply's first: every count, sequences and batches among them."""
    found = statistics.model_stats[0]
    counted = {kind: getattr(found.inference_stats, kind).count for kind in KINDS}
    return counted | {"sequences": found.inference_count, "batches": found.execution_count}


def spent_ns(statistics: Any) -> dict[str, int]:
    """The same, but where the time went."""
    return {kind: getattr(statistics.model_stats[0].inference_stats, kind).ns for kind in KINDS}
