"""What replies become in Python: arrays, enums, and energies that are None rather than 0."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import numpy as np
import pytest

from tests.fixtures.scripted_server import reply
from wattserve_client import (
    EnergyQuality,
    EnergyReport,
    EnergySource,
    EnergyState,
    Gap,
    Limits,
    Meter,
    Outcome,
    Receipt,
    ReceiptLine,
    ServerInfo,
    Variant,
    VariantEnergy,
    _replies,
)
from wattserve_client.results import format_joules
from wattserve_proto.v1 import inference_pb2 as pb

SOURCE = pb.EnergySource(
    name="nvml:GPU-5", method="apportioned counter", quality=pb.ENERGY_QUALITY_MEASURED, note="board"
)
SOURCE_READ = EnergySource("nvml:GPU-5", "apportioned counter", EnergyQuality.MEASURED, "board")


@pytest.mark.parametrize(
    ("datatype", "data", "values", "dtype"),
    [
        ("FP32", struct.pack("<2f", 1.5, -2.0), [1.5, -2.0], np.float32),
        ("FP16", struct.pack("<2e", 1.5, -2.0), [1.5, -2.0], np.float16),
        ("BF16", b"\xc0\x3f\x00\xc0", [1.5, -2.0], np.float32),
        ("INT64", struct.pack("<2q", 2**40, -1), [2**40, -1], np.int64),
        ("INT32", struct.pack("<2i", 7, -1), [7, -1], np.int32),
        ("UINT8", b"\x00\xff", [0, 255], np.uint8),
    ],
)
def test_a_tensor_becomes_an_array_of_its_values(
    datatype: str, data: bytes, values: list[float], dtype: type
) -> None:
    array = _replies.array(pb.Tensor(name="x", datatype=datatype, shape=[1, 2], data=data))
    assert array.tolist() == [values]
    assert array.dtype == np.dtype(dtype)
    array[0, 0] = 1  # the caller's own


def test_bfloat16_keeps_its_infinities_and_nan() -> None:
    array = _replies.array(pb.Tensor(datatype="BF16", shape=[3], data=b"\x80\x7f\x80\xff\xc0\x7f"))
    assert array[:2].tolist() == [float("inf"), float("-inf")]
    assert np.isnan(array[2])


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (pb.Tensor(name="x", datatype="FP64", shape=[1], data=bytes(8)), "unknown datatype 'FP64'"),
        (pb.Tensor(name="x", datatype="FP32", shape=[2], data=bytes(4)), "4 bytes, which do not fit FP32"),
        (pb.Tensor(name="x", datatype="FP32", shape=[-1, -1], data=bytes(4)), "do not fit FP32 of shape"),
        (pb.Tensor(), "unknown datatype ''"),
    ],
)
def test_a_tensor_that_makes_no_sense_is_a_value_error(tensor: pb.Tensor, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        _replies.array(tensor)


def test_a_prediction_carries_the_label_the_scores_the_logits_and_the_joules() -> None:
    message = reply("positive", pb.PredictRequest(request_id="mine", variant="bf16"))
    message.timing.CopyFrom(pb.Timing(tokenize_ns=1, queue_ns=2, compute_ns=3, total_ns=6))
    answer = _replies.prediction(message)
    assert (answer.request_id, answer.variant, answer.output_name) == ("mine", "bf16", "logits")
    assert answer.output.tolist() == [[-1.5, 2.5]]
    assert (answer.label, answer.labels) == ("positive", ("positive",))
    assert answer.classifications[0].label_index == 1
    assert answer.classifications[0].scores.dtype == np.float32
    assert answer.classifications[0].scores.tolist() == [0.25, 0.75]
    assert answer.energy_joules == 0.012345
    assert dataclasses.astuple(answer.timing) == (1, 2, 3, 6)


def test_label_refuses_to_choose_among_several_sequences() -> None:
    message = reply("positive")
    message.classifications.append(pb.Classification(label="negative"))
    answer = _replies.prediction(message)
    assert answer.labels == ("positive", "negative")
    with pytest.raises(ValueError, match="has 2 labels, so `label` says nothing"):
        _ = answer.label


def test_an_answer_without_a_receipt_has_unknown_energy_not_zero() -> None:
    message = reply("positive")
    message.ClearField("receipt")
    answer = _replies.prediction(message)
    assert answer.energy_joules is None
    assert answer.receipt.state is EnergyState.UNSPECIFIED
    assert str(answer.receipt) == (
        "energy unknown: the server gave no reason (unspecified, of unspecified quality by an unnamed source)"
    )


def test_a_full_receipt_is_mirrored() -> None:
    message = pb.Receipt(
        receipt_id="r-1",
        request_id="mine",
        variant="int8",
        device="cuda:0",
        outcome=pb.OUTCOME_COMPLETED,
        state=pb.ENERGY_STATE_SETTLED,
        source=SOURCE,
        energy_uj=300,
        energy_low_uj=250,
        energy_high_uj=350,
        idle_share_uj=40,
        idle_policy="by time",
        split_rule="fixed part equally",
        lines=[
            pb.ReceiptLine(
                energy_uj=300, idle_share_uj=40, tokens=7, padded_tokens=8, batch_size=2, compute_ns=9
            ),
            pb.ReceiptLine(tokens=5),
        ],
        provisional_energy_uj=280,
        created_unix_ns=1_700_000_000_000_000_000,
        warnings=["another process used the device"],
        proxy="weights rounded to int8, products in fp32",
        unverified=True,
    )
    receipt = _replies.receipt(message)
    assert receipt == Receipt(
        receipt_id="r-1",
        request_id="mine",
        variant="int8",
        device="cuda:0",
        outcome=Outcome.COMPLETED,
        state=EnergyState.SETTLED,
        source=SOURCE_READ,
        energy_uj=300,
        energy_low_uj=250,
        energy_high_uj=350,
        idle_share_uj=40,
        idle_policy="by time",
        split_rule="fixed part equally",
        unknown_reason="",
        lines=(ReceiptLine(300, 40, 7, 8, 2, 9), ReceiptLine(None, None, 5, 0, 0, 0)),
        provisional_energy_uj=280,
        created_unix_ns=1_700_000_000_000_000_000,
        warnings=("another process used the device",),
        proxy="weights rounded to int8, products in fp32",
        unverified=True,
    )
    assert str(receipt) == (
        "0.0003 J (settled, measured by nvml:GPU-5; 95 % 0.00025-0.00035 J; "
        "PROXY: weights rounded to int8, products in fp32; unverified precision; "
        "warning: another process used the device)"
    )
    assert receipt.settled
    assert (receipt.energy_joules, receipt.energy_low_joules, receipt.energy_high_joules) == (
        0.0003,
        0.00025,
        0.00035,
    )
    assert (receipt.idle_share_joules, receipt.provisional_energy_joules) == (0.00004, 0.00028)
    assert (receipt.lines[0].energy_joules, receipt.lines[0].idle_share_joules) == (0.0003, 0.00004)


def test_a_measured_zero_stays_a_zero_and_an_absent_energy_stays_none() -> None:
    assert _replies.receipt(pb.Receipt(energy_uj=0)).energy_joules == 0.0
    assert _replies.receipt(pb.Receipt()).energy_joules is None


def test_enum_values_newer_than_this_client_are_unspecified() -> None:
    receipt = _replies.receipt(
        pb.Receipt.FromString(
            pb.Receipt(outcome=99, state=99, source=pb.EnergySource(quality=99)).SerializeToString()  # type: ignore[arg-type]
        )
    )
    assert (receipt.outcome, receipt.state, receipt.source.quality) == ("unspecified",) * 3


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            pb.Receipt(
                state=pb.ENERGY_STATE_SETTLED,
                source=pb.EnergySource(name="estimate", quality=pb.ENERGY_QUALITY_ESTIMATED),
                energy_uj=12_345,
                energy_low_uj=11_000,
                energy_high_uj=13_000,
            ),
            "0.0123 J (settled, estimated by estimate; 95 % 0.011-0.013 J)",
        ),
        (
            pb.Receipt(state=pb.ENERGY_STATE_PROVISIONAL, source=SOURCE, energy_uj=2_500_000),
            "2.5 J (provisional, measured by nvml:GPU-5)",
        ),
        (
            pb.Receipt(
                state=pb.ENERGY_STATE_UNKNOWN,
                source=pb.EnergySource(name="none", quality=pb.ENERGY_QUALITY_NONE),
                unknown_reason="this server has no meter",
            ),
            "energy unknown: this server has no meter (unknown, no meter)",
        ),
        (
            pb.Receipt(
                state=pb.ENERGY_STATE_SETTLED,
                source=pb.EnergySource(name="simulated", quality=pb.ENERGY_QUALITY_SIMULATED),
                energy_uj=7,
                outcome=pb.OUTCOME_CANCELLED,
            ),
            "0.000007 J (settled, simulated by simulated; request cancelled)",
        ),
    ],
)
def test_a_printed_receipt_says_how_far_its_figure_may_be_trusted(message: pb.Receipt, text: str) -> None:
    assert str(_replies.receipt(message)) == text


@pytest.mark.parametrize(
    ("state", "read"),
    [
        (pb.VARIANT_STATE_READY, "ready"),
        (pb.VARIANT_STATE_UNLOADED, "unloaded"),
        (pb.VARIANT_STATE_LOADING, "loading"),
        (pb.VARIANT_STATE_FAILED, "failed"),
        (pb.VARIANT_STATE_UNSPECIFIED, "unspecified"),
    ],
)
def test_a_variants_state_is_a_word(state: Any, read: str) -> None:
    assert _replies.variant(pb.VariantInfo(state=state)).state == read


@pytest.mark.parametrize(
    ("uj", "text"),
    [
        (0, "0"),
        (1, "0.000001"),
        (999, "0.000999"),
        (12_345, "0.0123"),
        (100_000, "0.1"),
        (999_999, "1"),
        (1_234_567, "1.23"),
        (10_000_000, "10"),
        (123_456_789, "123"),
        (1_200_000_000_000, "1200000"),
    ],
)
def test_joules_are_printed_with_three_digits_and_no_exponent(uj: int, text: str) -> None:
    assert format_joules(uj) == text


def test_results_cannot_be_changed() -> None:
    receipt = _replies.receipt(pb.Receipt(energy_uj=5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        receipt.energy_uj = 4  # type: ignore[misc]
    assert not hasattr(receipt, "__dict__")


def test_every_field_of_the_contract_has_a_place_in_the_results() -> None:
    """A field added to the proto and forgotten here fails."""
    pairs = {
        pb.Receipt: Receipt,
        pb.ReceiptLine: ReceiptLine,
        pb.EnergySource: EnergySource,
        pb.ServerInfo: ServerInfo,
        pb.VariantInfo: Variant,
        pb.Limits: Limits,
        pb.MeterInfo: Meter,
        pb.EnergyReport: EnergyReport,
        pb.VariantEnergy: VariantEnergy,
        pb.Gap: Gap,
    }
    for message, result in pairs.items():
        on_the_wire = {each.name for each in message.DESCRIPTOR.fields}
        assert on_the_wire == {each.name for each in dataclasses.fields(result)}, message.DESCRIPTOR.name
