"""The benchmark of speed: its client, and its children on their pipes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.bench.speed import load
from tests.bench.speed.child import running_child
from tests.bench.speed.figures import BenchError
from tests.bench.speed.load import closed_loop, one_by_one, settled_tokens
from tests.fixtures.fake_server.scripted import Call, Refuse, ScriptedServer, asked
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


def named(*names: str) -> list[bytes]:
    return [pb.PredictRequest(request_id=name).SerializeToString() for name in names]


def seen(server: ScriptedServer) -> list[str]:
    return [request.request_id for request in asked(server, "Predict")]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


def test_every_request_is_sent_once_and_no_more_at_a_time_than_asked(server: ScriptedServer) -> None:
    lock, all_there = threading.Lock(), threading.Event()
    running = most = 0

    def predict(request: pb.PredictRequest, call: Call) -> bytes:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                all_there.set()
        all_there.wait(60)
        time.sleep(0.002)
        with lock:
            running -= 1
        return b""

    server.script["Predict"] = [predict]
    names = [f"{number:02}" for number in range(40)]
    served = closed_loop(server.target, named(*names), 3, 0.0)
    assert sorted(seen(server)) == names
    assert len(served.latencies) == 40
    assert most == 3


def test_the_set_is_sent_again_as_a_whole_until_the_time_has_passed(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(0.0, 0.02)  # each look at it takes so long
    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    closed_loop(server.target, named("a", "b", "c"), 2, 0.2)
    sent = seen(server)
    assert len(sent) > 3
    assert sent.count("a") == sent.count("b") == sent.count("c")


def test_one_by_one_has_a_latency_for_each_and_the_first_is_sent_once_more_before(
    server: ScriptedServer,
) -> None:
    assert len(one_by_one(server.target, named("a", "b"))) == 2
    assert seen(server) == ["a", "a", "b"]


def test_a_request_that_fails_stops_the_bench_with_what_the_server_said(server: ScriptedServer) -> None:
    server.script["Predict"] = [Refuse("INTERNAL", "the model is broken")]
    with pytest.raises(BenchError, match="INTERNAL: the model is broken"):
        closed_loop(server.target, named("a") * 100, 8, 0.0)


def test_the_tokens_are_those_of_the_variant(server: ScriptedServer) -> None:
    server.script["GetEnergyReport"] = [
        pb.EnergyReport(
            active=[
                pb.VariantEnergy(variant="fp32", tokens=10, padded_tokens=16),
                pb.VariantEnergy(variant="bf16", tokens=20, padded_tokens=21),
            ]
        )
    ]
    assert settled_tokens(server.target, "bf16") == (20, 21)
    assert settled_tokens(server.target, "int8") == (0, 0)


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
