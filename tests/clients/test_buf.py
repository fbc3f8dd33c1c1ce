"""A client that knows nothing of us but the address: buf reads the services by reflection and calls them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.rpc import error_details_pb2

from tests.fixtures.server import RunningServer

BUF = Path(sys.executable).with_name("buf")
SERVICES = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
    "wattserve.v1.Inference",
]
RAW_IDS = "AgAAAAAAAAAEAAAAAAAAAAYAAAAAAAAAAwAAAAAAAAA="  # 2, 4, 6, 3 as int64

pytestmark = pytest.mark.skipif(
    not BUF.exists(), reason=f"{BUF} is not installed (buf-bin, a dev dependency)"
)


def curl(server: RunningServer, path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BUF), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments]
    return subprocess.run(
        [*command, f"http://{server.address}{path}"], capture_output=True, text=True, timeout=60
    )


def call(server: RunningServer, method: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    ended = curl(server, f"/{method}", "--data", json.dumps(data or {}))
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


def test_every_service_is_listed(server: RunningServer) -> None:
    ended = curl(server, "", "--list-services")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == SERVICES


def test_the_methods_of_every_service_are_listed(server: RunningServer) -> None:
    ended = curl(server, "", "--list-methods")
    assert ended.returncode == 0, ended.stderr
    methods = ended.stdout.split()
    assert {method.rpartition("/")[0] for method in methods} == set(SERVICES)
    assert "inference.GRPCInferenceService/ModelStreamInfer" in methods
    assert len([method for method in methods if method.startswith("inference.")]) == 20


def test_a_method_of_each_service_is_called_by_its_reflected_types(server: RunningServer) -> None:
    assert call(server, "grpc.health.v1.Health/Check") == {"status": "SERVING"}
    info = call(server, "wattserve.v1.Inference/GetServerInfo")
    assert (info["modelName"], info["labels"]) == ("demo", ["negative", "neutral", "positive"])
    tensor = {"name": "input_ids", "datatype": "INT64", "shape": [1, 4]}
    request = {"model_name": "demo@bf16", "inputs": [tensor], "raw_input_contents": [RAW_IDS]}
    reply = call(server, "inference.GRPCInferenceService/ModelInfer", request)
    assert reply["modelName"] == "demo@bf16"
    assert reply["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": ["1", "3"]}]
    assert reply["parameters"]["tokens"] == {"int64Param": "4"}
    typed = {**request, "inputs": [{**tensor, "contents": {"int64_contents": [2, 4, 6, 3]}}]}
    del typed["raw_input_contents"]
    again = call(server, "inference.GRPCInferenceService/ModelInfer", typed)
    assert again["rawOutputContents"] == reply["rawOutputContents"]


def test_a_bidirectional_method_is_called(server: RunningServer) -> None:
    request = {"model_name": "other", "id": "mine"}
    ended = curl(
        server, "/inference.GRPCInferenceService/ModelStreamInfer", "--data", 2 * json.dumps(request)
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("[NOT_FOUND] model_name: unknown model 'other'") == 2


def test_an_error_comes_with_its_details(server: RunningServer) -> None:
    ended = curl(server, "/inference.GRPCInferenceService/ModelMetadata", "--data", '{"name": "other"}')
    assert ended.returncode != 0
    error = json.loads(ended.stderr)
    assert error["code"] == "not_found"
    assert error["message"].startswith("name: unknown model 'other'")
    kinds = {detail["type"].rpartition(".")[2]: detail for detail in error["details"]}
    assert set(kinds) == {"ErrorInfo", "BadRequest"}
    info = error_details_pb2.ErrorInfo.FromString(base64.b64decode(kinds["ErrorInfo"]["value"] + "=="))
    assert (info.reason, info.domain) == ("NOT_FOUND", "wattserve")
