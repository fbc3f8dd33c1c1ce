"""What the server says of itself in Python: its variants, meter, limits and ledger."""

from __future__ import annotations

from wattserve_client import (
    EnergyQuality,
    EnergyReport,
    EnergySource,
    Gap,
    Limits,
    Meter,
    ServerInfo,
    Variant,
    VariantEnergy,
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
            )
        ],
        meter=pb.MeterInfo(
            source=SOURCE,
            poll_period_seconds=0.02,
            update_period_seconds=0.1,
            idle_watts=0.0,
            idle_origin="measured",
            boundary="the board",
        ),
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
        variants=(Variant("bf16", "cpu", "bfloat16", True, "oneDNN", "head in fp32", 10, 0.5, 4),),
        meter=Meter(SOURCE_READ, 0.02, 0.1, None, 0.0, "measured", "the board"),
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
        pending_uj=80,
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
        pending_uj=80,
        gap_count=2,
        gap_seconds=1.5,
        recent_gaps=(Gap(3, 4, "froze"), Gap(5, None, "died")),
        unknown_sequences=1,
        pending_receipts=3,
        idle_watts=12.5,
        unknown_reason="",
    )
    assert (report.measured_joules, report.active_joules, report.warmup_joules) == (0.001, 0.0005, 0.00005)
    assert (report.idle_joules, report.idle_shared_joules) == (0.0003, 0.00012)
    assert (report.unattributed_joules, report.pending_joules) == (0.00007, 0.00008)
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
    assert figures == [None] * 7
    assert report.idle_watts is None
