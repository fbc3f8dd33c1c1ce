"""What an auditor is told: the accounts, the proof, one receipt step by step, and refusals in words."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.audited import HEADER, AuditedDevice, generations, rewrite
from tests.fixtures.present import present
from tests.unit.server.audit.test_recompute import change_reading, change_told, served
from wattserve_server.audit.file import BlockWriter
from wattserve_tools.cli import main


@pytest.fixture
def device(tmp_path: Path) -> AuditedDevice:
    return served(tmp_path / "run.audit", count=20, declared_w=50.0)


def recomputed(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    code = main(["audit", "recompute", str(path), *flags])
    return code, capsys.readouterr().out


def test_it_proves_the_accounts_and_says_where_joules_went(
    device: AuditedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.end()
    code, text = recomputed(tmp_path / "run.audit", capsys)
    assert code == 0
    assert "run 0123456789ab, started 2027-01-15 08:00:00 UTC, of model demo" in text
    assert all(f"{name} {value}" in text for name, value in HEADER.made_on.items())
    assert "20 receipts made anew, 20 as told, to the microjoule\n" in text
    assert "PROVED" in text
    rows = dict(re.findall(r"^  (\S+) +([\d,.]+) J", text, re.MULTILINE))
    ledger = device.books.ledger
    assert rows["active"] == f"{ledger.active_uj / 1e6:,.6f}"
    assert rows["measured"] == f"{ledger.measured_uj / 1e6:,.6f}"
    shares = [float(share) for share in re.findall(r"([\d.]+)%  ", text)]
    assert len(shares) == 6
    assert sum(shares) == pytest.approx(100.0, abs=0.05)
    assert f"{ledger.idle_shared_uj / 1e6:,.6f} J of the idle ones are shown on receipts" in text


def test_figures_that_do_not_follow_are_refused(
    device: AuditedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.end()
    rewrite(tmp_path / "run.audit", tmp_path / "other.audit", change_reading)
    code, text = recomputed(tmp_path / "other.audit", capsys)
    assert code == 1
    assert "REFUSED: these figures do not follow from these readings" in text
    assert re.search(r"receipt \S+ was told [\d,]+ uJ .*, and is [\d,]+ uJ", text)
    assert "PROVED" not in text
    code, text = recomputed(tmp_path / "run.audit", capsys)
    assert (code, "REFUSED" in text) == (0, False)


def test_another_machine_is_named(
    device: AuditedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.end()
    there = {**HEADER.made_on, "cpu": "Another CPU"}
    header = type(HEADER)(
        HEADER.instance_id, HEADER.started_unix_ns, HEADER.started_ns, there, HEADER.settings
    )
    rewrite(tmp_path / "run.audit", tmp_path / "there.audit", change_told, header)
    code, text = recomputed(tmp_path / "there.audit", capsys)
    assert code == 0
    assert "20 as told, within 1 uJ: this machine is another" in text
    assert "cpu Another CPU" in text
    rewrite(tmp_path / "there.audit", tmp_path / "worse.audit", change_told, header)
    code, text = recomputed(tmp_path / "worse.audit", capsys)
    assert code == 1
    assert "recompute where, and with the versions with which, it was made" in text


def test_a_file_that_was_cut_off_says_so(
    device: AuditedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.recorder.flush()
    code, text = recomputed(tmp_path / "run.audit", capsys)
    assert (code, "NOT ENDED" in text) == (0, True)
    size = (tmp_path / "run.audit").stat().st_size
    device.end()
    whole = (tmp_path / "run.audit").read_bytes()
    (tmp_path / "cut.audit").write_bytes(whole[:-5])
    code, text = recomputed(tmp_path / "cut.audit", capsys)
    assert (code, f"CUT OFF: the block at byte {size:,} is not whole" in text) == (0, True)


def test_of_a_file_of_nothing_but_its_header_nothing_is_proved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = replace(HEADER, instance_id="\x1b[2Jrun", settings={"model": "a\nb"})
    writer = BlockWriter(tmp_path / "run.audit")
    writer.begin(header)
    writer.close()
    code, text = recomputed(tmp_path / "run.audit", capsys)
    assert code == 1
    assert text.endswith("\nNOTHING IS PROVED: the file holds no reading and no receipt\n")
    assert "PROVED: after" not in text
    assert "run \\x1b[2Jrun, started 2027-01-15 08:00:00 UTC, of model a\\nb\n" in text


def test_one_receipt_is_explained(
    device: AuditedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.end()
    receipt = next(each for each in reversed(device.receipts) if len(each.lines) == 3)
    code, text = recomputed(tmp_path / "run.audit", capsys, "--receipt", receipt.receipt_id)
    assert code == 0
    told = present(receipt.energy_uj)
    low_uj, high_uj = present(receipt.interval_uj())
    figures = (
        f"{told:,} uJ ({low_uj:,} to {high_uj:,}) with {present(receipt.idle_share_uj):,} uJ of idle, settled"
    )
    assert f"receipt {receipt.receipt_id}: {receipt.variant}, completed; it was told {figures}" in text
    assert text.endswith(f"together: {figures}\n")
    assert "accelerator of cuda:0: simulated; declared_idle_w 50.0, split_rule shapley" in text
    assert re.search(
        rf"1\. a batch of 3 in {receipt.variant}: [\d,]+ tokens, from 08:00:\d\d\.\d{{6}} for 10.000 ms", text
    )
    held = [
        float(part) for part in re.findall(r"the meter counted [\d,]+ uJ, with ([\d.]+)% of the batch", text)
    ]
    assert sum(held) == pytest.approx(100.0, abs=0.5)
    assert re.search(rf"law of {receipt.variant}: \S+ uJ for the batch, \S+ uJ a token", text)
    own = re.findall(r"its own: \d+ tokens, weight ([\d.]+)%: ([\d,]+) uJ", text)
    assert len(own) == 3
    assert sum(int(energy_uj.replace(",", "")) for _, energy_uj in own) == told
    assert sum(float(weight) for weight, _ in own) == pytest.approx(100.0, abs=0.02)


def test_neighbours_and_what_was_computed_again_are_named(
    device: AuditedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generations(device, 2)
    device.end()
    _, text = recomputed(tmp_path / "run.audit", capsys, "--receipt", "generation 0")
    assert "receipt generation 0: fp32, cancelled" in text
    assert text.count("beside: generation 1:") == 14
    assert len(re.findall(r"its own: .*, computed again", text)) == 1


def test_a_receipt_without_a_figure_is_explained_too(
    device: AuditedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.run("fp32")
    device.lose_meter(5000.0, "the GPU is lost")
    device.end()
    _, text = recomputed(tmp_path / "run.audit", capsys, "--receipt", device.receipts[-1].receipt_id)
    assert "it was told unknown (the GPU is lost)" in text
    assert "     no figure: the GPU is lost\n" in text


def test_the_law_of_cpu_time_is_named_where_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = AuditedDevice(tmp_path / "cpu.audit", declared_w=50.0, cpu_watts=8.0)
    device.rest(1000.0)
    for index in range(60):
        device.run("fp32", (1 + index % 4, 16), kind="request" if index > 30 else "warm-up", cpu_ms=10.0)
        device.rest(40.0)
    device.end()
    _, text = recomputed(tmp_path / "cpu.audit", capsys, "--receipt", device.receipts[-1].receipt_id)
    assert re.search(r"law of CPU time, for the batch: it took 10.000 ms at 8 W", text)


def test_receipts_are_written_as_a_table(
    device: AuditedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.end()
    table = tmp_path / "receipts.csv"
    assert recomputed(tmp_path / "run.audit", capsys, "--receipts", str(table))[0] == 0
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["receipt_id"], row["energy_uj"], row["as_told"]) for row in rows] == [
        (receipt.receipt_id, str(present(receipt.energy_uj)), "yes") for receipt in device.receipts
    ]
    assert main(["audit", "recompute", str(tmp_path / "run.audit"), "--receipts", str(table)]) == 2
    assert f"--receipts {table}: cannot be made (File exists)" in capsys.readouterr().err


def test_a_users_mistakes_are_one_line(
    device: AuditedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device.end()
    for words, flags in (
        ("holds no such receipt", (str(tmp_path / "run.audit"), "--receipt", "nobody's")),
        ("cannot be read", (str(tmp_path / "nowhere"),)),
        ("is no regular file", (str(tmp_path),)),
    ):
        assert main(["audit", "recompute", *flags]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
