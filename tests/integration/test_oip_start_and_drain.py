"""What the Open Inference Protocol's callers see of a server that starts, and of one that is told to end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.clients.oip_stub import PATH, OipStub, infer_request, rows, told
from tests.fixtures.models import save_classifier
from tests.fixtures.ports import free_ports
from tests.fixtures.serve_with_held_lane import PROGRAM, held
from tests.fixtures.server import running_server
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
LONG = np.full((200, 60), 4, np.int64)
IMPATIENT = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50)]


@pytest.fixture
def port() -> int:
    """The server's address is known before it is ready."""
    return free_ports(1)[0]


class Requests:
    """What is sent on a stream, until it is closed."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[oip.ModelInferRequest | None] = queue.Queue()

    def __iter__(self) -> Iterator[oip.ModelInferRequest]:
        return iter(self._waiting.get, None)

    def put(self, request: oip.ModelInferRequest | None) -> None:
        self._waiting.put(request)


def refusal(call: Any, request: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=60)
    return caught.value.code()


def test_a_starting_server_is_live_and_not_ready_and_a_drained_one_answers_what_it_accepted(
    tmp_path: Path, port: int
) -> None:
    folder = save_classifier(tmp_path / "tiny")
    address = f"127.0.0.1:{port}"
    starting: dict[str, object] = {}

    def look() -> None:
        with grpc.insecure_channel(address, IMPATIENT) as channel:
            calls, health = OipStub(channel), health_pb2_grpc.HealthStub(channel)
            live = calls.ServerLive(oip.ServerLiveRequest(), wait_for_ready=True, timeout=60)
            starting["live"] = live.live
            starting["ready"] = calls.ServerReady(oip.ServerReadyRequest()).ready
            starting["model"] = calls.ModelReady(oip.ModelReadyRequest(name="tiny")).ready
            starting["health"] = health.Check(health_pb2.HealthCheckRequest(service=PATH)).status
            starting["infer"] = refusal(calls.ModelInfer, infer_request("tiny", input_ids=LONG[:1]))
            starting["metadata"] = refusal(calls.ModelMetadata, oip.ModelMetadataRequest(name="tiny"))

    looking = threading.Thread(target=look)
    looking.start()
    served = ("--variants", "fp32", "--threads", "1", "--meter", "none")
    # What it has accepted takes longer than usual on a busy machine.
    limits = ("--max-batch-sequences", "1", "--max-queue-ms", "600000", "--drain-seconds", "120")
    with (
        running_server(
            *("--model", str(folder), *served, *limits, "--port", str(port)),
            program=PROGRAM,
            extra={"HELD_LANE_FILE": str(tmp_path / "hold")},
        ) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        looking.join(timeout=60)
        unavailable = grpc.StatusCode.UNAVAILABLE
        assert starting == {
            "live": True,
            "ready": False,
            "model": False,
            "health": NOT_SERVING,
            "infer": unavailable,
            "metadata": unavailable,
        }
        calls, native = OipStub(channel), pb_grpc.InferenceStub(channel)
        assert calls.ServerReady(oip.ServerReadyRequest()).ready
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=PATH))
        assert next(watch).status == SERVING

        requests = Requests()
        with held(tmp_path / "hold"):
            stream = calls.ModelStreamInfer(iter(requests))
            for number in range(3):
                request = infer_request("tiny", input_ids=LONG)
                request.id = str(number)
                requests.put(request)
            asked = calls.ModelInfer.future(infer_request("tiny", input_ids=LONG))
            while native.GetEnergyReport(pb.GetEnergyReportRequest()).pending_receipts < 4:
                pass
            ending = threading.Thread(target=running.terminate)
            ending.start()
            assert next(watch).status == NOT_SERVING
            assert refusal(calls.ModelInfer, infer_request("tiny", input_ids=LONG[:1])) is unavailable
            assert not calls.ServerReady(oip.ServerReadyRequest(), timeout=60).ready

        for number in range(3):
            reply = next(stream)
            assert (reply.error_message, reply.infer_response.id) == ("", str(number))
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code() is unavailable
        assert "the server is shutting down" in str(caught.value.details())
        assert rows(asked.result()).shape == (200, 3)
        assert told(asked.result())["energy_unknown_reason"] == "no meter was asked for (--meter none)"
        requests.put(None)
        ending.join(timeout=60)
        assert running.process.returncode == 0
    assert "Traceback" not in running.error_text
