"""Both protocols lead to one engine: the same answers, the same ledger, nothing left open by either."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.clients.oip_stub import OipStub, infer_request, rows, told
from tests.fixtures.models import save_classifier
from tests.fixtures.serve_with_held_lane import PROGRAM, held
from tests.fixtures.server import RunningServer, running_server
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

VARIANTS = ("fp32", "bf16")
LENGTHS: tuple[tuple[int, ...], ...] = ((3,), (1, 30, 2, 64), (9,) * 7, (17, 16, 15), (64,))
LONG = np.full((240, 60), 4, np.int64)


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there, no batch runs."""
    return tmp_path_factory.mktemp("hold") / "lane"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, hold: Path) -> Iterator[RunningServer]:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    with running_server(
        *("--model", str(folder), "--variants", ",".join(VARIANTS), "--threads", "1"),
        *("--meter", "simulated", "--calibration-seconds", "0.5", "--max-batch-sequences", "2"),
        *("--max-queue-ms", "600000"),
        program=PROGRAM,
        extra={"HELD_LANE_FILE": str(hold)},
    ) as running:
        yield running


@dataclass
class Both:
    oip: OipStub
    native: Any

    def settled(self, receipt_id: str) -> pb.Receipt:
        asked = pb.GetReceiptRequest(receipt_id=receipt_id, wait_until_settled=True)
        receipt: pb.Receipt = self.native.GetReceipt(asked, timeout=60)
        assert receipt.state == pb.ENERGY_STATE_SETTLED
        return receipt

    def report(self) -> pb.EnergyReport:
        report: pb.EnergyReport = self.native.GetEnergyReport(pb.GetEnergyReportRequest())
        assert report.pending_receipts == 0
        return report


@pytest.fixture(scope="module")
def both(server: RunningServer) -> Iterator[Both]:
    with grpc.insecure_channel(server.address) as channel:
        yield Both(OipStub(channel), pb_grpc.InferenceStub(channel))


@pytest.fixture
async def channel(server: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(server.address) as made:
        yield made


def sequences(lengths: tuple[int, ...]) -> list[list[int]]:
    return [[4 + (length + place) % 6 for place in range(length)] for length in lengths]


def padded(of: list[list[int]]) -> dict[str, np.ndarray]:
    longest = max(map(len, of))
    return {
        "attention_mask": np.array([[1] * len(ids) + [0] * (longest - len(ids)) for ids in of]),
        "input_ids": np.array([ids + [0] * (longest - len(ids)) for ids in of]),
    }


def typed(request: oip.ModelInferRequest) -> oip.ModelInferRequest:
    """The same request, its elements in fields."""
    made = oip.ModelInferRequest()
    made.CopyFrom(request)
    for tensor, raw in zip(made.inputs, request.raw_input_contents, strict=True):
        tensor.contents.int64_contents.extend(np.frombuffer(raw, np.int64))
    del made.raw_input_contents[:]
    return made


def active(report: pb.EnergyReport) -> dict[str, tuple[int, int, int]]:
    return {each.variant: (each.active_uj, each.sequences, each.tokens) for each in report.active}


def grown(before: pb.EnergyReport, after: pb.EnergyReport) -> dict[str, tuple[int, ...]]:
    """What each variant was charged in between: microjoules, sequences, tokens."""
    old = active(before)
    return {
        name: tuple(int(each) for each in np.subtract(values, old[name]))
        for name, values in active(after).items()
    }


def test_a_sweep_by_either_protocol_gives_the_same_answers_and_the_same_ledger(both: Both) -> None:
    start = both.report()
    answers: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}
    charged: dict[str, int] = {}
    for variant in VARIANTS:
        for lengths in LENGTHS:
            ids = sequences(lengths)
            tokens = pb.TokenInput(sequences=[pb.TokenIds(ids=each) for each in ids])
            reply = both.native.Predict(pb.PredictRequest(variant=variant, tokens=tokens))
            answers[variant, lengths] = np.frombuffer(reply.output.data, "<f4").reshape(reply.output.shape)
            receipt = both.settled(reply.receipt.receipt_id)
            charged[variant] = charged.get(variant, 0) + receipt.energy_uj
    by_native = grown(start, middle := both.report())
    assert {name: uj for name, (uj, _, _) in by_native.items()} == charged
    charged = dict.fromkeys(VARIANTS, 0)
    for number, (variant, lengths) in enumerate(answers):
        model, asked = ("tiny", {"variant": variant}) if number % 2 else (f"tiny@{variant}", {})
        request = infer_request(model, asked, **padded(sequences(lengths)))
        reply = both.oip.ModelInfer(typed(request) if number % 3 else request)
        np.testing.assert_allclose(rows(reply), answers[variant, lengths], atol=1e-5)
        assert told(reply)["variant"] == variant
        receipt = both.settled(str(told(reply)["receipt_id"]))
        assert receipt.variant == variant
        assert [line.tokens for line in receipt.lines] == list(lengths)
        charged[variant] += receipt.energy_uj
    by_oip = grown(middle, both.report())
    assert {name: uj for name, (uj, _, _) in by_oip.items()} == charged
    wanted = (sum(map(len, LENGTHS)), sum(map(sum, LENGTHS)))
    for variant in VARIANTS:
        assert by_native[variant][1:] == by_oip[variant][1:] == wanted


def test_a_settled_reply_says_what_its_receipt_says_afterwards(both: Both) -> None:
    for variant in VARIANTS:
        request = infer_request(f"tiny@{variant}", {"energy": "settled"}, text=["good film", "a bad film"])
        found = told(both.oip.ModelInfer(request))
        receipt = both.settled(str(found["receipt_id"]))
        for field in ("energy_uj", "energy_low_uj", "energy_high_uj", "idle_share_uj", "variant"):
            assert found[field] == getattr(receipt, field)
        assert found["energy_state"] == "settled"
        assert found["energy_source"] == receipt.source.name
        assert (found["energy_method"], found["energy_quality"]) == (receipt.source.method, "simulated")
        assert found["tokens"] == sum(line.tokens for line in receipt.lines) == 4 + 5
        assert found["padded_tokens"] == sum(line.padded_tokens for line in receipt.lines)
        assert found["batch_size"] == max(line.batch_size for line in receipt.lines)


def test_a_provisional_reply_says_what_its_receipt_remembers(both: Both) -> None:
    found: dict[str, Any] = {}
    while "energy_uj" not in found:  # a calibration as short as the tests' has yet to learn
        if found:
            both.settled(str(found["receipt_id"]))
        found = told(both.oip.ModelInfer(infer_request("tiny", input_ids=np.array([[2, 4, 3]]))))
        assert found["energy_state"] == "provisional"
    assert found["energy_uj"] == both.settled(str(found["receipt_id"])).provisional_energy_uj


def test_the_ledger_adds_up_to_the_meter(both: Both) -> None:
    report = both.report()
    accounts = (report.warmup_uj, report.idle_uj, report.unattributed_uj, report.gap_uj, report.pending_uj)
    assert report.measured_uj == sum(each.active_uj for each in report.active) + sum(accounts)
    assert (report.gap_count, report.unknown_sequences) == (0, 0)


async def until_pending(native: Any, receipts: int) -> None:
    """Wait until so many requests are accepted, their energy not final."""
    async with asyncio.timeout(60):
        while (await native.GetEnergyReport(pb.GetEnergyReportRequest())).pending_receipts != receipts:
            pass


def metric(server: RunningServer, name: str) -> float:
    with urllib.request.urlopen(server.metrics_url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + " ")), 0.0)


def fails(statistics: oip.ModelStatisticsResponse) -> int:
    return statistics.model_stats[0].inference_stats.fail.count


def waiting(ids: np.ndarray, **given: int) -> oip.ModelInferRequest:
    """A request that lets all others pass."""
    return infer_request("tiny", {"priority": 3, **given}, input_ids=ids)


def call(calls: OipStub, priority: int, ids: np.ndarray = LONG) -> asyncio.Task[Any]:
    async def answered() -> Any:
        return await calls.ModelInfer(infer_request("tiny", {"priority": priority}, input_ids=ids))

    return asyncio.create_task(answered())


async def long_calls(calls: OipStub, native: Any, priority: int) -> list[asyncio.Task[Any]]:
    """Three that the server has accepted."""
    tasks = [call(calls, priority) for _ in range(3)]
    await until_pending(native, len(tasks))
    return tasks


async def test_a_cancelled_call_leaves_the_queue_and_nothing_open(
    server: RunningServer, channel: grpc.aio.Channel, hold: Path
) -> None:
    calls, native = OipStub(channel), pb_grpc.InferenceStub(channel)
    cancelled = 'wattserve_requests_total{code="CANCELLED",variant="fp32"}'
    asked = oip.ModelStatisticsRequest(name="tiny@fp32")
    await until_pending(native, 0)
    had_failed, had_cancelled = fails(await calls.ModelStatistics(asked)), metric(server, cancelled)
    start = await native.GetEnergyReport(pb.GetEnergyReportRequest())
    with held(hold):
        busy = await long_calls(calls, native, priority=1)
        going = calls.ModelInfer(waiting(LONG[:200]))
        streamed = calls.ModelStreamInfer(iter([waiting(LONG[:100])]))
        await until_pending(native, 3 + 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls.ModelInfer(waiting(LONG[:1], timeout=5000))
        queued = metric(server, "wattserve_queue_sequences")
        going.cancel()
        streamed.cancel()
        await until_pending(native, 3)
    assert [rows(reply).shape for reply in await asyncio.gather(*busy)] == [(240, 3)] * 3
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert queued > 300  # behind the busy ones
    await until_pending(native, 0)
    end = await native.GetEnergyReport(pb.GetEnergyReportRequest())
    assert grown(start, end)["fp32"][1] == 3 * 240  # of the others nothing ran
    assert metric(server, "wattserve_queue_sequences") == 0
    assert metric(server, cancelled) - had_cancelled == 2
    assert fails(await calls.ModelStatistics(asked)) - had_failed == 3


async def until_running(native: Any, request_id: str) -> None:
    """Wait until something of that request runs."""
    async with asyncio.timeout(60):
        while True:
            try:
                await native.FindReceipts(pb.FindReceiptsRequest(request_id=request_id))
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise


@pytest.mark.parametrize("protocol", ["native", "open inference"])
async def test_what_a_call_cost_that_was_cancelled_while_it_ran_is_found_by_its_id(
    channel: grpc.aio.Channel, protocol: str
) -> None:
    calls, native = OipStub(channel), pb_grpc.InferenceStub(channel)
    request = infer_request("tiny", input_ids=LONG)
    receipt = pb.Receipt()
    for number in range(20):  # a busy machine may have answered before this test comes to cancel
        request.id = f"left by {protocol}, {number}"
        if protocol == "native":
            tokens = pb.TokenInput(sequences=[pb.TokenIds(ids=row) for row in LONG])
            call = native.Predict(pb.PredictRequest(request_id=request.id, tokens=tokens))
        else:
            call = calls.ModelInfer(request)
        await until_running(native, request.id)
        call.cancel()
        asked = pb.FindReceiptsRequest(request_id=request.id, wait_until_settled=True)
        (receipt,) = (await native.FindReceipts(asked)).receipts
        if receipt.outcome != pb.OUTCOME_COMPLETED:
            break
    assert (receipt.outcome, receipt.state) == (pb.OUTCOME_CANCELLED, pb.ENERGY_STATE_SETTLED)
    ran = [line.batch_size for line in receipt.lines if line.batch_size]
    assert 0 < len(ran) < len(LONG)
    assert receipt.energy_uj == sum(line.energy_uj for line in receipt.lines)
    assert await native.GetReceipt(pb.GetReceiptRequest(receipt_id=receipt.receipt_id)) == receipt


async def test_an_urgent_request_overtakes_those_that_wait(channel: grpc.aio.Channel, hold: Path) -> None:
    calls, native = OipStub(channel), pb_grpc.InferenceStub(channel)
    await until_pending(native, 0)
    answered: list[asyncio.Task[Any]] = []
    with held(hold):
        tasks = await long_calls(calls, native, priority=3)
        tasks.append(urgent := call(calls, 1, LONG[:1]))
        for task in tasks:
            task.add_done_callback(answered.append)
        await until_pending(native, len(tasks))
    await asyncio.gather(*tasks)
    assert answered[0] is urgent
