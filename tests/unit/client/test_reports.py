"""What the server says of itself in Python: its variants, meter, limits and ledger."""

from __future__ import annotations

from wattserve_client import EnergyReport
from wattserve_client.wire import from_message
from wattserve_proto.v1 import inference_pb2 as pb


def test_the_accounts_of_a_report_sum_to_the_measured_total() -> None:
    message = pb.EnergyReport(
        measured_uj=1_000,
        active=[
            pb.VariantEnergy(variant="fp32", active_uj=400, sequences=2, tokens=14, padded_tokens=16),
            pb.VariantEnergy(variant="bf16", active_uj=100, sequences=1, tokens=7, padded_tokens=8),
        ],
        warmup_uj=50,
        idle_uj=300,
        idle_shared_uj=120,
        unattributed_uj=70,
        gap_uj=30,
        pending_uj=50,
    )
    report = from_message(EnergyReport, message)
    accounts = (report.warmup_uj, report.idle_uj, report.unattributed_uj, report.gap_uj, report.pending_uj)
    assert report.active_uj is not None
    assert sum(each for each in accounts if each is not None) + report.active_uj == report.measured_uj
    assert (report.measured_joules, report.active_joules, report.warmup_joules) == (0.001, 0.0005, 0.00005)
    assert (report.idle_joules, report.idle_shared_joules) == (0.0003, 0.00012)
    assert (report.unattributed_joules, report.gap_joules, report.pending_joules) == (7e-05, 3e-05, 5e-05)
    assert report.active[0].active_joules == 0.0004


def test_a_report_without_figures_has_none_everywhere_not_zero() -> None:
    message = pb.EnergyReport(
        active=[pb.VariantEnergy(variant="fp32", sequences=9)], unknown_reason="no meter"
    )
    report = from_message(EnergyReport, message)
    assert report.unknown_reason == "no meter"
    assert report.active[0].sequences == 9
    figures = [report.measured_joules, report.active_joules, report.active[0].active_joules]
    figures += [report.warmup_joules, report.idle_joules, report.unattributed_joules, report.pending_joules]
    assert [*figures, report.gap_joules] == [None] * 8
    assert report.idle_watts is None


def test_each_device_has_its_own_ledger() -> None:
    message = pb.EnergyReport(
        device="cuda:0",
        measured_uj=7,
        other_devices=[pb.EnergyReport(device="cpu", unknown_reason="no meter")],
    )
    report = from_message(EnergyReport, message)
    assert (report.device, report.measured_uj) == ("cuda:0", 7)
    (other,) = report.other_devices
    assert (other.device, other.measured_uj, other.unknown_reason) == ("cpu", None, "no meter")
