"""`--device cpu:0,cpu:1`: one variant on two lanes of one server, with one address and one receipt book, of
texts, images, and a language model."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.language_models import save_language_model
from tests.fixtures.models import IMAGE_SHAPE, save_classifier, save_vit
from tests.fixtures.present import booked_uj, present
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client, EnergyReport, LineRole, Receipt, Unavailable
from wattserve_loadgen.figures.account import growth_of

PROGRAM = ("-m", "tests.fixtures.serve_with_failing_lane")
TEXTS = [[2, 4, 3], [2, 5, 6, 7, 3], [2, 8, 3]]
LANES = {"cpu:0", "cpu:1"}
IMAGES = np.zeros((len(TEXTS), *IMAGE_SHAPE), np.float32)

Ask = Callable[[Client], Receipt]


def classified(client: Client) -> Receipt:
    return client.predict(TEXTS, variant="fp32", wait_for_settled_energy=True).receipt


def seen(client: Client) -> Receipt:
    return client.predict_images(IMAGES, wait_for_settled_energy=True).receipt


def scored(client: Client) -> Receipt:
    return client.score(TEXTS, wait_for_settled_energy=True).receipt


def generated(client: Client) -> Receipt:
    answer = client.generate(TEXTS[1], max_new_tokens=12, ignore_eos=True, wait_for_settled_energy=True)
    assert len(answer.token_ids) == 12
    return answer.receipt


def settled_report(client: Client) -> EnergyReport:
    while (report := client.energy_report()).pending_receipts:
        time.sleep(0.05)
    return report


def metrics(server: RunningServer) -> dict[str, float]:
    with urllib.request.urlopen(server.metrics_url) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def receipt_or_error(client: Client, ask: Ask) -> Receipt | Unavailable:
    try:
        return ask(client)
    except Unavailable as error:
        return error


def ask_until_both_have_worked(client: Client, ask: Ask) -> list[Receipt | Unavailable]:
    """By eight callers at once, so that one lane is busy when the next request comes."""
    told: list[Receipt | Unavailable] = []
    with ThreadPoolExecutor(8) as pool:
        while {each.device for each in told if isinstance(each, Receipt)} != LANES:
            told += pool.map(lambda _: receipt_or_error(client, ask), range(16))
            if any(isinstance(each, Unavailable) for each in told):
                break
    return told


def told_uj(receipts: Sequence[Receipt], device: str) -> int:
    return sum(present(receipt.energy_uj) for receipt in receipts if receipt.device == device)


@pytest.mark.parametrize(
    ("save", "asks"), [(save_classifier, [classified]), (save_language_model, [generated, scored])]
)
def test_two_lanes_share_requests_and_one_that_fails_leaves(
    save: Callable[[Path], Path], asks: list[Ask], tmp_path: Path
) -> None:
    model, fails = save(tmp_path / "tiny"), tmp_path / "fails"
    with (
        running_server(
            "--model", str(model), "--variants", "fp32", "--device", "cpu:0,cpu:1", "--meter", "simulated",
            program=PROGRAM, extra={"FAILING_LANE_FILE": str(fails)},
        ) as running,
        Client(running.address) as client,
    ):  # fmt: skip
        (variant,) = client.server_info().variants
        assert (variant.device, variant.other_devices) == ("cpu:0", ("cpu:1",))
        before = settled_report(client)
        told = [each for ask in asks for each in ask_until_both_have_worked(client, ask)]
        receipts = [each for each in told if isinstance(each, Receipt)]
        sequences = sum(line.role is not LineRole.OUTPUT for each in receipts for line in each.lines)
        after = settled_report(client)
        values = metrics(running)
        ledgers = {ledger.device: ledger for ledger in (after, *after.other_devices)}
        assert set(ledgers) == LANES
        for device, ledger in ledgers.items():
            assert ledger.measured_uj == booked_uj(ledger)
            assert ledger.active_uj == told_uj(receipts, device) > 0
            series = f'wattserve_energy_active_joules_total{{device="{device}",variant="fp32"}}'
            assert round(values[series] * 1e6) == ledger.active_uj
        settled = [values[name] for name in values if name.startswith("wattserve_settled_sequences_total")]
        assert sum(settled) == sequences
        # As loadgen sees it: of both.
        grown = growth_of(before, after, "cpu:0", "fp32", ("cpu:1",))
        assert (grown.active_uj, grown.accounts_residual_uj) == (
            sum(told_uj(receipts, each) for each in LANES),
            0,
        )
        assert grown.sequences == sequences

        fails.touch()
        told = ask_until_both_have_worked(client, asks[0])
        errors = [each for each in told if isinstance(each, Unavailable)]
        assert errors
        for error in errors:
            assert (error.code, error.reason) == ("UNAVAILABLE", "DEVICE_FAILED")
            assert "device cpu:1 has failed" in error.message
        lost = [client.receipt(error.receipt_id, wait_until_settled=True) for error in errors]
        assert {receipt.device for receipt in lost} == {"cpu:1"}
        later = [receipt_or_error(client, ask) for ask in asks for _ in range(4)]
        receipts += [each for each in (*told, *later, *lost) if isinstance(each, Receipt)]
        assert {each.device for each in later if isinstance(each, Receipt)} == {"cpu:0"}
        after = settled_report(client)
        for ledger in (after, *after.other_devices):
            assert ledger.measured_uj == booked_uj(ledger)
            assert ledger.active_uj == told_uj(receipts, ledger.device)
        assert "device cpu:1 has failed" in client.server_info().variants[0].state_reason
        values = metrics(running)
        assert [values[f'wattserve_device_up{{device="{device}"}}'] for device in sorted(LANES)] == [1, 0]
        assert running.terminate() == 0
    assert "drained on cpu:0: simulated" in running.error_text
    assert "drained on cpu:1: simulated" in running.error_text
    assert "drained on all of them: simulated" in running.error_text


def test_the_cpus_one_counter_is_in_one_ledger(tmp_path: Path) -> None:
    """Estimated, as nearly everywhere: the requests of both lanes are charged from it."""
    model = save_vit(tmp_path / "tiny")
    with (
        running_server(
            "--model", str(model), "--variants", "fp32", "--device", "cpu:0,cpu:1", "--meter", "estimate"
        ) as running,
        Client(running.address) as client,
    ):
        receipts = [each for each in ask_until_both_have_worked(client, seen) if isinstance(each, Receipt)]
        report = settled_report(client)
        assert (report.device, report.other_devices) == ("cpu:0", ())
        assert list(client.server_info().meter.shared_by) == ["cpu:0", "cpu:1"]
        assert report.measured_uj == booked_uj(report)
        assert report.active_uj == sum(told_uj(receipts, device) for device in LANES)
        values = metrics(running)
        assert all(values[f'wattserve_device_busy_seconds_total{{device="{device}"}}'] for device in LANES)
        assert running.terminate() == 0
