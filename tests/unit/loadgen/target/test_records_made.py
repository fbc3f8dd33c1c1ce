"""Requests as bytes, and bytes as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.loadgen_data import write_images, write_tensors
from wattserve_client import Receipt
from wattserve_client.wire import from_message
from wattserve_common import dataset
from wattserve_loadgen.drive.job import LoopResult
from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.plan.load import Arm, closed
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.sweeping import records as answers
from wattserve_loadgen.target.wattserve import NativeTarget
from wattserve_loadgen.target.wire import CallFailure
from wattserve_proto.v1 import inference_pb2 as pb

CELL = Cell(5, 2, Arm("int8", "int8", "server"), closed(4), warmup_seconds=0.1, seconds=1.0)


def response(receipt_id: str, variant: str = "int8", **receipt: Any) -> pb.PredictResponse:
    logits = np.array([0.5, 1.5], dtype="<f4").tobytes()
    line = pb.ReceiptLine(tokens=3, padded_tokens=4, batch_size=8, compute_ns=900)
    return pb.PredictResponse(
        variant=variant,
        output=pb.Tensor(name="logits", datatype="FP32", shape=[1, 2], data=logits),
        receipt=pb.Receipt(receipt_id=receipt_id, lines=[line], **receipt),
        timing=pb.Timing(queue_ns=70, compute_ns=900),
    )


def settled(receipt_id: str, energy_uj: int) -> Receipt:
    answer = response(
        receipt_id,
        state=pb.ENERGY_STATE_SETTLED,
        energy_uj=energy_uj,
        energy_low_uj=energy_uj - 5,
        energy_high_uj=energy_uj + 5,
    )
    return from_message(Receipt, answer.receipt)


def make_loop(count: int, window_start_ns: int = 1_000) -> LoopResult:
    """Requests sent at 1000, 2000, ... and done 500 ns later."""
    sent = np.arange(1, count + 1) * 1_000
    index = np.arange(count)
    return LoopResult(sent, sent + 500, (), window_start_ns, int(sent[-1]), 0.0, "", request_index=index)


def records_of(
    data: dataset.Dataset, rows: list[int], loop: LoopResult, parsed: Sequence[answers.Answer]
) -> list[Record]:
    """Of requests of one row each, in this order and again."""
    loop = replace(loop, request_index=loop.request_index % len(rows))
    return answers.make_records(CELL, data, [[row] for row in rows], loop, list(parsed), {}, 0)


async def test_a_request_is_its_row_and_its_variant(tmp_path: Path) -> None:
    found = dataset.load(write_tensors(tmp_path))
    requests = NativeTarget("h:1").make_requests(found, [[2], [0]], "int8")
    wanted = [
        pb.PredictRequest(variant="int8", tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=ids)]))
        for ids in ([1, 2, 3, 4], [5, 6, 7])
    ]
    assert [pb.PredictRequest.FromString(request) for request in requests] == wanted


async def test_the_request_of_an_image_is_its_pixels_and_its_variant(tmp_path: Path) -> None:
    found = dataset.load(write_images(tmp_path))
    (asked,) = NativeTarget("h:1").make_requests(found, [[1]], "bf16")
    request = pb.PredictRequest.FromString(asked)
    (tensor,) = request.tensors.tensors
    assert (request.variant, tensor.name, tensor.datatype) == ("bf16", "pixel_values", "FP32")
    assert list(tensor.shape) == [1, 2, 4, 5]
    assert np.frombuffer(tensor.data, "<f4").tolist() == [float(value) for value in range(40, 80)]


def test_the_record_of_an_image_counts_no_tokens(tmp_path: Path) -> None:
    found = dataset.load(write_images(tmp_path))
    (record,) = records_of(found, [1], make_loop(1), [response("r0")])
    assert (record.rows, record.labels, record.tokens) == ([1], [1], None)


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("FP32", np.array([0.5, 2.5, -1.0], dtype="<f4")),
        ("FP16", np.array([0.5, 2.5, -1.0], dtype="<f2")),
        ("BF16", (np.array([0.5, 2.5, -1.0], dtype="<f4").view("<u4") >> 16).astype("<u2")),
    ],
)
def test_the_label_is_the_highest_logit_in_every_float_type(datatype: str, data: np.ndarray) -> None:
    tensor = pb.Tensor(datatype=datatype, shape=[1, 3], data=data.tobytes())
    assert answers.predicted_labels(tensor, 1) == [1]


def test_each_sequence_of_a_request_has_a_label_of_its_own() -> None:
    data = np.array([0.5, 2.5, np.nan, 0.0, 3.0, 1.0], dtype="<f4").tobytes()
    tensor = pb.Tensor(datatype="FP32", shape=[3, 2], data=data)
    assert answers.predicted_labels(tensor, 3) == [1, None, 0]
    assert answers.predicted_labels(tensor, 4) == [None] * 4


@pytest.mark.parametrize(
    "tensor",
    [
        pb.Tensor(datatype="FP32", data=np.array([1, np.nan], dtype="<f4").tobytes()),
        pb.Tensor(datatype="FP32", data=np.array([1, np.inf], dtype="<f4").tobytes()),
        pb.Tensor(datatype="FP32"),
        pb.Tensor(datatype="INT64", data=b"\0" * 16),
    ],
)
def test_an_answer_without_finite_logits_predicts_nothing(tensor: pb.Tensor) -> None:
    assert answers.predicted_labels(tensor, 1) == [None]


async def test_an_answer_by_another_variant_is_a_failure() -> None:
    outcomes = (response("r1", "fp32").SerializeToString(), CallFailure("INTERNAL", "boom"))
    assert answers.parse(outcomes, "int8", NativeTarget("h:1").read) == [
        CallFailure("WRONG_VARIANT", "asked for int8, answered by 'fp32'"),
        CallFailure("INTERNAL", "boom"),
    ]


def test_only_receipts_that_are_not_final_are_asked_for() -> None:
    parsed: list[answers.Answer] = [
        response("r1", state=pb.ENERGY_STATE_PROVISIONAL),
        response("r2", state=pb.ENERGY_STATE_SETTLED),
        response("r3", state=pb.ENERGY_STATE_UNKNOWN),
        CallFailure("INTERNAL", ""),
    ]
    assert answers.unsettled_ids(parsed) == ["r1"]


def test_a_record_joins_stamps_answer_label_and_settled_receipt(tmp_path: Path) -> None:
    data = dataset.load(write_tensors(tmp_path))
    parsed = [response("r1", state=pb.ENERGY_STATE_PROVISIONAL, energy_uj=77)]
    receipts = {"r1": settled("r1", 90)}
    (found,) = answers.make_records(CELL, data, [[1], [0]], make_loop(1), parsed, receipts, 400)
    assert (found.cell, found.block, found.arm, found.load) == (5, 2, "int8", "concurrency 4")
    assert (found.rows, found.tokens) == ([1], 2)
    assert (found.sent_ns, found.done_ns, found.in_window, found.ok, found.code) == (
        600,
        1_100,
        True,
        True,
        "OK",
    )
    assert (found.predicted, found.labels, found.receipt_id) == ([1], [1], "r1")
    assert (found.energy_uj, found.energy_low_uj, found.energy_high_uj) == (90, 85, 95)
    assert (found.energy_state, found.energy_reason) == ("settled", None)
    assert (found.batch_size, found.padded_tokens, found.queue_ns, found.compute_ns) == (8, 4, 70, 900)


def test_rows_start_again_when_the_dataset_runs_out(tmp_path: Path) -> None:
    data = dataset.load(write_tensors(tmp_path))
    parsed = [response(f"r{index}", state=pb.ENERGY_STATE_SETTLED) for index in range(5)]
    found = records_of(data, [2, 0, 1], make_loop(5), parsed)
    assert [record.rows for record in found] == [[2], [0], [1], [2], [0]]


def test_a_provisional_figure_is_never_passed_off_as_settled(tmp_path: Path) -> None:
    data = dataset.load(write_tensors(tmp_path))
    parsed = [response("r1", state=pb.ENERGY_STATE_PROVISIONAL, energy_uj=77)]
    (found,) = records_of(data, [0], make_loop(1), parsed)
    assert (found.energy_uj, found.energy_state) == (None, "provisional")
    assert found.energy_reason == "not settled in time, or no longer kept by the server"


def test_an_unknown_energy_keeps_the_servers_reason(tmp_path: Path) -> None:
    data = dataset.load(write_tensors(tmp_path))
    parsed = [response("r1", state=pb.ENERGY_STATE_UNKNOWN, unknown_reason="a meter gap")]
    (found,) = records_of(data, [0], make_loop(1), parsed)
    assert (found.energy_uj, found.energy_state, found.energy_reason) == (None, "unknown", "a meter gap")


def test_a_failed_request_keeps_code_and_message_and_has_no_receipt(tmp_path: Path) -> None:
    data = dataset.load(write_tensors(tmp_path, labels=torch.tensor([0, -1, 0])))
    loop = make_loop(2, window_start_ns=2_000)
    parsed: list[answers.Answer] = [CallFailure("INTERNAL", "boom"), CallFailure("UNAVAILABLE", "gone")]
    first, second = records_of(data, [1, 0], loop, parsed)
    assert (first.ok, first.code, first.message, first.receipt_id) == (False, "INTERNAL", "boom", None)
    assert (first.in_window, second.in_window) == (False, True)
    assert (first.labels, second.labels) == ([None], [0])


def test_a_request_of_several_sequences_is_one_record_of_all_their_rows(tmp_path: Path) -> None:
    data = dataset.load(write_tensors(tmp_path))
    logits = np.array([0.5, 1.5, 2.5, 0.5], dtype="<f4").tobytes()
    answer = response("r1", state=pb.ENERGY_STATE_SETTLED)
    answer.output.CopyFrom(pb.Tensor(name="logits", datatype="FP32", shape=[2, 2], data=logits))
    (found,) = answers.make_records(CELL, data, [[2, 1]], make_loop(1), [answer], {}, 0)
    assert (found.rows, found.tokens, found.predicted, found.labels) == ([2, 1], 6, [1, 0], [0, 1])
