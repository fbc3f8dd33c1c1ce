"""What the server says of itself in Python: its variants, meter, limits and ledger."""

from __future__ import annotations

from wattserve_client import (
    CrossCheck,
    EnergyQuality,
    EnergyReport,
    EnergySource,
    Gap,
    Limits,
    Meter,
    SensorProbe,
    ServerInfo,
    Variant,
    VariantEnergy,
    VariantState,
    _replies,
)
from wattserve_proto.v1 import inference_pb2 as pb

SOURCE = pb.EnergySource(
    name="nvml:GPU-5", method="apportioned counter", quality=pb.ENERGY_QUALITY_MEASURED, note="board"
)
SOURCE_READ = EnergySource("nvml:GPU-5", "apportioned counter", EnergyQuality.MEASURED, "board")


def test_server_info_is_mirrored() -> None:
    message = pb.ServerInfo(
        server_version="0.1.0",
        model_name="demo",
        model_source="demo",
        task="sequence-classification",
        labels=["negative", "positive"],
        accepts_text=True,
        random_weights=False,
        default_variant="fp32",
        variants=[
            pb.VariantInfo(
                name="bf16",
                device="cpu",
                dtype="bfloat16",
                native=True,
                kernels="oneDNN",
                detail="head in fp32",
                parameter_bytes=10,
                warmup_seconds=0.5,
                warmup_shapes=4,
                state=pb.VARIANT_STATE_FAILED,
                state_reason="no room",
                proxy="what really runs",
                verified=True,
                verification="12 kernels",
                operands="bf16",
                weights="int8",
                kept_layers=["head"],
                shared_bytes=3,
                tuning="tokens packed",
                packs_tokens=True,
                threads=2,
            )
        ],
        meter=pb.MeterInfo(
            source=SOURCE,
            poll_period_seconds=0.02,
            update_period_seconds=0.1,
            idle_watts=0.0,
            idle_origin="measured",
            boundary="the board",
            probe=pb.SensorProbe(
                duration_seconds=1.3,
                reads=900,
                stepped=True,
                update_period_seconds=0.1,
                edge_jitter_seconds=0.002,
                read_cost_p50_seconds=0.0001,
                read_cost_p99_seconds=0.0004,
                resolution_uj=1000,
                watts=80.0,
                cross_checks=[pb.CrossCheck(window_seconds=1.2, counter_joules=99.0, power_joules=100.0)],
                unsupported={"average power": "too old"},
            ),
            lag_seconds=0.04,
            ramp_seconds=0.03,
            neighbours=0,
            parts=[pb.MeterInfo(source=SOURCE, boundary="a part")],
            device="cuda:0",
        ),
        other_meters=[pb.MeterInfo(source=SOURCE, device="cpu")],
        pixel_shape=[3, 224, 224],
        model_memory_limit_bytes=5,
        limits=pb.Limits(
            max_sequence_tokens=1,
            max_batch_sequences=2,
            max_batch_tokens=3,
            max_queue_sequences=4,
            max_request_sequences=5,
            vocabulary_size=6,
            receipt_retention_seconds=7,
            receipt_retention_count=8,
            settlement_limit_seconds=9,
        ),
        versions={"python": "3.11"},
        hardware="two cores",
        instance_id="i-1",
        model_parameters=66_955_010,
    )
    assert _replies.server_info(message) == ServerInfo(
        server_version="0.1.0",
        model_name="demo",
        model_source="demo",
        task="sequence-classification",
        labels=("negative", "positive"),
        accepts_text=True,
        random_weights=False,
        default_variant="fp32",
        variants=(
            Variant(
                name="bf16",
                device="cpu",
                dtype="bfloat16",
                native=True,
                kernels="oneDNN",
                detail="head in fp32",
                parameter_bytes=10,
                warmup_seconds=0.5,
                warmup_shapes=4,
                state=VariantState.FAILED,
                state_reason="no room",
                proxy="what really runs",
                verified=True,
                verification="12 kernels",
                operands="bf16",
                weights="int8",
                kept_layers=("head",),
                shared_bytes=3,
                tuning="tokens packed",
                packs_tokens=True,
                threads=2,
            ),
        ),
        meter=Meter(
            source=SOURCE_READ,
            poll_period_seconds=0.02,
            update_period_seconds=0.1,
            read_cost_seconds=None,
            idle_watts=0.0,
            idle_origin="measured",
            boundary="the board",
            probe=SensorProbe(
                duration_seconds=1.3,
                reads=900,
                stepped=True,
                update_period_seconds=0.1,
                edge_jitter_seconds=0.002,
                read_cost_p50_seconds=0.0001,
                read_cost_p99_seconds=0.0004,
                resolution_uj=1000,
                watts=80.0,
                cross_checks=(CrossCheck(1.2, 99.0, 100.0),),
                unsupported={"average power": "too old"},
            ),
            lag_seconds=0.04,
            ramp_seconds=0.03,
            neighbours=0,
            parts=(Meter(SOURCE_READ, 0.0, None, None, None, "", "a part"),),
            device="cuda:0",
        ),
        other_meters=(Meter(SOURCE_READ, 0.0, None, None, None, "", "", device="cpu"),),
        pixel_shape=(3, 224, 224),
        model_memory_limit_bytes=5,
        limits=Limits(1, 2, 3, 4, 5, 6, 7, 8, 9),
        versions={"python": "3.11"},
        hardware="two cores",
        instance_id="i-1",
        model_parameters=66_955_010,
    )


def test_an_energy_report_is_mirrored_and_its_accounts_sum_to_the_measured_total() -> None:
    message = pb.EnergyReport(
        source=SOURCE,
        since_unix_ns=1,
        until_unix_ns=2,
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
        gap_count=2,
        gap_seconds=1.5,
        recent_gaps=[
            pb.Gap(start_unix_ns=3, end_unix_ns=4, reason="froze"),
            pb.Gap(start_unix_ns=5, reason="died"),
        ],
        unknown_sequences=1,
        pending_receipts=3,
        idle_watts=12.5,
    )
    report = _replies.energy_report(message)
    assert report == EnergyReport(
        source=SOURCE_READ,
        since_unix_ns=1,
        until_unix_ns=2,
        measured_uj=1_000,
        active=(VariantEnergy("fp32", 400, 2, 14, 16), VariantEnergy("bf16", 100, 1, 7, 8)),
        warmup_uj=50,
        idle_uj=300,
        idle_shared_uj=120,
        unattributed_uj=70,
        gap_uj=30,
        pending_uj=50,
        gap_count=2,
        gap_seconds=1.5,
        recent_gaps=(Gap(3, 4, "froze"), Gap(5, None, "died")),
        unknown_sequences=1,
        pending_receipts=3,
        idle_watts=12.5,
        unknown_reason="",
    )
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
    report = _replies.energy_report(message)
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
    report = _replies.energy_report(message)
    assert (report.device, report.measured_uj) == ("cuda:0", 7)
    (other,) = report.other_devices
    assert (other.device, other.measured_uj, other.unknown_reason) == ("cpu", None, "no meter")
