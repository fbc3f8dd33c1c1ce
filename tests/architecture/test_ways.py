"""The way of a request through the house: how many of the server's files one `Predict` executes."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest

import wattserve_server
from tests.fixtures.models import save_classifier
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1.inference_pb2_grpc import InferenceStub
from wattserve_server.app import serve
from wattserve_server.config import ServerConfig

MOST_FILES = 23

PREDICTIONS = 30
"""So many at the most. A file that only some of them execute belongs to something else that the event loop
did meanwhile: on a busy machine it has time for that in one after the other."""

OF_REQUESTS = ("MainThread", "wattserve-runner", "wattserve-tokenizer")
"""The threads that requests pass; the others read sensors and serve pages, requests or not."""

HOUSE = f"{Path(wattserve_server.__file__).parent}{os.sep}"
OF_THE_FRONT = ("wattserve_server.http", "starlette", "uvicorn")
READY = re.compile(r"wattserve ready: gRPC (\S+),")


class Trace:
    """The files of the server that execute anything while `watching`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._is_on = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._is_on:
            self.files.add(frame.f_code.co_filename)
        elif not threading.current_thread().name.startswith(OF_REQUESTS):
            sys.setprofile(None)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.files = set()
        self._is_on = True
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)
            self._is_on = False

    @property
    def of_the_server(self) -> set[str]:
        return {file.removeprefix(HOUSE) for file in self.files if file.startswith(HOUSE)}


async def test_a_prediction_executes_few_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ServerConfig(
        model=str(save_classifier(tmp_path / "tiny")),
        variants="fp32",
        device="cpu",
        port=0,
        metrics_port=0,
        meter="simulated",
        no_verify=True,
        calibration_seconds=0.0,
        max_batch_sequences=2,
    )
    trace = Trace()
    threading.setprofile(trace)  # of the threads that start from now on
    serving = asyncio.create_task(serve(config))
    try:
        address = await started(serving, capsys)
        request = pb.PredictRequest(text=pb.TextInput(texts=["a very good film"]))
        files: set[str] = set()
        async with grpc.aio.insecure_channel(address) as channel:
            stub = InferenceStub(channel)
            predict = stub.Predict
            response = await predict(request)
            for number in range(PREDICTIONS):
                # Else its energy is shared meanwhile, where a prediction takes as long as a tick.
                settled = pb.GetReceiptRequest(
                    receipt_id=response.receipt.receipt_id, wait_until_settled=True
                )
                await stub.GetReceipt(settled)
                with trace.watching():
                    response = await predict(request)
                assert response.receipt.lines[0].tokens == 6
                files = files & trace.of_the_server if number else trace.of_the_server
                if len(files) <= MOST_FILES:
                    break
    finally:
        threading.setprofile(None)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
    assert "engine/engine.py" in files
    assert len(files) <= MOST_FILES, "\n".join(sorted(files))


async def started(serving: asyncio.Task[int], capsys: pytest.CaptureFixture[str]) -> str:
    """The address of a server that says that it is ready."""
    while not serving.done():
        if matches := READY.search(capsys.readouterr().out):
            return matches[1]
        await asyncio.sleep(0.05)
    await serving
    raise AssertionError("the server ended before it was ready")


def test_a_server_without_the_http_front_imports_none_of_it() -> None:
    """What a file imports when it is imported itself: `app` imports the front in a function."""
    for file in Path(HOUSE).rglob("*.py"):
        if Path(HOUSE, "http") in file.parents:
            continue
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", ""), *(alias.name for alias in node.names)]
                assert not any(name.startswith(OF_THE_FRONT) for name in names), file
