"""What a scrape shows. The golden file is the published surface: change it on purpose only."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

from tests import ROOT
from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.probe import CrossCheck, MeterPart, SensorProbe
from wattserve_server.energy.reading import Energy, MeterStatus, Quality, Source
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt, Window
from wattserve_server.telemetry.observer import Observer, Times
from wattserve_server.telemetry.scrape import BoardGauges
from wattserve_server.telemetry.state import (
    AccountBookState,
    BoardFigures,
    DeviceState,
    LaneState,
    ServedVariant,
    ServerState,
    TenantBudget,
)

NOW = re.compile(r"(_timestamp_seconds\{.*?\}|grpc_server_handling_seconds_sum\{.*?\}) .*")
OTHERS = re.compile("(# [A-Z]+ )?(process|python)_")
GOLDEN = ROOT / "tests" / "golden" / "metrics.txt"
METER = MeterStatus(
    source=Source("scripted", "apportioned script", Quality.SIMULATED),
    poll_period_s=0.02,
    read_cost_s=1e-6,
    update_period_s=0.1,
    idle_watts=12.5,
    idle_origin="configured",
    last_error="",
    reads=7,
    failed_reads=1,
    lag_s=0.04,
    ramp_s=0.03,
    neighbours=2,
    others_at_work=0.25,
    restarts=2,
    consistency=1.25,
    edges=40,
    covered_edges=38,
    last_read_ns=1,
)
PROBE = SensorProbe(
    duration_s=1.3,
    reads=900,
    stepped=True,
    update_period_s=0.1,
    edge_jitter_s=0.002,
    read_cost_p50_s=0.0001,
    read_cost_p99_s=0.0004,
    resolution_uj=1000,
    watts=80.0,
    cross_checks=(CrossCheck(1.2, 99.0, 100.0),),
)
PARTS = (
    MeterPart(Source("nvml:GPU-5", "counter", Quality.MEASURED), Energy(9_500_000), None),
    MeterPart(Source("estimate", "estimate", Quality.ESTIMATED), Energy(500_000), 5.0),
)
FIGURES = BoardFigures(0.41, 81.619, 50_000_000, 150_119_383_040, 0, 'NVIDIA "H200"', 12_345_678_901)
BOARD = BoardGauges("GPU-5", lambda: FIGURES)


def server_state(
    devices: Sequence[DeviceState], variants: Sequence[ServedVariant] = ()
) -> Callable[[], ServerState]:
    return lambda: ServerState(
        3,
        1024,
        1,
        ("tiny", "folder", "classification"),
        variants,
        devices,
        1.5,
        2,
        77,
        4,
        5000,
        2,
        9,
        {"shop": 1},
        6,
        AccountBookState(True, 7, 2, 0, 3, 1234, 1_800_000_000_000_000_000),
        True,
        4096,
        [TenantBudget("shop", "hard", "day", 5_000_000, 1_500_000)],
        [LaneState("cpu", 2_500_000_000)],
        70_000,
    )


def ledger() -> Ledger:
    made = Ledger(since_ns=0, until_ns=1, idle_shared_uj=2_000_000)
    made.meter(10_000_000)
    made.to_active("fp32", 4_000_000, 2, 10, 16)
    made.to_warmup(1_000_000)
    made.to_idle(3_000_000)
    made.to_unattributed(500_000)
    made.to_gap(250_000)
    return made


def metrics() -> Observer:
    made = Observer("1.2.3", "3.11")
    fp32 = ServedVariant("fp32", "cpu", True, "fp32", "fp32 GEMM", "", True, 4096, 1.5, 640, 1_000_000)
    int8 = ServedVariant("int8", "cpu", False)
    state = DeviceState("cpu", ledger(), METER, PROBE, PARTS, Energy(9_000_000), receipts_residual_uj=3)
    made.serve_state(server_state([state], [fp32, int8]), [BOARD])
    made.declare_tenants(["shop", "bank"])
    made.tenant_asked("shop", "OK")
    made.tenant_asked("", "OK")
    receipt = Receipt("r", "", "fp32", "cpu", 0, tenant="shop")
    line = Line(receipt, 5, batch_size=1, windows=1)
    line.ran(0, 1, (110,))
    receipt.lines.append(line)
    made.answered("fp32", 1, Times(1000, 2_000_000, 3_000_000, 4000, 6_000_000), receipt)
    made.failed("", "NOT_FOUND", "NOT_FOUND", "no such variant", 1000)
    made.batch_ran(Window("fp32", 0, 3_000_000, (4, 6), 8))
    made.tokens_came("fp32", 1, 7_000_000, is_first=True)
    made.tokens_came("fp32", 3, 6_000_000, is_first=False)
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(receipt.lines[0], 100, 0.0, 1, ""), ACCELERATOR)
    made.receipt_final(receipt)
    call = made.method("unary", "wattserve.v1.Inference", "Predict")
    with patch.object(time, "monotonic_ns", return_value=0):  # however busy the machine is
        call.end(call.start(), "OK")
    return made


def wattserve_lines(made: Observer) -> list[str]:
    """Without what is Python's, and with one instant and one machine for all."""
    text = NOW.sub(r"\1 0.0", made.page("")[1].decode())
    text = re.sub('Hostname="[^"]*"', 'Hostname="here"', text)
    return [line for line in text.splitlines() if not OTHERS.match(line)]


def test_the_scrape_is_the_published_one() -> None:
    assert "\n".join(wattserve_lines(metrics())) + "\n" == GOLDEN.read_text()


def test_tokens_that_come_with_the_first_are_counted_too() -> None:
    made = metrics()
    made.tokens_came("fp32", 3, 5_000_000, is_first=True)
    values = values_of(made)
    assert values['wattserve_time_to_first_token_seconds_count{variant="fp32"}'] == "2.0"
    assert values['wattserve_inter_token_seconds_count{variant="fp32"}'] == "5.0"
    assert values['wattserve_output_tokens_total{variant="fp32"}'] == "7.0"


def values_of(made: Observer) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in wattserve_lines(made) if not line.startswith("#"))


def test_accounts_and_pending_sum_to_what_was_measured() -> None:
    values = values_of(metrics())
    accounts = sum(float(value) for name, value in values.items() if "_energy_account_joules" in name)
    assert accounts + float(values['wattserve_energy_pending_joules{device="cpu"}']) == 10.0
    assert float(values['wattserve_energy_measured_joules_total{device="cpu"}']) == 10.0


def bare_state(device: str, meter: MeterStatus = METER, probe: SensorProbe | None = None) -> DeviceState:
    return DeviceState(device, Ledger(), meter, probe)


def test_devices_share_families_and_keep_their_own_series() -> None:
    made = Observer("1.2.3")
    both = [replace(bare_state(name), ledger=ledger()) for name in ("cpu", "cuda:0")]
    labels = [ServedVariant("fp32", "cuda:0", True), ServedVariant("fp32@cpu", "cpu", True)]
    made.serve_state(server_state(both, labels))
    headers = [line for line in wattserve_lines(made) if line.startswith("# TYPE")]
    assert len(headers) == len(set(headers))
    values = values_of(made)
    for device in ("cpu", "cuda:0"):
        assert values[f'wattserve_energy_measured_joules_total{{device="{device}"}}'] == "10.0"
    active = [name for name in values if name.startswith("wattserve_energy_active_joules_total")]
    assert active == [
        'wattserve_energy_active_joules_total{device="cpu",variant="fp32@cpu"}',
        'wattserve_energy_active_joules_total{device="cuda:0",variant="fp32"}',
    ]


def test_a_variant_that_is_not_in_memory_claims_to_run_nothing() -> None:
    lines = wattserve_lines(metrics())
    assert 'wattserve_variant_ready{variant="int8"} 0.0' in lines
    assert not [line for line in lines if line.startswith("wattserve_variant_info") and "int8" in line]


def test_without_a_reading_there_is_no_energy_series_rather_than_zeros() -> None:
    made = Observer("1.2.3")
    made.serve_state(server_state([bare_state("cpu")]))
    assert not [line for line in wattserve_lines(made) if line.startswith("wattserve_energy_")]


def test_the_parts_of_a_meter_never_stand_under_the_name_of_their_total() -> None:
    names = [line for line in wattserve_lines(metrics()) if "_joules" in line and 'part="' in line]
    assert names == [
        'wattserve_meter_part_joules_total{device="cpu",part="nvml:GPU-5",quality="measured"} 9.5',
        'wattserve_meter_part_joules_total{device="cpu",part="estimate",quality="estimated"} 0.5',
    ]


def test_a_part_has_its_idle_draw_once_it_is_known() -> None:
    names = [line for line in wattserve_lines(metrics()) if line.startswith("wattserve_meter_part_idle")]
    assert names == ['wattserve_meter_part_idle_watts{device="cpu",part="estimate",quality="estimated"} 5.0']


def test_what_several_devices_share_is_busy_for_none_of_them() -> None:
    made = Observer("1.2.3")
    made.serve_state(server_state([bare_state("host")]))
    busy = [line for line in wattserve_lines(made) if line.startswith("wattserve_device_busy")]
    assert busy == ['wattserve_device_busy_seconds_total{device="cpu"} 2.5']


def test_a_variant_of_several_devices_is_told_with_each_of_them() -> None:
    made = Observer("1.2.3")
    both = [replace(bare_state(name), ledger=ledger()) for name in ("cuda:0", "cuda:1")]
    made.serve_state(server_state(both, [ServedVariant("fp32", "cuda:0", True, other_devices=["cuda:1"])]))
    values = values_of(made)
    for device in ("cuda:0", "cuda:1"):
        series = f'{{device="{device}",variant="fp32"}}'
        assert values[f"wattserve_energy_active_joules_total{series}"] == "4.0"
        assert values[f"wattserve_settled_sequences_total{series}"] == "2.0"
        assert [name for name in values if name.startswith("wattserve_variant_info") and device in name]


def test_what_the_probe_did_not_find_has_no_series_rather_than_a_zero() -> None:
    made = Observer("1.2.3")
    bare = replace(
        METER,
        lag_s=None,
        ramp_s=None,
        neighbours=None,
        others_at_work=None,
        consistency=None,
        last_read_ns=None,
    )
    state = bare_state("cpu", bare, SensorProbe(0.01, 5))
    made.serve_state(server_state([state]))
    words = ["update_period", "jitter", "read_cost", "resolution", "cross_check", "lag", "ramp", "neighbours"]
    words += ["others_at_work", "last_reading", "last_change"]
    assert not [line for line in wattserve_lines(made) if any(f"meter_{word}" in line for word in words)]


def test_an_unknown_receipt_is_counted_and_not_observed_as_zero() -> None:
    made = metrics()
    receipt = Receipt("r", "", "fp32", "cpu", 0)
    receipt.lines.append(Line(receipt, 5, batch_size=1, windows=1))
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(receipt.lines[0], None, 0.0, None, "lost"), ACCELERATOR)
    made.receipt_final(receipt)
    lines = wattserve_lines(made)
    assert 'wattserve_unknown_receipts_total{variant="fp32"} 1.0' in lines
    assert 'wattserve_request_energy_joules_count{variant="fp32"} 1.0' in lines
