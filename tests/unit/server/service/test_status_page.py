"""What the status page shows, and how it stays a page whatever it is told."""

import re
from dataclasses import replace
from typing import Any

import pytest

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.console import amount
from wattserve_server.energy.ledger import Ledger, VariantTotals
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt
from wattserve_server.service.status_page import (
    CHART_WIDTH,
    DeviceFacts,
    LedgerHistory,
    PageFacts,
    Watts,
    _variant_rows,
    accounts,
    areas,
    duration,
    render,
    top_watts,
)
from wattserve_server.telemetry.observer import MAX_MESSAGE, FailedRequest, Observer, Times

SOURCE = pb.EnergySource(name="estimate", quality=pb.ENERGY_QUALITY_ESTIMATED, note="7.5 W per core")
LEDGER = pb.EnergyReport(
    source=SOURCE,
    device="cpu",
    measured_uj=10_000_000,
    active=[pb.VariantEnergy(variant="fp32", active_uj=2_000_000, sequences=4, tokens=20)],
    warmup_uj=3_000_000,
    idle_uj=4_000_000,
    unattributed_uj=500_000,
    gap_uj=0,
    pending_uj=500_000,
)
INFO = pb.ServerInfo(
    model_name="tiny",
    default_variant="fp32",
    variants=[
        pb.VariantInfo(
            name="fp32", device="cpu", operands="fp32", state=pb.VARIANT_STATE_READY, verified=True
        ),
        pb.VariantInfo(
            name="fp16-as-int8-proxy",
            device="cpu",
            operands="fp16",
            state=pb.VARIANT_STATE_READY,
            proxy="fp16 products",
        ),
        pb.VariantInfo(name="int8", state=pb.VARIANT_STATE_FAILED, state_reason="no memory left"),
    ],
)
COURSE = [Watts(2.0, 30.0, 10.0, 20.0, 0.0), Watts(2.0, 41.0, 20.0, 20.0, 1.0)]


def final_receipt(energy_uj: int | None) -> Receipt:
    receipt = Receipt("r", "", "fp32", "cpu", 0)
    receipt.lines.append(Line(receipt, 5, batch_size=1, windows=1))
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(receipt.lines[0], energy_uj, 0.0, 0, ""), ACCELERATOR)
    return receipt


def observer() -> Observer:
    made = Observer("test")
    made.answered("fp32", 2, Times(0, 1, 2, 3, 4))
    made.failed("fp32", "INTERNAL", "", "", 5)
    for energy_uj in (1_500_000, 500_000, None):
        made.receipt_final(final_receipt(energy_uj))
    return made


def page(**changes: Any) -> PageFacts:
    device = DeviceFacts(pb.MeterInfo(source=SOURCE, device="cpu"), LEDGER, COURSE[-1], COURSE)
    whole = PageFacts("ready", 3725.0, [], INFO, [device], {"fp32": observer().statistics(["fp32"])}, 7)
    return replace(whole, **changes)


def text(shown: PageFacts) -> str:
    """What a person reads: no tags, no style."""
    html = re.sub(r"<style>.*?</style>", "", render(shown).decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_it_says_what_is_served_and_what_it_costs() -> None:
    words = text(page())
    assert "tiny ready" in words
    assert "up 1 h 2 min" in words
    assert "41 W now (estimated)" in words
    assert "7 sequences wait" in words
    assert "1 1 1 J 100 mJ" in words  # answered, failed, per settled request, per settled token


def test_a_token_costs_what_it_does_on_the_devices_that_share_a_variant() -> None:
    """And on the host's counter, whose ledger tells the same tokens again."""
    other, host = pb.EnergyReport(), pb.EnergyReport()
    for ledger, device in ((other, "cuda:1"), (host, "host")):
        ledger.CopyFrom(LEDGER)
        ledger.device = device
    own = pb.VariantInfo(name="fp32", device="cpu", other_devices=["cuda:1"])
    facts = [DeviceFacts(pb.MeterInfo(), ledger, None, []) for ledger in (LEDGER, other, host)]
    (row,) = _variant_rows(PageFacts("ready", 0.0, [], pb.ServerInfo(variants=[own]), facts))
    assert row.joules_per_token == pytest.approx(3 * 2.0 / 40)


def test_joules_that_nobody_measured_are_said_to_be_so() -> None:
    assert "The joules are estimated, not measured. 7.5 W per core" in text(page())
    assert "measured" not in text(page()).replace("not measured", "")


def test_a_proxy_an_unverified_variant_and_a_failed_one_are_said_to_be_so() -> None:
    words = text(page())
    assert "PROXY: fp16 products" in words
    assert "unverified" in words
    assert "failed" in words
    assert "no memory left" in words


def test_the_accounts_sum_to_what_was_counted() -> None:
    rows = accounts(LEDGER)
    assert [row.name for row in rows][:2] == ["active fp32", "warm-up"]
    assert sum(row.joules for row in rows) == pytest.approx(10.0)
    assert sum(row.share for row in rows) == pytest.approx(1.0)


def test_a_sum_shows_its_parts_and_a_shared_host_whose_it_is() -> None:
    board = pb.EnergyReport(
        part="accelerator",
        source=pb.EnergySource(name="nvml:GPU-5", quality=pb.ENERGY_QUALITY_MEASURED),
        measured_uj=9_000_000,
        active=[pb.VariantEnergy(variant="fp32", active_uj=1_500_000)],
        idle_uj=7_250_000,
        idle_watts=70.0,
    )
    host = pb.EnergyReport(part="host", source=SOURCE, unknown_reason="powercap is gone")
    ledger = pb.EnergyReport()
    ledger.CopyFrom(LEDGER)
    ledger.parts.extend([board, host])
    meter = pb.MeterInfo(source=SOURCE, device="host", shared_by=["cuda:0", "cuda:1"])
    words = text(page(devices=[DeviceFacts(meter, ledger, None, [])]))
    assert "accelerator measured by nvml:GPU-5 9.000 1.500 7.250 70 W" in words
    assert "host estimated from CPU time powercap is gone unknown" in words
    assert "shared by cuda:0, cuda:1" in words
    assert "Its parts" not in text(page())


def test_unknown_energy_is_unknown_and_never_0() -> None:
    silent = pb.EnergyReport(unknown_reason="no meter was asked for")
    source = pb.EnergySource(quality=pb.ENERGY_QUALITY_NONE)
    words = text(page(devices=[DeviceFacts(pb.MeterInfo(source=source), silent, None, [])]))
    assert "unknown now" in words
    assert "unknown counted since the start" in words
    assert "no meter was asked for" in words
    assert "0 W" not in words


def test_what_callers_wrote_is_shown_as_text() -> None:
    failed = FailedRequest(0.0, "", "NOT_FOUND", "NOT_FOUND", "<script>alert(1)</script>")
    html = render(page(failures=[failed])).decode()
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_a_server_that_starts_has_a_page_too() -> None:
    words = text(PageFacts("starting", 5.0, []))
    assert "Nothing is served yet" in words
    assert "No request has failed" in words


def test_failures_are_few_short_and_newest_first() -> None:
    observer = Observer("test")
    for number in range(30):
        observer.failed("fp32", "INTERNAL", str(number), "x" * 1000, 0)
    assert [failed.reason for failed in observer.failures] == [str(number) for number in range(29, 9, -1)]
    assert len(observer.failures[0].message) == MAX_MESSAGE


def test_on_a_phone_a_row_is_a_card_whose_figures_keep_their_headings() -> None:
    failed = FailedRequest(0.0, "fp32", "NOT_FOUND", "NOT_FOUND", "no such thing")
    html = render(page(failures=[failed])).decode()
    folded = re.findall(r'<table id="(\w+)" class="fold">(.*?)</table>', html, re.DOTALL)
    assert [name for name, _ in folded] == ["variants", "failures"]
    for _, table in folded:
        cells = re.findall(r"<td([^>]*)>", table)
        headings = set(re.findall(r"<th[^>]*>([^<]+)</th>", table.split("</thead>")[0]))
        labels = [label for cell in cells for label in re.findall(r'data-label="([^"]+)"', cell)]
        assert set(labels) < headings
        assert len(labels) + sum("wide" in cell for cell in cells) == len(cells)
    assert html.count('class="n joules" data-label=') == 2 * len(INFO.variants)


def test_the_areas_of_the_picture_stack_up_and_end_now() -> None:
    idle, active, other = (points for _, points in areas(COURSE))
    assert idle.split()[3] == f"{CHART_WIDTH}.0,72.0"  # 20 of 50 W
    assert active.split()[3] == f"{CHART_WIDTH}.0,24.0"
    assert other.split()[3] == f"{CHART_WIDTH}.0,21.6"


def test_the_picture_has_an_axis_of_round_numbers() -> None:
    device = DeviceFacts(pb.MeterInfo(source=SOURCE), LEDGER, None, COURSE)
    html = render(PageFacts("ready", 60.0, [], INFO, [device])).decode()
    assert re.findall(r'<span style="top: \d+%">([^<]+)</span>', html) == ["50 W", "25 W", "0 W"]
    assert "<span>3 minutes ago</span><span>now</span>" in html
    tops = [top_watts([Watts(2.0, 0.0, watts, 0.0, 0.0)]) for watts in (0.0, 0.3, 5.0, 5.1, 16.3, 700.0)]
    assert tops == pytest.approx([1.0, 0.5, 5.0, 10.0, 20.0, 1000.0])


def test_watts_are_over_the_last_seconds_and_between_readings() -> None:
    history = LedgerHistory()
    ledger = Ledger(since_ns=0, until_ns=0)
    assert history.now is None
    for second in range(0, 41, 2):
        ledger.until_ns = second * 10**9
        ledger.measured_uj = second * 40_000_000 + (second > 30) * 100_000_000
        ledger.active = {"fp32": VariantTotals(active_uj=second * 10_000_000)}
        history.add(ledger)
        history.add(ledger)  # not read since: not a sample
    now = history.now
    assert now is not None
    assert (now.duration_s, now.measured, now.active) == (10.0, 50.0, 10.0)
    assert len(history.course) == 20


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 J"),
        (0.0000121, "12.1 µJ"),
        (0.0605, "60.5 mJ"),
        (3.123, "3.12 J"),
        (3121.0, "3.12 kJ"),
        (5e6, "5000 kJ"),
        (None, "unknown"),
    ],
)
def test_amounts_have_three_digits_and_a_prefix(value: float | None, shown: str) -> None:
    assert amount(value, "J") == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (59, "59 s"), (3725, "1 h 2 min"), (90061, "1 d 1 h")]
)
def test_durations_have_two_units(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
