"""What a cell cost: the ledger's growth against the receipts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.loadgen_results import make_meter_window, make_record
from wattserve_client import EnergyReport
from wattserve_client.wire import from_message
from wattserve_loadgen.figures import account
from wattserve_loadgen.figures.account import (
    LedgerGrowth,
    growth_of,
    ledger_growth,
    ledger_of,
    ledgers_of,
    pending_receipts,
)
from wattserve_loadgen.model.cells import CellEnergy, Record
from wattserve_proto.v1 import inference_pb2 as pb


def ledger(seconds: float, measured: int, idle: int, gap: int = 11, **active: int) -> EnergyReport:
    """`measured` and the rest in microjoules; each variant's sequences are its microjoules / 100."""
    report = pb.EnergyReport(
        until_unix_ns=int(seconds * 1e9),
        measured_uj=measured,
        warmup_uj=7_000,
        idle_uj=idle,
        unattributed_uj=3,
        gap_uj=gap,
        pending_uj=0,
        active=[
            pb.VariantEnergy(variant=name, active_uj=uj, sequences=uj // 100) for name, uj in active.items()
        ],
    )
    return from_message(EnergyReport, report)


BEFORE = ledger(100, 50_000, 40_000, fp32=2_000, int8=997)
AFTER = ledger(104, 75_000, 60_000, fp32=6_500, int8=1_497)


def growth(**changes: int | float) -> LedgerGrowth:
    values: dict[str, Any] = {
        "seconds": 4.0,
        "measured_uj": 25_000,
        "active_uj": 4_500,
        "other_active_uj": 500,
        "idle_uj": 20_000,
        "unattributed_uj": 0,
        "gap_uj": 0,
        "pending_uj": 0,
        "sequences": 0,
        "gap_count": 0,
        "gap_seconds": 0.0,
    }
    return LedgerGrowth(**{**values, **changes}, reason="")


def cell_energy(records: Sequence[Record], found: LedgerGrowth, completed: int = 10) -> CellEnergy:
    """Of a window of one second."""
    return account.cell_energy(records, found, 1.0, completed)


def test_the_growth_of_the_ledger_is_told_apart_by_account() -> None:
    assert ledger_growth(BEFORE, AFTER, "fp32") == growth(sequences=45 + 5)


def test_an_exact_ledger_leaves_no_residual_and_an_inexact_one_shows_it() -> None:
    assert ledger_growth(BEFORE, AFTER, "fp32").accounts_residual_uj == 0
    AFTER_WRONG = ledger(104, 75_011, 60_000, fp32=6_500, int8=1_497)
    assert ledger_growth(BEFORE, AFTER_WRONG, "fp32").accounts_residual_uj == 11


def test_what_was_counted_over_gaps_is_an_account_of_its_own() -> None:
    after = ledger(104, 75_000 + 77, 60_000, gap=88, fp32=6_500, int8=1_497)
    found = ledger_growth(BEFORE, after, "fp32")
    assert (found.gap_uj, found.accounts_residual_uj) == (77, 0)
    assert cell_energy([make_record()], found).gap_uj == 77


def test_a_variant_that_first_ran_in_this_cell_grew_from_nothing() -> None:
    before = ledger(100, 50_000, 40_000)
    assert ledger_growth(before, AFTER, "fp32").active_uj == 6_500


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_server_whose_gaps_last_no_finite_time_is_not_believed(seconds: float) -> None:
    growth = ledger_growth(BEFORE, replace(AFTER, gap_seconds=seconds), "fp32")
    assert growth == LedgerGrowth(reason="the server says that its meter's gaps last no finite time")


def test_without_a_meter_the_growth_is_unknown_and_says_why() -> None:
    nothing = from_message(EnergyReport, pb.EnergyReport(unknown_reason="started with --meter none"))
    empty = from_message(EnergyReport, pb.EnergyReport())
    assert ledger_growth(nothing, nothing, "fp32") == LedgerGrowth(reason="started with --meter none")
    assert ledger_growth(empty, empty, "fp32").reason == "the server has no meter"


def test_time_inside_a_meter_gap_is_not_ledger_time() -> None:
    after = ledger(104, 75_000, 60_000, fp32=6_500, int8=1_497)
    after = replace(after, gap_count=1, gap_seconds=1.5)
    found = ledger_growth(BEFORE, after, "fp32")
    assert (found.seconds, found.gap_count, found.gap_seconds) == (2.5, 1, 1.5)


def test_a_clock_that_stepped_back_leaves_no_idle_power() -> None:
    found = ledger_growth(AFTER, ledger(90, 75_000, 60_000), "fp32")
    assert found.seconds is None
    assert cell_energy([make_record()], found).idle_uj_per_request is None


def test_active_energy_is_the_mean_of_the_windows_settled_receipts() -> None:
    records = [
        make_record(energy_uj=400),
        make_record(energy_uj=800),
        make_record(energy_uj=None, energy_state="unknown", energy_reason="the meter was frozen"),
        make_record(energy_uj=9_999, in_window=False),
    ]
    found = cell_energy(records, growth(active_uj=11_199))
    assert found.active_uj_per_request == 600
    assert (found.active_uj_per_token, found.active_uj_per_padded_token) == (60, 50)
    assert (found.settled, found.unknown, found.unknown_reasons) == (2, 1, {"the meter was frozen": 1})


def test_receipts_of_the_whole_cell_close_against_the_active_account() -> None:
    records = [make_record(energy_uj=400), make_record(energy_uj=800, in_window=False)]
    found = cell_energy(records, growth(active_uj=1_250))
    assert (found.receipts_uj, found.receipts_residual_uj) == (1_200, 50)


def test_idle_energy_per_request_is_idle_power_over_throughput() -> None:
    """20,000 uJ in 4 s are 5 mW; at 10 requests a second each carries 500 uJ."""
    found = cell_energy([make_record()], growth())
    assert found.idle_watts == pytest.approx(0.005)
    assert found.idle_uj_per_request == pytest.approx(500)


def test_failed_requests_are_paid_by_the_answered_ones() -> None:
    failed = make_record(ok=False, code="INTERNAL", energy_uj=None, energy_state=None)
    records = [make_record(energy_uj=400), make_record(energy_uj=600), failed]
    found = cell_energy(records, growth(active_uj=1_300))
    assert found.failed_uj_per_request == 150
    assert found.active_uj_per_request == 650
    assert found.active_uj_per_token == 65


@pytest.mark.parametrize(
    ("failed", "burned", "per_request"), [(0, 0, 20_000), (1, 0, 20_000), (1, 10_000, 20_010)]
)
def test_what_unknown_receipts_hold_is_not_given_to_failed_requests(
    failed: int, burned: int, per_request: float
) -> None:
    """The answered requests cost 20 mJ each; the energy of ten of them is unknown."""
    records = [
        *[make_record(energy_uj=20_000)] * 990,
        *[make_record(energy_uj=None, energy_reason="the meter was frozen")] * 10,
        *[make_record(ok=False, code="INTERNAL", energy_uj=None)] * failed,
    ]
    found = cell_energy(records, growth(active_uj=1_000 * 20_000 + burned))
    assert found.active_uj_per_request == per_request


def test_a_negative_residual_is_not_given_to_failed_requests() -> None:
    failed = make_record(ok=False, energy_uj=None)
    found = cell_energy([make_record(energy_uj=400), failed], growth(active_uj=300))
    assert found.failed_uj_per_request == 0
    assert found.receipts_residual_uj == -100


def test_sequences_of_other_clients_are_counted() -> None:
    records = [make_record(), make_record()]
    assert cell_energy(records, growth(sequences=5)).foreign_sequences == 3
    assert cell_energy(records, growth(sequences=2)).foreign_sequences == 0


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNAUTHENTICATED"])
def test_requests_that_were_refused_hide_no_sequences_of_others(code: str) -> None:
    refused = [make_record(ok=False, code=code, energy_uj=None)] * 10
    assert cell_energy([make_record(), *refused], growth(sequences=11)).foreign_sequences == 10


@pytest.mark.parametrize("code", ["DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL", "BAD_ANSWER"])
def test_requests_that_may_have_been_served_are_not_somebody_elses(code: str) -> None:
    lost = [make_record(ok=False, code=code, energy_uj=None)] * 10
    assert cell_energy([make_record(), *lost], growth(sequences=11)).foreign_sequences == 0


def test_a_request_of_several_sequences_is_several_sequences_of_the_ledger() -> None:
    records = [make_record(rows=[1, 2, 3]), make_record(rows=[4, 5])]
    assert cell_energy(records, growth(sequences=5)).foreign_sequences == 0
    assert cell_energy(records, growth(sequences=6)).foreign_sequences == 1


def test_the_meters_own_count_over_the_window_is_held_against_active_and_idle() -> None:
    """500 active and 500 idle by receipts; the meter counted 800 for each of 10 answers."""
    found = account.cell_energy([make_record()], growth(), 1.0, 10, make_meter_window(measured_uj=8_000))
    assert (found.total_uj_per_request, found.meter_uj_per_request) == (1_000, 800)
    assert found.meter_difference == pytest.approx(0.25)


def test_a_meter_without_a_figure_leaves_receipts_as_they_are() -> None:
    meter = make_meter_window(measured_uj=None, watts=None, reason="gap_inside: 2 s")
    found = account.cell_energy([make_record()], growth(), 1.0, 10, meter)
    assert (found.meter_uj_per_request, found.meter_difference) == (None, None)
    assert (found.active_uj_per_request, found.reason, found.method) == (500, "", "receipts")


def test_without_a_settled_receipt_there_are_no_joules_and_a_reason() -> None:
    unknown = make_record(energy_uj=None, energy_reason="started without a meter")
    found = cell_energy([unknown, unknown], LedgerGrowth(reason="no meter"))
    assert (found.active_uj_per_request, found.idle_uj_per_request, found.receipts_uj) == (None, None, None)
    assert found.reason == "no meter"
    found = cell_energy([unknown, unknown], growth())
    assert found.reason == "started without a meter"
    assert cell_energy([], growth(), 0).reason == "no request was answered in the window"


def test_each_device_is_held_against_its_own_ledger() -> None:
    message = pb.EnergyReport(
        device="cuda:0",
        measured_uj=1,
        pending_receipts=2,
        other_devices=[pb.EnergyReport(device="cpu", measured_uj=5, pending_receipts=1)],
    )
    report = from_message(EnergyReport, message)
    assert ledger_of(report, "cuda:0").measured_uj == 1
    assert ledger_of(report, "cpu").measured_uj == 5
    nowhere = ledger_of(report, "cuda:1")
    assert ledger_growth(nowhere, nowhere, "fp32").reason == "the server keeps no ledger for cuda:1"
    assert pending_receipts(report) == 3


@pytest.mark.parametrize("device", ["", "cpu"])
def test_the_only_ledger_is_everybodys_whatever_it_calls_its_device(device: str) -> None:
    report = from_message(EnergyReport, pb.EnergyReport(device=device, measured_uj=1))
    assert ledger_of(report, "cuda:0").measured_uj == 1


def test_images_have_joules_per_request_and_none_per_token() -> None:
    found = cell_energy([make_record(tokens=None)] * 3, growth())
    assert found.active_uj_per_request == 500
    assert found.active_uj_per_token is None


def shared_host(seconds: float, board_uj: int, host_uj: int) -> EnergyReport:
    """Two GPUs with one host: fp32 on the first one has cost it `host_uj`, int8 on the second one 900 uJ; at
    rest the host draws 1 mW."""
    idle_uj = int(seconds * 1_000)
    board = ledger(seconds, board_uj + 10_000, 10_000, gap=0, fp32=board_uj - 7_003)
    other = ledger(seconds, 20_000, 12_097, gap=0, int8=900)
    host = ledger(seconds, host_uj + 900 + idle_uj + 7_003, idle_uj, gap=0, fp32=host_uj, int8=900)
    others = (replace(other, device="cuda:1"), replace(host, device="host"))
    return replace(board, device="cuda:0", other_devices=others)


def test_a_host_that_two_gpus_share_is_in_the_growth_of_each_ones_variants() -> None:
    before, after = shared_host(100, 8_000, 300), shared_host(104, 10_000, 800)
    assert [each.device for each in ledgers_of(after, "cuda:0", "fp32")] == ["cuda:0", "host"]
    found = growth_of(before, after, "cuda:0", "fp32")
    assert (found.active_uj, found.other_active_uj, found.idle_uj) == (2_000 + 500, 0, 4_000)
    assert (found.accounts_residual_uj, found.seconds) == (0, 4.0)
    assert found.sequences == 20  # told by the device's own ledger, and not once more by the host's
    other = growth_of(before, after, "cuda:1", "int8")
    assert (other.active_uj, other.other_active_uj, other.idle_uj) == (0, 500, 4_000)


def test_sequences_of_two_lanes_are_others_of_a_lane_and_its_host_the_same() -> None:
    def two_lanes(seconds: float, board_uj: int) -> EnergyReport:
        report = shared_host(seconds, board_uj, board_uj // 10)
        _, host = report.other_devices
        return replace(report, other_devices=(replace(report, device="cuda:1", other_devices=()), host))

    found = growth_of(two_lanes(100, 8_000), two_lanes(104, 10_000), "cuda:0", "fp32", lanes=("cuda:1",))
    assert found.sequences == 20 + 20
    assert found.active_uj == 2 * 2_000 + 200


def test_a_ledger_of_the_host_that_says_nothing_leaves_no_growth_and_its_reason() -> None:
    after = shared_host(104, 10_000, 800)
    board, host = after.other_devices
    before = replace(after, other_devices=(board, replace(host, measured_uj=None, unknown_reason="no RAPL")))
    assert growth_of(before, after, "cuda:0", "fp32") == LedgerGrowth(reason="no RAPL")
