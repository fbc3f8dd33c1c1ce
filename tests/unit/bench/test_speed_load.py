"""The benchmark of speed: its client, and its children on their pipes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.bench.speed import load
from tests.bench.speed.child import running_child
from tests.bench.speed.figures import BenchError
from tests.bench.speed.load import closed_loop, one_by_one, settled_tokens
from wattserve_proto.v1 import inference_pb2 as pb

CHILD = """
import json, sys
from tests.bench.speed import load
from tests.bench.speed.child import reply

for line in sys.stdin:
    asked = json.loads(line)
    if asked["what"] == "end":
        sys.exit(7)
    print(reply(KeyError("no") if asked["what"] == "fail" else asked), flush=True)
"""


@contextmanager
def serving(predict: Callable[[bytes], bytes], report: pb.EnergyReport | None = None) -> Iterator[str]:
    """The address of a server that answers with what `predict` returns."""

    def handle(request: bytes, context: Any) -> bytes:
        try:
            return predict(request)
        except RuntimeError as error:
            context.abort(grpc.StatusCode.INTERNAL, str(error))
            raise

    def energy(request: bytes, context: Any) -> bytes:
        return b"" if report is None else report.SerializeToString()

    methods: dict[str, Any] = {
        "Predict": grpc.unary_unary_rpc_method_handler(handle),
        "GetEnergyReport": grpc.unary_unary_rpc_method_handler(energy),
    }
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("wattserve.v1.Inference", methods),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0)


def noting(seen: list[bytes]) -> Callable[[bytes], bytes]:
    def predict(request: bytes) -> bytes:
        seen.append(request)
        return b""

    return predict


def test_every_request_is_sent_once_and_no_more_at_a_time_than_asked() -> None:
    seen: list[bytes] = []
    lock, all_there = threading.Lock(), threading.Event()
    running = most = 0

    def predict(request: bytes) -> bytes:
        nonlocal running, most
        with lock:
            seen.append(request)
            running += 1
            most = max(most, running)
            if running == 3:
                all_there.set()
        all_there.wait(60)
        time.sleep(0.002)
        with lock:
            running -= 1
        return b""

    requests = [bytes([number]) for number in range(40)]
    with serving(predict) as address:
        served = closed_loop(address, requests, 3, 0.0)
    assert sorted(seen) == requests
    assert len(served.latencies) == 40
    assert most == 3


def test_the_set_is_sent_again_as_a_whole_until_the_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    clock = count(0.0, 0.02)  # each look at it takes so long
    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    with serving(noting(seen)) as address:
        closed_loop(address, [b"a", b"b", b"c"], 2, 0.2)
    assert len(seen) > 3
    assert seen.count(b"a") == seen.count(b"b") == seen.count(b"c")


def test_one_by_one_has_a_latency_for_each_and_the_first_is_sent_once_more_before() -> None:
    seen: list[bytes] = []
    with serving(noting(seen)) as address:
        assert len(one_by_one(address, [b"a", b"b"])) == 2
    assert seen == [b"a", b"a", b"b"]


def test_a_request_that_fails_stops_the_bench_with_what_the_server_said() -> None:
    def predict(request: bytes) -> bytes:
        raise RuntimeError("the model is broken")

    with serving(predict) as address, pytest.raises(BenchError, match="INTERNAL: the model is broken"):
        closed_loop(address, [b"a"] * 100, 8, 0.0)


def test_the_tokens_are_those_of_the_variant() -> None:
    report = pb.EnergyReport(
        active=[
            pb.VariantEnergy(variant="fp32", tokens=10, padded_tokens=16),
            pb.VariantEnergy(variant="bf16", tokens=20, padded_tokens=21),
        ]
    )
    with serving(lambda request: b"", report) as address:
        assert settled_tokens(address, "bf16") == (20, 21)
        assert settled_tokens(address, "int8") == (0, 0)


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "bench_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "bench_child"


def test_a_child_is_told_and_answers(child: str) -> None:
    with running_child("a child", child) as talking:
        assert talking.ask("sum", numbers=[1, 2]) == {"what": "sum", "numbers": [1, 2]}


def test_a_child_that_fails_says_why_and_can_be_asked_again(child: str) -> None:
    with running_child("a child", child) as talking:
        with pytest.raises(BenchError, match="a child failed when asked for 'fail': KeyError: 'no'"):
            talking.ask("fail")
        assert talking.ask("sum") == {"what": "sum"}


def test_a_child_that_ends_is_no_endless_wait(child: str) -> None:
    with (
        pytest.raises(BenchError, match="a child ended with code 7 when asked for 'end'"),
        running_child("a child", child) as talking,
    ):
        talking.ask("end")


def test_a_child_that_has_ended_already_is_no_broken_pipe(child: str) -> None:
    with running_child("a child", child) as talking:
        for _ in range(2):
            with pytest.raises(BenchError, match="a child ended with code 7"):
                talking.ask("end")
