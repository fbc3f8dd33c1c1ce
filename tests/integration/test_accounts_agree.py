"""After a kill, cancellations, refusals of a budget and a database that was away: book, ledger, metrics,
`usage`, a recomputed audit and the sum of receipts agree to the microjoule. `make test-accounts` runs it."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest

from tests.fixtures.postgres import Postgres, running_postgres
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc
from wattserve_tools.cli import main

BINARIES = os.environ.get("WATTSERVE_POSTGRES", "")
TEXTS = ["a good film", "a bad film"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not BINARIES, reason="needs PostgreSQL: `make test-accounts` fetches it"),
]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory() as folder, running_postgres(Path(BINARIES), Path(folder)) as running:
        yield running


class Load:
    """Callers of two tenants, some of whom leave before they are answered, until they are told to stop."""

    def __init__(self, server: RunningServer, keys: dict[str, str]) -> None:
        self._server = server
        self._stop = threading.Event()
        self.refused = 0
        self.receipt_ids: list[str] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(key, leaves))
            for key in keys.values()
            for leaves in (False, True)
        ]

    def _ask(self, key: str, leaves: bool) -> None:
        shown = (("authorization", f"Bearer {key}"),)
        with grpc.insecure_channel(self._server.address) as channel:
            predict = pb_grpc.InferenceStub(channel).Predict
            number = 0
            while not self._stop.is_set():
                number += 1
                texts = TEXTS * (1 + number % 3)
                call = predict.future(pb.PredictRequest(text=pb.TextInput(texts=texts)), metadata=shown)
                if leaves and number % 2:
                    time.sleep(0.002 * (number % 5))
                    call.cancel()
                    continue
                try:
                    self.receipt_ids.append(call.result(timeout=60).receipt.receipt_id)
                except grpc.FutureCancelledError:
                    return
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        return  # it was killed
                    self.refused += 1
                    time.sleep(0.01)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def metrics(server: RunningServer) -> dict[str, float]:
    """Sums over labels."""
    with urllib.request.urlopen(server.metrics_url) as page:
        lines = re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", page.read().decode(), re.MULTILINE)
    sums: dict[str, float] = {}
    for name, value in lines:
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def until(server: RunningServer, name: str, value: float) -> None:
    while metrics(server)[name] != value:
        time.sleep(0.05)


def outage(postgres: Postgres, server: RunningServer) -> None:
    """Under load; returns once all that had waited is in the book."""
    postgres.kill()
    until(server, "wattserve_account_book_up", 0)
    time.sleep(0.5)
    postgres.start()
    until(server, "wattserve_account_book_up", 1)


def in_book(url: str) -> dict[str, tuple[str, pb.Receipt]]:
    """Tenant and receipt, by receipt id."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT name, body FROM receipts JOIN tenants ON tenants.id = receipts.tenant"
        ).fetchall()
    receipts = [(tenant, pb.Receipt.FromString(bytes(body))) for tenant, body in rows]
    assert len({receipt.receipt_id for _, receipt in receipts}) == len(receipts)
    return {receipt.receipt_id: (tenant, receipt) for tenant, receipt in receipts}


def holds_one_that_was_left(receipts: dict[str, tuple[str, pb.Receipt]]) -> bool:
    """While it ran: one that was left earlier has no receipt."""
    return any(receipt.outcome == pb.OUTCOME_CANCELLED for _, receipt in receipts.values())


def recomputed(audit: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Energy and idle share by receipt id, in microjoules; each as it was told."""
    assert main(["audit", "recompute", str(audit), "--receipts", str(table)]) == 0
    capsys.readouterr()
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["as_told"] for row in rows} <= {"yes", ""}
    return {row["receipt_id"]: (row["energy_uj"], row["idle_share_uj"]) for row in rows if row["as_told"]}


def told(receipt: pb.Receipt) -> tuple[str, str]:
    amounts = [
        str(getattr(receipt, name)) if receipt.HasField(name) else ""
        for name in ("energy_uj", "idle_share_uj")
    ]
    return amounts[0], amounts[1]


def test_all_that_anybody_is_told_agrees(
    postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, keys_file = postgres.new_database(), tmp_path / "keys.toml"
    keys = {}
    for tenant, *budget in (("lab",), ("shop", "--budget", "hard 20 J/month")):
        assert main(["keys", "add", "--file", str(keys_file), "--tenant", tenant, *budget]) == 0
        keys[tenant] = capsys.readouterr().out.strip()

    @contextmanager
    def serving(audit: Path) -> Iterator[RunningServer]:
        with running_server(
            *("--variants", "fp32", "--threads", "1", "--meter", "simulated", "--keys-file", str(keys_file)),
            *("--account-book", url, "--account-name", "one", "--idle-policy", "by-time"),
            command=("audit", "record", str(audit)),
        ) as server:
            yield server

    first, second = tmp_path / "first.audit", tmp_path / "second.audit"
    with serving(first) as server, Load(server, keys) as load:
        outage(postgres, server)
        while not (load.refused and len(load.receipt_ids) > 100 and holds_one_that_was_left(in_book(url))):
            time.sleep(0.1)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(timeout=60)
    before_kill = in_book(url)
    assert len(before_kill) > 50

    with serving(second) as server:
        with Load(server, keys) as load:
            while len(load.receipt_ids) < 50:
                time.sleep(0.05)
            outage(postgres, server)
        with Client(server.address, api_key=keys["lab"]) as client:
            client.predict(TEXTS, wait_for_settled_energy=True)
        until(server, "wattserve_pending_receipts", 0)
        shown = metrics(server)
        assert server.terminate() == 0
    drained = re.search(r"drained: \S+ ([\d.]+) J = active ([\d.]+) ", server.error_text)
    assert drained is not None

    receipts = in_book(url)
    own = {each: receipt for each, receipt in receipts.items() if each not in before_kill}
    assert set(load.receipt_ids) <= set(own)
    active_uj = sum(receipt.energy_uj for _, receipt in own.values())
    assert round(shown["wattserve_energy_active_joules_total"] * 1e6) == active_uj
    assert drained[2] == f"{active_uj / 1e6:.3f}"

    for audit, of_run in ((first, before_kill), (second, own)):
        again = recomputed(audit, tmp_path / f"{audit.name}.csv", capsys)
        both = again.keys() & of_run.keys()
        assert {each: told(of_run[each][1]) for each in both} == {each: again[each] for each in both}
        assert both == of_run.keys() if audit is second else len(both) > 50

    assert main(["usage", "--account-book", url, "--by", "tenant", "--format", "json"]) == 0
    bill: dict[str, Any] = json.loads(capsys.readouterr().out)
    sums_uj: dict[str, int] = {}
    for tenant, receipt in receipts.values():
        sums_uj[tenant] = sums_uj.get(tenant, 0) + receipt.energy_uj + receipt.idle_share_uj
    assert {row["tenant"]: row["energy_uj"] for row in bill["rows"]} == sums_uj
    assert bill["total"]["requests"] == len(receipts)
    assert bill["measured_uj"] == bill["total"]["energy_uj"] + sum(bill["nobodys_uj"].values())
    assert len(bill["breaks"]) == 1
    assert main(["audit", "check", "--account-book", url]) == 0
    assert "every receipt is as it was written" in capsys.readouterr().out
