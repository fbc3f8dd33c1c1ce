"""A server's account book, as its callers meet it: it agrees with the ledger, and outlives its server."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fixtures.account_books import alarms, checked
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client, NotFound, NotPossible, Overloaded, cli
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc
from wattserve_server.accounts.check import Head
from wattserve_tools import cli as wattserve

TEXTS = ["a good film", "a bad film", "what a film"]


def serving(place: Path) -> Sequence[str]:
    return (
        *("--model", "demo", "--variants", "fp32", "--threads", "1", "--meter", "simulated"),
        *("--account-book", str(place)),
    )


def asked(place: Path, question: str) -> list[int]:
    with sqlite3.connect(place) as connection:
        return [int(value or 0) for value in connection.execute(question).fetchone()]


def test_the_book_agrees_with_the_ledger_and_its_receipts_outlive_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "book.sqlite3"
    with running_server(*serving(place)) as server, Client(server.address) as client:
        receipts = [
            client.predict(TEXTS, request_id="order-7", wait_for_settled_energy=True) for _ in range(5)
        ]
        told = client.receipt(receipts[0].receipt.receipt_id)
        total_uj = sum(client.receipt(each.receipt.receipt_id).energy_uj or 0 for each in receipts)
        assert server.terminate() == 0
    drained = re.search(r"drained: \S+ ([\d.]+) J = active ([\d.]+) ", server.error_text)
    assert drained is not None
    requests, sequences, uj = asked(
        place, "SELECT SUM(requests), SUM(sequences), SUM(accelerator_uj) FROM hours"
    )
    assert (requests, sequences, uj) == (5, 15, total_uj)
    measured_uj, active_uj = asked(place, "SELECT SUM(measured_uj), SUM(active_uj) FROM account_hours")
    assert active_uj == total_uj
    assert (f"{measured_uj / 1e6:.3f}", f"{active_uj / 1e6:.3f}") == (drained[1], drained[2])
    logged = re.findall(r"receipt (\d+) of instance (\w+) has the hash (\w+)", server.error_text)
    seq, instance, digits = logged[-1]
    (chain,), (sums,) = checked(str(place), Head(instance, int(seq), bytes.fromhex(digits)))
    assert (chain.present, chain.wrong) == (5, [])
    assert (sums.left, sums.wrong) == (0, [])
    checks = ["audit", "check", "--account-book", str(place), "--head"]
    assert wattserve.main([*checks, f"{instance}:{seq}:{digits}"]) == 0
    out = capsys.readouterr().out
    assert "every receipt is as it was written" in out
    assert re.search(rf"OK +sums of {sums.server}: {sums.held} hourly sums? held .* 0 not", out)
    assert wattserve.main([*checks, f"{instance}:{seq}:{'0' * 64}"]) == 1
    assert "what was noted of receipt 5 differs" in capsys.readouterr().out
    changed = tmp_path / "changed.sqlite3"
    changed.write_bytes(place.read_bytes())
    with sqlite3.connect(changed) as connection:
        connection.execute("UPDATE hours SET accelerator_uj = accelerator_uj * 3")
        connection.execute("UPDATE minutes SET accelerator_uj = accelerator_uj * 3")
    connection.close()
    assert wattserve.main(["audit", "check", "--account-book", str(changed)]) == 1
    assert "not as its receipts: accelerator_uj" in capsys.readouterr().out
    assert wattserve.main(["usage", "--account-book", str(changed)]) == 0
    assert "run `wattserve audit check`" in " ".join(capsys.readouterr().out.split())
    assert wattserve.main([*checks, "what?"]) == 2
    assert "is not RUN:NUMBER:HASH" in capsys.readouterr().err

    with running_server(*serving(place)) as server, Client(server.address) as client:
        again = client.receipt(told.receipt_id)
        assert again == told
        assert list(client.watch_receipts([told.receipt_id])) == [told]
        assert [each.receipt_id for each in client.find_receipts("order-7").receipts] == [
            each.receipt.receipt_id for each in reversed(receipts)
        ]
        fresh = client.predict(TEXTS, request_id="order-7", wait_for_settled_energy=True)
        found = client.find_receipts("order-7").receipts
        assert found[0].receipt_id == fresh.receipt.receipt_id
        assert len({each.receipt_id for each in found}) == len(found) == 6
        with pytest.raises(NotFound, match="the account book, which keeps receipts for 86400 s"):
            client.receipt("0" * 12 + "-none")
        with pytest.raises(NotFound, match="holds it no longer"):
            client.find_receipts("order-8")
        assert cli.main(["--target", server.address, "receipt", told.receipt_id]) == 0
        assert told.receipt_id in capsys.readouterr().out


@pytest.mark.long
def test_a_tenant_is_told_its_own_usage_and_who_reads_all_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, keys = tmp_path / "book.sqlite3", tmp_path / "keys.toml"
    shown = {}
    for tenant, may in (("shop", "predict,read-own"), ("lab", "predict"), ("ops", "read-all")):
        assert wattserve.main(["keys", "add", "--file", str(keys), "--tenant", tenant, "--may", may]) == 0
        shown[tenant] = tmp_path / f"{tenant}.key"
        shown[tenant].write_text(capsys.readouterr().out)

    def bill(*arguments: str) -> dict[str, Any]:
        assert wattserve.main(["usage", *arguments, "--format", "json"]) == 0
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    with running_server(*serving(place), "--keys-file", str(keys)) as server:
        settled = {}
        for tenant in ("shop", "lab"):
            with Client(server.address, api_key_file=str(shown[tenant])) as client:
                answer = client.predict(TEXTS, wait_for_settled_energy=True).receipt
                settled[tenant] = (answer.energy_uj or 0) + (answer.idle_share_uj or 0)
        with Client(server.address, api_key_file=str(shown["ops"])) as ops:
            while sum(row.requests for row in ops.usage(0, 2**32).rows) < 2:  # it is written twice a second
                time.sleep(0.1)
            assert ops.usage(0, 2**32, by_tenant=True).of_all_tenants
        asks = ("--target", server.address, "--api-key-file")
        own = bill(*asks, str(shown["shop"]))
        assert [(row["tenant"], row["energy_uj"]) for row in own["rows"]] == [("shop", settled["shop"])]
        assert (own["nobodys_uj"], own["counters"]) == (None, [])
        of_all = bill(*asks, str(shown["ops"]))
        assert {row["tenant"]: row["energy_uj"] for row in of_all["rows"]} == settled
        assert of_all["measured_uj"] == of_all["total"]["energy_uj"] + sum(of_all["nobodys_uj"].values())
        assert wattserve.main(["usage", *asks, str(shown["lab"])]) == 2
        assert "read-own" in capsys.readouterr().err
    on_file = bill("--account-book", str(place))
    assert on_file["rows"] == of_all["rows"]


@pytest.mark.long
def test_a_budget_is_kept_and_a_request_says_what_it_may_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, keys = tmp_path / "book.sqlite3", tmp_path / "keys.toml"
    adding = ["keys", "add", "--file", str(keys), "--tenant"]
    budgets = ["--budget", "soft 0.000001 J/day", "--budget", "hard 8 J/month"]
    assert wattserve.main([*adding, "shop", *budgets]) == 0
    shop = capsys.readouterr().out.strip()
    assert wattserve.main([*adding, "lab"]) == 0
    lab = capsys.readouterr().out.strip()
    assert wattserve.main([*adding, "proxy", "--names", "shop,bank", *budgets]) == 0
    proxy = capsys.readouterr().out.strip()
    assert wattserve.main(["keys", "list", "--file", str(keys)]) == 0
    assert "hard 8 J/month" in capsys.readouterr().out
    with (
        pytest.raises(RuntimeError, match="give --account-book"),
        running_server("--model", "demo", "--keys-file", str(keys)),
    ):
        pass
    with running_server(*serving(place), "--keys-file", str(keys), "--trust-tenant-header") as server:
        with Client(server.address, api_key=lab) as client:
            reason, cost_uj = "LAW_UNKNOWN", 0
            while reason == "LAW_UNKNOWN":  # a calibration as short as the tests' has yet to learn
                cost_uj = client.predict(TEXTS, wait_for_settled_energy=True).receipt.energy_uj or 0
                with pytest.raises(NotPossible) as limited:
                    client.predict(TEXTS, max_energy_uj=1)
                reason = limited.value.reason
            assert reason == "ENERGY_LIMIT"
            assert "microjoules with fp32, more than 1" in str(limited.value)
            assert client.predict(TEXTS, max_energy_uj=1000 * cost_uj).receipt.receipt_id
        warnings = []
        with grpc.insecure_channel(server.address) as channel:
            ask = inference_pb2_grpc.InferenceStub(channel).Predict
            request = pb.PredictRequest(text=pb.TextInput(texts=TEXTS), wait_for_settled_energy=True)
            shown = (("authorization", f"Bearer {shop}"),)
            refused = None
            while refused is None:
                try:
                    _, call = ask.with_call(request, metadata=shown)
                    warnings += [value for name, value in call.trailing_metadata() if "budget" in name]
                except grpc.RpcError as error:
                    refused = error
            assert "of 8 J/month" in str(refused)
            behind = ("authorization", f"Bearer {proxy}")
            with pytest.raises(grpc.RpcError, match="tenant shop has used"):
                ask(request, metadata=(behind, ("x-wattserve-tenant", "shop")))
            ask(request, metadata=(behind, ("x-wattserve-tenant", "bank")))
        assert warnings
        assert "tenant shop has used" in warnings[0]
        with Client(server.address, api_key=shop) as client, pytest.raises(Overloaded) as told:
            client.predict(TEXTS, timeout_s=5)
        assert (told.value.reason, (told.value.retry_after_s or 0) > 0) == ("BUDGET_SPENT", True)
        with urllib.request.urlopen(server.metrics_url) as page:
            metrics = page.read().decode()
        assert 'wattserve_tenant_budget_joules{kind="hard",period="month",tenant="shop"} 8.0' in metrics
        assert 'refused_requests_total{limit="tenant_budget"} 3.0' in metrics
        assert server.terminate() == 0
    with (
        running_server(*serving(place), "--keys-file", str(keys)) as again,
        Client(again.address, api_key=shop) as client,
        pytest.raises(Overloaded, match="of 8 J/month"),
    ):
        # It is remembered. What was refused for its prediction is let in while no law can tell.
        deque(client.predict(TEXTS, wait_for_settled_energy=True) for _ in range(3))


def test_a_server_without_an_account_book_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with running_server("--model", "demo", "--variants", "fp32", "--meter", "none") as server:
        assert wattserve.main(["usage", "--target", server.address]) == 2
    assert "start it with --account-book" in capsys.readouterr().err


def test_a_server_that_could_not_write_its_book_to_the_end_says_so_and_ends_with_1(tmp_path: Path) -> None:
    place = tmp_path / "book.sqlite3"
    with running_server(*serving(place)) as server, Client(server.address) as client:
        place.rename(tmp_path / "moved.sqlite3")
        client.predict("a good film", wait_for_settled_energy=True)
        assert server.terminate() == 1
    assert "drained: " in server.error_text
    assert "its end could not be written; 1 receipt, and what" in server.error_text


@pytest.mark.long
def test_a_second_server_on_one_file_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "book.sqlite3"
    with (
        running_server(*serving(place)),
        pytest.raises(RuntimeError, match="another server writes to it"),
        running_server(*serving(place)),
    ):
        pass


@pytest.mark.long
def test_a_loaded_server_that_is_killed_ten_times(tmp_path: Path) -> None:
    place = tmp_path / "book.sqlite3"
    settled: list[str] = []
    for at in range(10):
        with running_server(*serving(place)) as server:
            done = threading.Event()
            loads = [threading.Thread(target=_load, args=(server, settled, done)) for _ in range(4)]
            for load in loads:
                load.start()
            done.wait(1.0 + 0.37 * at)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(timeout=60)
            done.set()
            for load in loads:
                load.join()
    found = checked(str(place))
    assert alarms(found) == []
    assert [each.left for each in found[1]] == [0]
    receipts, _ = asked(place, "SELECT COUNT(*), 0 FROM receipts")
    requests, uj = asked(place, "SELECT SUM(requests), SUM(accelerator_uj) FROM hours")
    active_uj, _ = asked(place, "SELECT SUM(active_uj), 0 FROM account_hours")
    assert receipts == requests > 100
    assert active_uj >= uj  # what was charged to receipts that were not final
    assert asked(place, "SELECT COUNT(*), 0 FROM breaks")[0] == 9  # the tenth nobody has seen yet


def _load(server: RunningServer, settled: list[str], done: threading.Event) -> None:
    with Client(server.address) as client:
        while not done.is_set():
            try:
                settled.append(client.predict(TEXTS).receipt.receipt_id)
            except Exception:
                return
