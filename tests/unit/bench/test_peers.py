"""The bench beside other servers: its client on both wires, what turns say, how servers are held and end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests import ROOT
from tests.bench.peers import __main__ as command
from tests.bench.peers.asking import METHOD, Json, OpenInference, closed_loop
from tests.bench.peers.figures import Cell, Turn, difference, record, table
from tests.bench.peers.servers import PEERS, Model, Running, running_peer
from tests.bench.peers.settings import LONGEST
from tests.bench.speed import paths
from tests.bench.speed.figures import BenchError
from tests.bench.speed.quiet import ticks_below
from wattserve_proto.oip import open_inference_pb2 as oip

SEQUENCES = [[7], [8, 9], [10, 11, 12], [13, 14], [15]]


def turn(rate: float, count: int = 10, **more: Any) -> Turn:
    values = {"server_ms": 2.0, "client_ms": 0.25, "off": 1e-6, "foreign_cores": 0.0, **more}
    return Turn(rate, [0.1] * count, **values)


@pytest.fixture
def open_inference() -> Iterator[int]:
    """A server whose logits are the sum of the ids and how many it was sent; its port."""

    def infer(request: oip.ModelInferRequest, _: grpc.ServicerContext) -> oip.ModelInferResponse:
        ids = np.frombuffer(request.raw_input_contents[0], "<i8")
        logits = np.array([ids.sum(), len(ids)], dtype="<f4")
        return oip.ModelInferResponse(raw_output_contents=[logits.tobytes()])

    service, _, name = METHOD[1:].partition("/")
    handler = grpc.unary_unary_rpc_method_handler(
        infer, oip.ModelInferRequest.FromString, oip.ModelInferResponse.SerializeToString
    )
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {name: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)


@pytest.fixture
def json_server() -> Iterator[int]:
    """The same over HTTP, with connections that stay open; an id of 666 is refused."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            ids = json.loads(await reader.readexactly(size))["input_ids"]
            body = json.dumps({"logits": [sum(ids), len(ids)]}).encode()
            status = b"500 Broken" if 666 in ids else b"200 OK"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    server.close()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


@pytest.mark.parametrize(("is_padded", "sent"), [(False, [1, 2, 3, 2, 1]), (True, [LONGEST] * 5)])
def test_everybody_is_asked_everything_over_grpc(
    open_inference: int, is_padded: bool, sent: list[int]
) -> None:
    wire = OpenInference(is_padded)
    taken = closed_loop(wire, open_inference, [wire.request(ids) for ids in SEQUENCES], 3, 0.0)
    assert len(taken.latencies) == len(SEQUENCES)
    assert [wire.logits(answer).tolist() for answer in taken.answers] == [
        [sum(ids), count] for ids, count in zip(SEQUENCES, sent, strict=True)
    ]


def test_everybody_is_asked_everything_over_http(json_server: int) -> None:
    wire = Json()
    taken = closed_loop(wire, json_server, [wire.request(ids) for ids in SEQUENCES], 3, 0.0)
    assert len(taken.latencies) == len(SEQUENCES)
    assert [wire.logits(answer).tolist() for answer in taken.answers] == [
        [sum(ids), len(ids)] for ids in SEQUENCES
    ]


def test_a_refusal_and_a_closed_port_end_the_turn_in_a_sentence(json_server: int) -> None:
    wire = Json()
    with pytest.raises(BenchError, match=r"a request failed: HTTP/1\.1 500 Broken"):
        closed_loop(wire, json_server, [wire.request([666])], 1, 0.0)
    with pytest.raises(BenchError, match="no connection to port 1:"):
        closed_loop(wire, 1, [wire.request([5])], 1, 0.0)


def test_typed_contents_are_read_as_raw_ones() -> None:
    output = oip.ModelInferResponse.InferOutputTensor(
        contents=oip.InferTensorContents(fp32_contents=[1.5, 2])
    )
    answer = oip.ModelInferResponse(outputs=[output]).SerializeToString()
    assert OpenInference(True).logits(answer).tolist() == [1.5, 2.0]


def test_a_logit_that_differs_or_is_no_number_is_seen() -> None:
    plain = [[1.0, -4.0], [2.0, 3.0]]
    answers = [np.array(row, dtype=np.float32) for row in plain]
    assert difference(answers, plain) == 0
    answers[1][0] += 0.5
    assert difference(answers, plain) == pytest.approx(0.125)
    answers[0][1] = np.nan
    assert difference(answers, plain) == float("inf")


def test_the_table_compares_turns_of_the_same_round() -> None:
    turns = {"wattserve": [turn(100, 400), turn(60, 400)], "litserve": [turn(50), turn(20, off=2e-4)]}
    cell = Cell("tiny", "fp32", turns, {"mlserver": "mlserver is not installed"})
    page = table([cell], "wattserve")
    assert (
        "| tiny | fp32 | wattserve | 80 (60 to 100) |  | 100.0 | 100.0 | 2.00 | 0.25 | 1.0e-06 | 0.00 |"
        in page
    )
    assert "| litserve | 35.0 (20.0 to 50.0) | 2.50 (2.00 to 3.00) | 100.0 | too few |" in page
    assert "| 2.0e-04 |" in page
    assert page.endswith("\n- tiny fp32: mlserver is not installed\n")
    assert record([cell])[0]["turns"]["litserve"][1]["rate"] == 20


def test_a_server_is_held_still_with_all_below_it() -> None:
    script = (
        "import subprocess, time; subprocess.Popen(['sleep', '99']); print('up', flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        running = Running("it", Json(), 1, process.pid)
        below = list(ticks_below(process.pid))
        try:
            assert len(below) == 2
            with running.awake():
                assert all(state(pid) != "T" for pid in below)
            os.waitpid(process.pid, os.WUNTRACED)  # until it has stopped
            assert state(process.pid) == "T"
        finally:
            running.signal(signal.SIGKILL)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path) -> None:
    model = Model("demo", "demo", tmp_path)
    with (
        pytest.raises(BenchError, match=r"litserve is not installed in .*: make bench-peers installs it"),
        running_peer(PEERS[0], tmp_path, model, "fp32", [5]),
    ):
        pass


def test_a_peer_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    python = tmp_path / "litserve" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\ncase "$1" in -c) exec {sys.executable} "$@";; esac\necho no room >&2; exit 3\n'
    )
    python.chmod(0o755)
    model = Model("demo", "demo", tmp_path)
    with (
        pytest.raises(BenchError, match=r"litserve: it ended with code 3\nIts last words: no room"),
        running_peer(PEERS[0], tmp_path, model, "fp32", [5]),
    ):
        pass


def test_arguments_that_cannot_be_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--peers", "kserve"], ["--models", "gpt"], ["--rounds", "0"], ["--sequences", "3"]):
        with pytest.raises(SystemExit):
            command.parsed(words)
    assert "unknown: 'kserve'; known: litserve, pytriton, mlserver" in capsys.readouterr().err


def test_each_peer_has_its_requirements_and_torch_comes_by_one_pin() -> None:
    folder = ROOT / "tests" / "bench" / "peers" / "requirements"
    assert {path.stem for path in folder.glob("*.txt")} == {peer.name for peer in PEERS} | {"constraints"}
    pinned = (folder / "constraints.txt").read_text().splitlines()
    assert [line for line in pinned if line.startswith("torch==")] == ["torch==2.13.0"]


def test_the_instructions_are_those_that_onednn_names() -> None:
    said = (
        "onednn_verbose,v1,info,oneDNN v3.10.2\n"
        "onednn_verbose,v1,info,cpu,isa:Intel AVX2\n"
        "onednn_verbose,v1,primitive,exec,cpu\n"
        '{"torch\'s instructions": "AVX512"}\n'
    )
    assert paths.parsed(said) == {"oneDNN's instructions": "Intel AVX2", "torch's instructions": "AVX512"}
