"""Two devices on one host: each request pays its own part of it, and every joule is in one ledger."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

from tests.fixtures.models import save_classifier
from tests.fixtures.present import booked_uj, present
from tests.fixtures.server import running_server
from wattserve_client import Client, EnergyReport
from wattserve_loadgen.figures.account import growth_of

PROGRAM = ("-m", "tests.fixtures.serve_on_two_devices")
TEXTS = [[2, 4, 3], [2, 5, 6, 7, 3], [2, 8, 3]]


def test_a_host_is_billed_once_and_told_by_reports_metrics_and_loadgen(tmp_path: Path) -> None:
    with (
        running_server(
            "--model", str(save_classifier(tmp_path / "tiny")), "--variants", "fp32,fp32@cuda",
            "--meter", "simulated+estimate", "--calibration-seconds", "0.5", program=PROGRAM,
        ) as running,
        Client(running.address) as client,
    ):  # fmt: skip
        before = settled_report(client)
        receipts = [
            client.predict(TEXTS, variant=name, wait_for_settled_energy=True).receipt
            for name in 4 * ("fp32", "fp32@cuda")
        ]
        after = settled_report(client)
        info = client.server_info()
        with urllib.request.urlopen(running.metrics_url) as answer:
            metrics = answer.read().decode()
        assert running.terminate() == 0
    assert [each.device for each in (after, *after.other_devices)] == ["cpu", "cpu:0", "host"]
    assert [list(meter.shared_by) for meter in (info.meter, *info.other_meters)] == [[], [], ["cpu", "cpu:0"]]
    for report in (after, *after.other_devices):
        assert report.measured_uj == booked_uj(report)
        assert report.measured_uj == sum(present(part.measured_uj) for part in report.parts)
    for receipt in receipts:
        assert [part.name for part in receipt.parts] == ["accelerator", "host"]
        assert present(receipt.energy_uj) == sum(present(part.energy_uj) for part in receipt.parts)
    for name, device in (("fp32", "cpu"), ("fp32@cuda", "cpu:0")):
        grown = growth_of(before, after, device, name)
        mine = [present(receipt.energy_uj) for receipt in receipts if receipt.variant == name]
        assert (grown.active_uj, grown.sequences) == (sum(mine), len(TEXTS) * len(mine))
        assert grown.accounts_residual_uj == 0
        assert f'wattserve_energy_active_joules_total{{device="host",variant="{name}"}}' in metrics
    assert 'wattserve_device_busy_seconds_total{device="host"}' not in metrics


def settled_report(client: Client) -> EnergyReport:
    while (report := client.energy_report()).pending_receipts:
        time.sleep(0.05)
    return report
