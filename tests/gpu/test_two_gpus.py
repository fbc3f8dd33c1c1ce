"""One variant on two real GPUs of one server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.fixtures.models import save_classifier
from tests.fixtures.present import booked_uj, present
from tests.fixtures.server import running_server
from wattserve_client import Client

pytestmark = pytest.mark.gpu
DEVICES = ("cuda:0", "cuda:1")


@pytest.mark.skipif(torch.cuda.device_count() < len(DEVICES), reason="fewer than two GPUs")
def test_both_answer_and_each_charges_what_it_ran(tmp_path: Path) -> None:
    model = str(save_classifier(tmp_path / "tiny"))
    with (
        running_server("--model", model, "--variants", "fp32", "--device", ",".join(DEVICES)) as running,
        Client(running.address) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        asked = pool.map(lambda _: client.predict([[2, 4, 3]], wait_for_settled_energy=True), range(400))
        answers = list(asked)
        report = client.energy_report()
        assert running.terminate() == 0
    for answer in answers:
        assert answer.output == pytest.approx(answers[0].output, abs=1e-4)
    assert {answer.receipt.device for answer in answers} == set(DEVICES)
    own = {ledger.device: ledger for ledger in (report, *report.other_devices)}
    for ledger in own.values():
        assert ledger.measured_uj == booked_uj(ledger)
    told_uj = sum(present(answer.receipt.energy_uj) for answer in answers)
    assert told_uj == sum(present(ledger.active_uj) for ledger in own.values())
