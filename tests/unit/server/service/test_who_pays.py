"""How a caller learns what a call cost that got no answer: by its error, or by the id of its request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from tests.clients.oip_stub import infer_request, told
from tests.clients.oip_world import NAME, ready
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.reading import Quality, Source
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.queued import Answer, Order
from wattserve_server.errors import InferenceError, InvalidRequest, NotFound, OverloadedError
from wattserve_server.service import prediction
from wattserve_server.service import receipts as methods
from wattserve_server.service.caller import CALLER, Caller, of_peer
from wattserve_server.service.checks import MAX_REQUEST_ID
from wattserve_server.service.inference import asked_of, receipt_message
from wattserve_server.service.keys import new_key
from wattserve_server.service.methods import CALL, CountedCall
from wattserve_server.service.native import InferenceService
from wattserve_server.service.oip import OipService
from wattserve_server.service.prediction import DeviceMeter, Host, Predictor, Serving
from wattserve_server.service.quota import Quotas
from wattserve_server.service.receipts import MOST_FOUND, MOST_LINES, MOST_WATCHED

CONTEXT = SimpleNamespace(time_remaining=lambda: None)
IDS = pb.TokenInput(sequences=[pb.TokenIds(ids=[2, 3])])
NATIVE = pb.PredictRequest(request_id="mine", tokens=IDS)
OIP = infer_request(NAME, input_ids=np.array([[2, 3]], np.int64))


@pytest.fixture(autouse=True)
def caller() -> Iterator[None]:
    """Somebody on this machine, without a key, and his call."""
    token, call = CALLER.set(of_peer("unix:")), CALL.set(Mock(spec=CountedCall))
    yield
    CALL.reset(call)
    CALLER.reset(token)


@pytest.fixture
def host() -> Host:
    made = ready()
    made.engine.book = ReceiptBook(60.0, 1000, lambda receipt: None)
    metered: Any = SimpleNamespace(source=Source("simulated", "simulated", Quality.SIMULATED))
    made.meters["cpu"] = DeviceMeter("cpu", metered, pb.MeterInfo(), {ACCELERATOR: metered})
    made.charging["cpu"] = {ACCELERATOR: metered}
    return made


@pytest.fixture
def native(host: Host) -> InferenceService:
    return InferenceService(*wired(host))


@pytest.fixture
def open_inference(host: Host) -> OipService:
    return OipService(*wired(host), cast(Any, None))


def wired(host: Host) -> tuple[Serving, Predictor]:
    observer: Any = SimpleNamespace(failed=lambda *told: None, tenant_asked=lambda *told: None)
    serving = Serving(host)
    return serving, Predictor(serving, observer, Quotas())


def ran(host: Host, request_id: str = "mine", sequences: int = 1) -> Receipt:
    """The receipt of a request that has run, not settled."""
    receipt = host.engine.book.open(request_id, "fp32", "cpu")
    receipt.lines += [Line(receipt, 2, batch_size=1, windows=1) for _ in range(sequences)]
    receipt.end(Outcome.CANCELLED)
    host.engine.book.ended(receipt)
    return receipt


def settle(host: Host, receipt: Receipt) -> None:
    host.engine.book.settle("cpu", ACCELERATOR, [Charge(line, 70, 0.0, 7) for line in receipt.lines], 0)


async def each(*requests: Any) -> AsyncIterator[Any]:
    for request in requests:
        yield request


async def find(native: InferenceService, request_id: str, wait: bool = False) -> pb.FindReceiptsResponse:
    request = pb.FindReceiptsRequest(request_id=request_id, wait_until_settled=wait)
    return await native.FindReceipts(request, CONTEXT)


async def test_all_receipts_of_a_request_id_are_found_newest_first(
    host: Host, native: InferenceService
) -> None:
    settled, provisional = ran(host), ran(host)
    ran(host, "theirs")
    settle(host, settled)
    found = await find(native, "mine")
    assert [each.receipt_id for each in found.receipts] == [provisional.receipt_id, settled.receipt_id]
    assert [each.state for each in found.receipts] == [
        pb.ENERGY_STATE_PROVISIONAL,
        pb.ENERGY_STATE_SETTLED,
    ]
    assert {each.outcome for each in found.receipts} == {pb.OUTCOME_CANCELLED}
    assert not found.older_left_out


async def test_what_is_not_settled_can_be_waited_for(host: Host, native: InferenceService) -> None:
    receipts = [ran(host), ran(host)]
    asked = asyncio.create_task(find(native, "mine", wait=True))
    for receipt in receipts:
        await asyncio.sleep(0)
        assert not asked.done()
        settle(host, receipt)
    assert [each.energy_uj for each in (await asked).receipts] == [70, 70]


async def test_the_wait_ends_at_the_settlement_limit(
    host: Host, native: InferenceService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "SETTLEMENT_LIMIT_S", 0.0)
    ran(host), ran(host)
    found = await find(native, "mine", wait=True)
    assert {each.state for each in found.receipts} == {pb.ENERGY_STATE_PROVISIONAL}


async def test_an_answer_is_bounded_and_says_what_it_leaves_out(host: Host, native: InferenceService) -> None:
    receipts = [ran(host) for _ in range(MOST_FOUND)]
    assert not (await find(native, "mine")).older_left_out
    newest = ran(host)
    found = await find(native, "mine")
    assert [found.receipts[0].receipt_id, found.receipts[-1].receipt_id] == [
        newest.receipt_id,
        receipts[1].receipt_id,
    ]
    assert found.older_left_out


async def test_receipts_of_many_sequences_are_fewer_in_an_answer(
    host: Host, native: InferenceService
) -> None:
    for sequences in (7, MOST_LINES // 2 + 1, MOST_LINES // 2, 3 * MOST_LINES):
        ran(host, sequences=sequences)
    found = await find(native, "mine")
    assert [len(each.lines) for each in found.receipts] == [3 * MOST_LINES, MOST_LINES // 2]
    assert found.older_left_out


@pytest.mark.parametrize("way", ["found", "watched"])
async def test_a_long_answer_leaves_the_event_loop_time_for_others_before_the_next(
    host: Host, native: InferenceService, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    rests: list[tuple[float, bool]] = []
    clock_s = 0.0

    async def rest(seconds: float) -> None:
        rests.append((seconds, native.telling.locked()))

    def message(receipt: Receipt, *sources: Any) -> pb.Receipt:
        nonlocal clock_s
        clock_s += 3e-6 * len(receipt.lines)
        return receipt_message(receipt, *sources)

    async def ask(receipt: Receipt) -> None:
        if way == "found":
            await find(native, receipt.request_id)
        else:
            request = pb.WatchReceiptsRequest(receipt_ids=[receipt.receipt_id])
            assert [told.receipt_id async for told in native.WatchReceipts(request, CONTEXT)]

    short, long = ran(host, "one"), ran(host, sequences=10 * MOST_LINES)
    for receipt in (short, long):
        settle(host, receipt)
    monkeypatch.setattr(methods, "sleep", rest)
    monkeypatch.setattr(methods, "receipt_message", message)
    monkeypatch.setattr(methods, "time", SimpleNamespace(perf_counter=lambda: clock_s))
    await ask(short)
    assert rests == []
    await ask(long)
    ((seconds, is_alone),) = rests
    assert seconds == pytest.approx(3 * 10 * MOST_LINES * 3e-6)
    assert is_alone


@pytest.mark.parametrize(
    "request_id", ["", "x" * (MAX_REQUEST_ID + 1), "order\0"], ids=["empty", "too long", "NUL"]
)
async def test_an_id_that_no_receipt_can_have_is_refused(native: InferenceService, request_id: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await find(native, request_id)
    assert caught.value.field == "request_id"


async def test_the_longest_id_is_found(host: Host, native: InferenceService) -> None:
    longest = "\N{GRINNING FACE}" * MAX_REQUEST_ID
    ran(host, longest)
    assert len((await find(native, longest)).receipts) == 1


def test_a_request_id_that_postgresql_does_not_keep_is_refused(host: Host) -> None:
    """One alone would have kept a book there from being written for as long as it waited."""
    with pytest.raises(InvalidRequest, match="holds the character NUL"):
        asked_of(pb.PredictRequest(request_id="order\0", text=pb.TextInput(texts=["a"])), host)


async def test_an_id_of_which_nothing_ran_is_not_found(native: InferenceService) -> None:
    with pytest.raises(NotFound):
        await find(native, "mine")


async def test_one_call_watches_so_many_receipts_and_no_more(native: InferenceService) -> None:
    request = pb.WatchReceiptsRequest(receipt_ids=["x"] * (MOST_WATCHED + 1))
    with pytest.raises(InvalidRequest, match="at most 10000 are watched") as caught:
        await anext(aiter(native.WatchReceipts(request, CONTEXT)))
    assert caught.value.field == "receipt_ids"


async def test_every_hundred_receipts_that_a_call_watches_cost_a_request(native: InferenceService) -> None:
    _, key = new_key("shop", ["read-own"], 1.0, 0, [])
    shop = Caller("shop", key.may, "shop", key)
    token = CALLER.set(shop)
    try:
        request = pb.WatchReceiptsRequest(receipt_ids=[str(each) for each in range(301)])
        with pytest.raises(NotFound):
            await anext(aiter(native.WatchReceipts(request, CONTEXT)))
    finally:
        CALLER.reset(token)
    with pytest.raises(OverloadedError, match="has used up its 1 requests a second"):
        native._predictor.count(shop)


def fails(host: Host) -> None:
    """Every request runs and fails."""

    async def predict(*asked: object) -> None:
        error = InferenceError("the model failed")
        error.receipt_id = "r-7"
        raise error

    cast(Any, host.engine).predict = predict


@pytest.mark.parametrize("protocol", ["native", "native stream", "oip", "oip stream"])
async def test_the_device_is_told_whose_share_a_request_takes(
    host: Host, native: InferenceService, open_inference: OipService, protocol: str
) -> None:
    told: list[object] = []

    async def predict(items: object, hosted: object, order: Order) -> None:
        told.append(order.caller)
        raise InferenceError("the model failed")

    engine = cast(Any, host.engine)
    engine.predict, engine.check_room = predict, lambda *asked: told.append(asked[3])
    token = CALLER.set(of_peer("ipv4:10.1.2.3:40000"))
    service: Any = native if protocol.startswith("native") else open_inference
    request: Any = NATIVE if service is native else OIP
    if protocol.endswith("stream"):
        stream = service.PredictStream if service is native else service.ModelStreamInfer
        assert [reply async for reply in stream(each(request), CONTEXT)]
    else:
        with pytest.raises(InferenceError):
            await (service.Predict if service is native else service.ModelInfer)(request, CONTEXT)
    CALLER.reset(token)
    assert told == ["ipv4:10.1.2.3"] * 2


def three_of(form: str) -> Any:
    """A request of three sequences; of an empty form of one that does not say how many."""
    if form == "oip":
        shape = oip.ModelInferRequest.InferInputTensor(name="input_ids", datatype="INT64", shape=[3, 1])
        return oip.ModelInferRequest(model_name=OIP.model_name, inputs=[shape])
    if form == "oip without a shape":
        nothing = oip.ModelInferRequest.InferInputTensor(name="input_ids")
        return oip.ModelInferRequest(model_name=OIP.model_name, inputs=[nothing])
    request = pb.PredictRequest()
    for _ in range(3):
        if form == "tokens":
            request.tokens.sequences.add(ids=[2])
        elif form == "texts":
            request.text.texts.append("a film")
    if form == "tensors":
        request.tensors.tensors.add(name="input_ids", datatype="INT64", shape=[3, 1])
    elif form == "tensors without a shape":
        request.tensors.tensors.add(name="input_ids")
    return request


@pytest.mark.parametrize(
    ("form", "count"),
    [
        ("tokens", 3),
        ("texts", 3),
        ("tensors", 3),
        ("tensors without a shape", 1),
        ("nothing", 1),
        ("oip", 3),
        ("oip without a shape", 1),
    ],
)
async def test_many_sequences_are_counted_and_refused_before_they_are_looked_at(
    host: Host,
    native: InferenceService,
    open_inference: OipService,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    count: int,
) -> None:
    asked_for: list[int] = []

    def refuse(*asked: Any) -> None:
        asked_for.append(asked[4])
        raise OverloadedError("the queue is full")

    looks = Mock()
    monkeypatch.setattr("wattserve_server.service.inference.asked_of", looks)
    monkeypatch.setattr("wattserve_server.service.oip.asked_of", looks)
    cast(Any, host.engine).check_room = refuse
    call: Any = open_inference.ModelInfer if form.startswith("oip") else native.Predict
    with pytest.raises(OverloadedError):
        await call(three_of(form), CONTEXT)
    assert asked_for == [count]
    assert not looks.called


async def test_a_request_that_fails_on_a_stream_names_its_receipt(
    host: Host, native: InferenceService
) -> None:
    fails(host)
    replies = [reply async for reply in native.PredictStream(each(NATIVE), CONTEXT)]
    assert [reply.error.receipt_id for reply in replies] == ["r-7"]
    assert replies[0].error.message.endswith("receipt r-7")


async def test_a_request_of_open_inference_that_fails_on_a_stream_names_its_receipt(
    host: Host, open_inference: OipService
) -> None:
    fails(host)
    (reply,) = [reply async for reply in open_inference.ModelStreamInfer(each(OIP), CONTEXT)]
    assert told(reply.infer_response) == {"error_reason": "INFERENCE_FAILED", "receipt_id": "r-7"}
    assert reply.error_message == "[INTERNAL] the model failed; what ran is charged: receipt r-7"


async def test_a_refusal_on_a_stream_names_no_receipt(
    native: InferenceService, open_inference: OipService
) -> None:
    wrong = pb.PredictRequest(request_id="mine")
    (reply,) = [reply async for reply in native.PredictStream(each(wrong), CONTEXT)]
    assert (reply.error.reason, reply.error.receipt_id) == ("INVALID_REQUEST", "")
    request = oip.ModelInferRequest(model_name=NAME)
    (other,) = [reply async for reply in open_inference.ModelStreamInfer(each(request), CONTEXT)]
    assert "receipt_id" not in told(other.infer_response)


@pytest.mark.parametrize("protocol", ["native", "open inference"])
async def test_a_reply_that_cannot_be_written_names_the_receipt(
    host: Host, native: InferenceService, open_inference: OipService, protocol: str
) -> None:
    receipt = ran(host)

    async def predict(items: object, hosted: object, order: Order) -> Answer:
        order.on_open(receipt)
        return Answer(receipt, [], 0, 0, 0)  # no rows: nothing can be made of it

    cast(Any, host.engine).predict = predict
    call: Any = native.Predict(NATIVE, CONTEXT)
    if protocol != "native":
        call.close()
        call = open_inference.ModelInfer(OIP, CONTEXT)
    with pytest.raises((IndexError, ValueError)) as caught:
        await call
    assert cast(Any, caught.value).receipt_id == receipt.receipt_id


async def test_of_receipts_that_the_account_book_alone_has_one_is_held_at_a_time(
    host: Host, native: InferenceService
) -> None:
    read: list[str] = []

    class Stored:
        keeps = "for ever"

        async def receipt(self, receipt_id: str, sees: Any) -> bytes | None:
            read.append(receipt_id)
            return pb.Receipt(receipt_id=receipt_id).SerializeToString() if receipt_id != "none" else None

    host.stored = Stored()  # type: ignore[assignment]
    told = native.WatchReceipts(pb.WatchReceiptsRequest(receipt_ids=["a", "b"]), CONTEXT)
    assert (await anext(told)).receipt_id == "a"
    assert read == ["a", "b", "a"]
    assert (await anext(told)).receipt_id == "b"
    with pytest.raises(NotFound):
        await anext(native.WatchReceipts(pb.WatchReceiptsRequest(receipt_ids=["a", "none"]), CONTEXT))


async def test_who_does_not_read_is_not_answered_once_it_is_his_turn(
    host: Host, native: InferenceService
) -> None:
    """He may have asked before his part was full."""

    class Full:
        def check_unread(self) -> None:
            raise OverloadedError("of replies", "message_bytes")

    class Summed:
        async def usage(self, *asked: Any) -> pb.UsageReport:
            return pb.UsageReport()

    ran(host)
    before = CALL.set(Full())  # type: ignore[arg-type]
    try:
        with pytest.raises(OverloadedError):
            await find(native, "mine")
        host.stored = Summed()  # type: ignore[assignment]
        with pytest.raises(OverloadedError):
            await native.GetUsage(pb.GetUsageRequest(), CONTEXT)
    finally:
        CALL.reset(before)
