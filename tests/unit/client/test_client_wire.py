"""Every field of the protocol's replies has a place of its name in Python, and holds the same there.

The fields are taken from the protocol itself, so that one added there is tested here."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.present import present
from wattserve_client import (
    Classification,
    CrossCheck,
    EnergyReport,
    FoundReceipts,
    Gap,
    Limits,
    Meter,
    Prediction,
    Receipt,
    ReceiptLine,
    ReceiptPart,
    SensorProbe,
    ServerInfo,
    Timing,
    Variant,
    VariantEnergy,
)
from wattserve_client.generations import (
    GenerationPiece,
    Scores,
    SequenceScore,
    TokenLogprob,
    TokenScore,
)
from wattserve_client.results import EnergySource, GenerationEnergy, Usage
from wattserve_client.usage import AccountBreak, CounterUsage, UsageReport, UsageRow
from wattserve_client.wire import from_message, to_message
from wattserve_proto.v1 import inference_pb2 as pb

PLACES: dict[type[Message], type] = {
    pb.Classification: Classification,
    pb.CrossCheck: CrossCheck,
    pb.EnergyReport: EnergyReport,
    pb.EnergySource: EnergySource,
    pb.FindReceiptsResponse: FoundReceipts,
    pb.Gap: Gap,
    pb.GenerationEnergy: GenerationEnergy,
    pb.GenerationPiece: GenerationPiece,
    pb.Limits: Limits,
    pb.MeterInfo: Meter,
    pb.Receipt: Receipt,
    pb.ReceiptLine: ReceiptLine,
    pb.ReceiptPart: ReceiptPart,
    pb.ScoreResponse: Scores,
    pb.SensorProbe: SensorProbe,
    pb.SequenceScore: SequenceScore,
    pb.ServerInfo: ServerInfo,
    pb.Timing: Timing,
    pb.TokenLogprob: TokenLogprob,
    pb.TokenScore: TokenScore,
    pb.Usage: Usage,
    pb.VariantEnergy: VariantEnergy,
    pb.VariantInfo: Variant,
    pb.UsageReport: UsageReport,
    pb.UsageRow: UsageRow,
    pb.CounterUsage: CounterUsage,
    pb.AccountBreak: AccountBreak,
}
# A tensor is an array and its name; a Generation is put together of a whole stream.
IN_PARTS: tuple[type[Message], ...] = (
    *(pb.Tensor, pb.PredictResponse),
    *(pb.GenerateResponse, pb.GenerationEnd),
)
ASKED = ("Request", "Input", "TokenIds", "Sampling")  # what a client sends
ON_A_STREAM: tuple[type[Message], ...] = (pb.PredictError, pb.PredictStreamResponse)  # an Answer, or an error


MAY_LACK = ("wattserve.v1.MeterInfo.probe", "wattserve.v1.Receipt.generation")  # messages


def test_every_message_has_a_place_or_is_known_to_have_none() -> None:
    told = {name for name in pb.DESCRIPTOR.message_types_by_name if not name.endswith(ASKED)}
    assert told == {kind.DESCRIPTOR.name for kind in (*PLACES, *IN_PARTS, *ON_A_STREAM)}


@pytest.mark.parametrize(("message", "kind"), [*PLACES.items(), (pb.PredictResponse, Prediction)])
def test_every_field_has_a_place_of_its_name(message: type[Message], kind: type) -> None:
    more = {"output_name"} if kind is Prediction else set()
    on_wire = {field.name for field in message.DESCRIPTOR.fields}
    assert on_wire | more == {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", PLACES)
@settings(max_examples=30)
@given(random=st.randoms(use_true_random=False))
def test_what_was_read_is_what_was_said_and_can_be_said_again(kind: type[Message], random: Random) -> None:
    message = made_up(kind(), random)
    value: Any = from_message(PLACES[kind], message)
    compare(value, message)
    compare(value, to_message(value, kind()))


def test_a_gap_that_is_still_open_has_no_end() -> None:
    assert from_message(Gap, pb.Gap(start_unix_ns=5, end_unix_ns=0)).end_unix_ns is None


def test_words_newer_than_this_client_are_unspecified() -> None:
    newer = pb.Receipt(source=pb.EnergySource())
    newer.MergeFromString(
        bytes([5 << 3, 99, 6 << 3, 99, 7 << 3 | 2, 2, 3 << 3, 99])
    )  # outcome, state, quality
    receipt = from_message(Receipt, newer)
    assert (newer.outcome, newer.state, newer.source.quality) == (99, 99, 99)
    assert (receipt.outcome, receipt.state, receipt.source.quality) == ("unspecified",) * 3


def made_up(message: Any, random: Random, depth: int = 2) -> Any:
    """`message`, with each field filled or left out by chance."""
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.3:
            continue
        place = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            place[f"key {random.random()}"] = "value"
        elif field.message_type is not None:
            for _ in range(random.randint(0, 2) if field.is_repeated else 1):
                if depth:
                    made_up(place.add() if field.is_repeated else place, random, depth - 1)
            if not field.is_repeated:
                place.SetInParent()
        elif field.is_repeated:
            place.extend(scalar(field, random) for _ in range(random.randint(0, 3)))
        else:
            setattr(message, field.name, scalar(field, random))
    return message


def scalar(field: FieldDescriptor, random: Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return f"{field.name} {random.random()}"
        case FieldDescriptor.CPPTYPE_BOOL:
            return random.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice((0.0, random.random()))
        case FieldDescriptor.CPPTYPE_FLOAT:
            return random.randint(0, 16) / 16
        case FieldDescriptor.CPPTYPE_ENUM:
            return random.choice(present(field.enum_type).values).number
        case _:
            return random.choice((0, 1, random.randint(0, 2**31 - 1)))


def compare(value: Any, message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        read, said = getattr(value, field.name), getattr(message, field.name)
        if field.has_presence and field.message_type is None and not message.HasField(field.name):
            assert read is None, field.full_name
        elif field.full_name in MAY_LACK and not message.HasField(field.name):
            assert read is None
        elif field.full_name == "wattserve.v1.Gap.end_unix_ns":
            assert read == (said or None)
        elif field.full_name == "wattserve.v1.EnergyReport.active" and not message.HasField("measured_uj"):
            assert [each.variant for each in read] == [each.variant for each in said]
            assert {each.active_uj for each in read} <= {None}
        elif field.enum_type is not None:
            word = field.enum_type.values_by_number[said].name
            assert word.endswith(f"_{read.name}")
            assert read == read.name.lower()
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            assert read == dict(said)
        elif field.message_type is not None:
            for part, told in zip(*((read, said) if field.is_repeated else ([read], [said])), strict=True):
                compare(part, told)
        elif field.is_repeated:
            assert isinstance(read, tuple | np.ndarray)
            assert list(read) == list(said), field.full_name
        else:
            assert read == said, field.full_name
