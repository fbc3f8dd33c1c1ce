"""A real server is recorded: what its callers were told is what its readings give, to the microjoule."""

from __future__ import annotations

import csv
import re
import signal
import time
import urllib.request
from pathlib import Path
from subprocess import PIPE

import grpc
import pytest

from tests.fixtures.children import Child
from tests.fixtures.server import WATTSERVE, environment, running_server
from wattserve_client import Client
from wattserve_client.results import EnergyState, Receipt
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc
from wattserve_tools.cli import main

REQUESTS = 250
MOST_BYTES = 200  # of a request


def ask(client: Client, address: str) -> list[Receipt]:
    """Of one sequence and of several, some left before they are answered; settled receipts of the rest."""
    texts = [["a delightful film " * (1 + index % 5)] * (1 + index % 3) for index in range(REQUESTS)]
    answered = [answer.result().receipt.receipt_id for answer in client.predict_many(texts)]
    with grpc.insecure_channel(address) as channel:
        predict = pb_grpc.InferenceStub(channel).Predict
        for index in range(40):
            call = predict.future(pb.PredictRequest(text=pb.TextInput(texts=[f"left {index}"] * 8)))
            if index % 2:
                call.cancel()
            else:
                answered.append(call.result(timeout=60).receipt.receipt_id)
    return list(client.watch_receipts(answered))


def test_receipts_are_made_anew_from_the_recorded_readings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, table = tmp_path / "run.audit", tmp_path / "receipts.csv"
    settings = ("--variants", "fp32", "--threads", "1", "--meter", "simulated")
    with running_server(*settings, command=("audit", "record", str(path))) as server:
        with Client(server.address) as client:
            client.predict("the first one", wait_for_settled_energy=True)
            before = path.stat().st_size
            told = ask(client, server.address)
        page = urllib.request.urlopen(server.metrics_url, timeout=60).read().decode()
        assert "wattserve_audit_recording 1.0" in page
        assert server.terminate() == 0
        drained = re.search(r"drained: simulated ([\d.]+) J = active ([\d.]+)", server.error_text)
    assert main(["audit", "recompute", str(path), "--receipts", str(table)]) == 0
    text = capsys.readouterr().out
    accounts = dict(re.findall(r"^  (\S+) +([\d,.]+) J", text, re.MULTILINE))
    joules = {name: float(amount.replace(",", "")) for name, amount in accounts.items()}
    assert drained is not None
    assert joules["measured"] > float(drained[1]) - 0.001  # it was read on until the server had ended
    assert joules["active"] == pytest.approx(float(drained[2]), abs=0.001)
    with table.open(newline="") as file:
        rows = {row["receipt_id"]: row for row in csv.DictReader(file)}
    assert {receipt.state for receipt in told} <= {EnergyState.SETTLED, EnergyState.UNKNOWN}
    for receipt in told:
        row = rows[receipt.receipt_id]
        assert row["as_told"] == "yes"
        assert row["energy_uj"] == ("" if receipt.energy_uj is None else str(receipt.energy_uj))
    assert len(told) == REQUESTS + 20
    assert (path.stat().st_size - before) / len(told) <= MOST_BYTES


def test_a_start_that_is_interrupted_leaves_no_file(tmp_path: Path) -> None:
    """The same command may then be given again."""
    path = tmp_path / "run.audit"
    ports = ("--port", "0", "--metrics-port", "0", "--meter", "simulated")
    words = (*WATTSERVE, "audit", "record", str(path), *ports)
    with Child(words, stdout=PIPE, stderr=PIPE, env=environment()) as server:
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        said, complaints = server.communicate()
    assert (server.returncode, "ready" in said) == (130, False), complaints
    assert not path.exists()
