"""One server, two devices: each variant on its own, with its own meter and ledger."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fixtures.models import save_classifier
from tests.fixtures.present import booked_uj, present
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client, EnergyReport

PROGRAM = ("-m", "tests.fixtures.serve_on_two_devices")
TEXTS = [[2, 4, 3], [2, 5, 6, 7, 3], [2, 8, 3]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    with running_server(
        "--model", str(folder), "--variants", "fp32,int8-simulated,fp32@cuda", "--meter", "simulated",
        "--calibration-seconds", "0.5", program=PROGRAM,
    ) as running:  # fmt: skip
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def settled_report(client: Client) -> EnergyReport:
    """Once nothing of earlier tests is pending."""
    while (report := client.energy_report()).pending_receipts:
        time.sleep(0.05)
    return report


def test_each_receipt_names_the_device_that_ran_it(client: Client) -> None:
    devices = {
        name: client.predict(TEXTS, variant=name, wait_for_settled_energy=True).receipt.device
        for name in ("fp32", "fp32@cuda", "int8-simulated")
    }
    assert devices == {"fp32": "cpu", "fp32@cuda": "cpu:0", "int8-simulated": "cpu"}


def test_both_ledgers_close_and_hold_only_their_own_variants(client: Client) -> None:
    for name in ("fp32", "fp32@cuda"):
        client.predict(TEXTS, variant=name, wait_for_settled_energy=True)
    first = client.energy_report()
    (second,) = first.other_devices
    assert (first.device, second.device) == ("cpu", "cpu:0")
    assert [each.variant for each in first.active] == ["fp32", "int8-simulated"]
    assert [each.variant for each in second.active] == ["fp32@cuda"]
    for report in (first, second):
        assert report.measured_uj == booked_uj(report)
        assert present(report.active_uj) > 0


def test_the_same_precision_answers_alike_on_both(client: Client) -> None:
    here, there = (client.predict(TEXTS, variant=name).output for name in ("fp32", "fp32@cuda"))
    assert here == pytest.approx(there, abs=1e-5)


def test_every_device_has_its_meter_in_the_servers_description_and_metrics(
    client: Client, server: RunningServer
) -> None:
    info = client.server_info()
    assert info.meter.device == "cpu"
    assert [meter.device for meter in info.other_meters] == ["cpu:0"]
    with urllib.request.urlopen(server.metrics_url) as answer:
        lines = answer.read().decode().splitlines()
    up = [line for line in lines if line.startswith("wattserve_meter_up{")]
    assert up == ['wattserve_meter_up{device="cpu"} 1.0', 'wattserve_meter_up{device="cpu:0"} 1.0']


def test_many_requests_to_both_at_once_are_all_charged_to_their_own(client: Client) -> None:
    before = settled_report(client)
    names = [("fp32", "fp32@cuda")[index % 2] for index in range(60)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda name: client.predict(TEXTS, variant=name, wait_for_settled_energy=True), names)
        )
    after = client.energy_report()
    for device, old, new in (
        ("cpu", before, after),
        ("cpu:0", before.other_devices[0], after.other_devices[0]),
    ):
        settled = sum(present(each.receipt.energy_uj) for each in answers if each.receipt.device == device)
        assert present(new.active_uj) - present(old.active_uj) == settled
