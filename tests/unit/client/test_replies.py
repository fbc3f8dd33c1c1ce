"""What replies become in Python: arrays, enums, and energies that are None rather than 0."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest

from tests.fixtures.fake_server.scripted import reply
from wattserve_client import EnergyState, Prediction, Receipt
from wattserve_client.results import format_joules
from wattserve_client.wire import array, from_message
from wattserve_proto.v1 import inference_pb2 as pb

SOURCE = pb.EnergySource(
    name="nvml:GPU-5", method="apportioned counter", quality=pb.ENERGY_QUALITY_MEASURED, note="board"
)


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
    values_read = array(pb.Tensor(name="x", datatype=datatype, shape=[1, 2], data=data))
    assert values_read.tolist() == [values]
    assert values_read.dtype == np.dtype(dtype)
    values_read[0, 0] = 1  # the caller's own


def test_bfloat16_keeps_its_infinities_and_nan() -> None:
    values_read = array(pb.Tensor(datatype="BF16", shape=[3], data=b"\x80\x7f\x80\xff\xc0\x7f"))
    assert values_read[:2].tolist() == [float("inf"), float("-inf")]
    assert np.isnan(values_read[2])


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
        array(tensor)


def test_a_prediction_carries_the_label_the_scores_the_logits_and_the_joules() -> None:
    message = reply("positive", pb.PredictRequest(request_id="mine", variant="bf16"))
    message.timing.CopyFrom(pb.Timing(tokenize_ns=1, queue_ns=2, compute_ns=3, total_ns=6))
    answer = from_message(Prediction, message)
    assert (answer.request_id, answer.variant, answer.output_name) == ("mine", "bf16", "logits")
    assert answer.output.tolist() == [[-1.5, 2.5]]
    assert (answer.label, answer.labels) == ("positive", ("positive",))
    assert answer.classifications[0].label_index == 1
    assert answer.classifications[0].scores.dtype == np.float32
    assert answer.classifications[0].scores.tolist() == [0.25, 0.75]
    assert answer.energy_joules == 0.012345
    assert dataclasses.astuple(answer.timing) == (1, 2, 3, 6, None)


def test_label_refuses_to_choose_among_several_sequences() -> None:
    message = reply("positive")
    message.classifications.append(pb.Classification(label="negative"))
    answer = from_message(Prediction, message)
    assert answer.labels == ("positive", "negative")
    with pytest.raises(ValueError, match="has 2 labels, so `label` says nothing"):
        _ = answer.label


def test_an_answer_without_a_receipt_has_unknown_energy_not_zero() -> None:
    message = reply("positive")
    message.ClearField("receipt")
    answer = from_message(Prediction, message)
    assert answer.energy_joules is None
    assert answer.receipt.state is EnergyState.UNSPECIFIED
    assert str(answer.receipt) == (
        "energy unknown: the server gave no reason (unspecified, of unspecified quality by an unnamed source)"
    )


def test_a_full_receipt_says_all_of_it_in_words_and_in_joules() -> None:
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
    receipt = from_message(Receipt, message)
    assert str(receipt) == (
        "0.0003 J + 0.00004 J idle (settled, apportioned from joules measured by nvml:GPU-5; "
        "95 % 0.00025-0.00035 J; "
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
    assert from_message(Receipt, pb.Receipt(energy_uj=0)).energy_joules == 0.0
    assert from_message(Receipt, pb.Receipt()).energy_joules is None


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
            "0.0123 J (settled, estimated from CPU time; 95 % 0.011-0.013 J)",
        ),
        (
            pb.Receipt(state=pb.ENERGY_STATE_PROVISIONAL, source=SOURCE, energy_uj=2_500_000),
            "2.5 J (provisional, predicted from joules measured by nvml:GPU-5)",
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
            pb.Receipt(state=pb.ENERGY_STATE_UNKNOWN, source=SOURCE, unknown_reason="the meter was lost"),
            "energy unknown: the meter was lost (unknown, measured by nvml:GPU-5)",
        ),
        (
            pb.Receipt(
                state=pb.ENERGY_STATE_SETTLED,
                source=pb.EnergySource(
                    name="simulated", method="apportioned simulation", quality=pb.ENERGY_QUALITY_SIMULATED
                ),
                energy_uj=7,
                outcome=pb.OUTCOME_CANCELLED,
            ),
            "0.000007 J (settled, apportioned from joules simulated; request cancelled)",
        ),
    ],
)
def test_a_printed_receipt_says_how_far_its_figure_may_be_trusted(message: pb.Receipt, text: str) -> None:
    assert str(from_message(Receipt, message)) == text


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
    receipt = from_message(Receipt, pb.Receipt(energy_uj=5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        receipt.energy_uj = 4  # type: ignore[misc]  # frozen, which is the test
    assert not hasattr(receipt, "__dict__")
