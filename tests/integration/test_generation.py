"""A real server of a language model: answers that end, are left, run out of time and lose their places add up
to the ledger; and Triton's own client streams from it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client
from wattserve_proto.v1 import inference_pb2 as pb

pytestmark = pytest.mark.long

SERVICE = "/wattserve.v1.Inference"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Its cache has room for few at a time, so that some lose their places, and others wait for long."""
    with running_server(
        *("--model", "random:llama-tiny", "--variants", "fp32,bf16", "--threads", "1"),
        *("--meter", "simulated", "--calibration-seconds", "0", "--kv-cache-bytes", "1MB"),
        *("--max-queue-ms", "100000"),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as opened:
        yield opened


def generate(channel: grpc.Channel, **given: Any) -> Any:
    method: Any = channel.unary_stream(
        f"{SERVICE}/Generate", pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString
    )
    timeout = given.pop("timeout", 120)
    return method(pb.GenerateRequest(**given), timeout=timeout)


def receipts_of(channel: grpc.Channel, request_id: str) -> list[Any]:
    """Settled; none where nothing of it ran."""
    method: Any = channel.unary_unary(
        f"{SERVICE}/FindReceipts",
        pb.FindReceiptsRequest.SerializeToString,
        pb.FindReceiptsResponse.FromString,
    )
    asked = pb.FindReceiptsRequest(request_id=request_id, wait_until_settled=True)
    try:
        return list(method(asked, timeout=120).receipts)
    except grpc.RpcError:
        return []


def one(channel: grpc.Channel, number: int) -> str:
    """A generation that ends, is left after some tokens, or has too little time; its request's id."""
    rng = np.random.default_rng(number)
    prompt = pb.TokenIds(ids=rng.integers(5, 250, rng.integers(4, 150)).tolist())
    kind = number % 4
    call = generate(
        channel,
        request_id=f"job {number}",
        tokens=prompt,
        variant="bf16" if number % 3 == 0 else "fp32",
        max_new_tokens=150,
        ignore_eos=True,
        timeout=0.25 if kind == 3 else 120,
    )
    try:
        for count, _ in enumerate(call):
            if kind == 2 and count == 5:
                call.cancel()
                break
    except grpc.RpcError as error:
        if kind < 2:
            raise AssertionError("it had all the time it wanted") from error
    return f"job {number}"


def test_what_ends_is_left_or_runs_out_of_time_adds_up_to_the_ledger(
    server: RunningServer, channel: grpc.Channel
) -> None:
    with ThreadPoolExecutor(12) as callers:
        ids = list(callers.map(lambda number: one(channel, number), range(24)))
    settled = [receipt for each in ids for receipt in receipts_of(channel, each)]
    overheads = [each.generation.overhead_energy_uj for each in settled]
    with Client(server.address) as client:
        report = client.energy_report()
    assert sum(each.active_uj or 0 for each in report.active) == sum(receipt.energy_uj for receipt in settled)
    assert (report.warmup_uj or 0) > sum(overheads) > 0
    outcomes = {receipt.outcome for receipt in settled}
    assert {pb.OUTCOME_COMPLETED, pb.OUTCOME_CANCELLED} <= outcomes
    for receipt in settled:
        of_lines = sum(line.energy_uj for line in receipt.lines if line.role != pb.LINE_ROLE_RECOMPUTED)
        assert receipt.energy_uj == of_lines


def test_tritons_own_client_streams_a_text_and_its_end(server: RunningServer) -> None:
    arrived: list[Any] = []
    ended = threading.Event()

    def take(result: Any, error: Any) -> None:
        arrived.append(error or result)
        is_final = error or result.get_response().parameters["triton_final_response"].bool_param
        if is_final:
            ended.set()

    def tensor(name: str, values: list[Any], kind: str) -> Any:
        made = triton.InferInput(name, [1], kind)
        made.set_data_from_numpy(np.array(values, dtype=object if kind == "BYTES" else bool))
        return made

    with triton.InferenceServerClient(server.address) as client:
        assert client.get_model_config("llama-tiny").config.model_transaction_policy.decoupled
        client.start_stream(take)
        client.async_stream_infer(
            "llama-tiny",
            [
                tensor("text_input", [b"In the beginning"], "BYTES"),
                tensor("stream", [True], "BOOL"),
                tensor("sampling_parameters", [json.dumps({"max_tokens": 12, "temperature": 0})], "BYTES"),
            ],
        )
        assert ended.wait(120)
        client.stop_stream()
    assert not any(isinstance(each, Exception) for each in arrived), arrived
    assert all(each.as_numpy("text_output") is not None for each in arrived[:-1])
