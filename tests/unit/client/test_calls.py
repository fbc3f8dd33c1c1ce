"""Single calls and watches against a scripted server, each asked of `Client` and of `AsyncClient`."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import grpc
import numpy as np
import pytest

from tests.fixtures.both_clients import BOTH
from tests.fixtures.fake_server.scripted import Refuse, ScriptedServer, asked, reply, until_it_ends
from wattserve_client import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotPossible,
    ServerError,
    Unavailable,
    WattserveError,
)
from wattserve_proto.v1 import inference_pb2 as pb


def test_a_prediction_sends_what_was_asked_and_returns_what_was_answered(server: Any, client: Any) -> None:
    answer = client.predict(["a film", "b"], variant="bf16", request_id="mine", wait_for_settled_energy=True)
    assert (answer.label, answer.energy_joules, answer.request_id) == ("positive", 0.012345, "mine")
    assert asked(server, "Predict") == [
        pb.PredictRequest(
            request_id="mine",
            variant="bf16",
            text=pb.TextInput(texts=["a film", "b"]),
            wait_for_settled_energy=True,
        )
    ]


def test_the_other_calls_send_and_return_theirs(server: Any, client: Any) -> None:
    server.script["GetReceipt"] = [pb.Receipt(receipt_id="r-1", energy_uj=5)]
    server.script["GetServerInfo"] = [pb.ServerInfo(model_name="demo")]
    server.script["GetEnergyReport"] = [pb.EnergyReport(measured_uj=7)]
    assert client.receipt("r-1", wait_until_settled=True).energy_uj == 5
    assert client.server_info().model_name == "demo"
    assert client.energy_report().measured_uj == 7
    assert asked(server, "GetReceipt") == [pb.GetReceiptRequest(receipt_id="r-1", wait_until_settled=True)]


def test_receipts_are_found_by_the_callers_own_request_id(server: Any, client: Any) -> None:
    receipts = [pb.Receipt(receipt_id="r-2"), pb.Receipt(receipt_id="r-1", energy_uj=5)]
    server.script["FindReceipts"] = [pb.FindReceiptsResponse(receipts=receipts, older_left_out=True)]
    found = client.find_receipts("mine", wait_until_settled=True)
    assert [(each.receipt_id, each.energy_uj) for each in found.receipts] == [("r-2", None), ("r-1", 5)]
    assert found.older_left_out
    assert asked(server, "FindReceipts") == [
        pb.FindReceiptsRequest(request_id="mine", wait_until_settled=True)
    ]
    with pytest.raises(TypeError, match="request_id is an int"):
        client.find_receipts(7)


def test_ready_is_what_the_health_service_says(server: Any, client: Any) -> None:
    assert client.is_ready()
    server.say_health(serving=False)
    assert not client.is_ready()
    server.stop()
    assert not client.is_ready()


def test_a_connection_lost_under_a_prediction_leaves_its_fate_open(server: Any, client: Any) -> None:
    def cut(request: Any, call: Any) -> Any:
        call.refuse(Refuse("UNAVAILABLE", "Stream removed (Socket closed)"))

    server.script |= {"Predict": [cut], "UnloadVariant": [cut]}
    with pytest.raises(Unavailable, match=r"^connection lost before the answer; the request may have run"):
        client.predict("a film")
    with pytest.raises(Unavailable, match=r"^connection lost before the answer \(Stream removed"):
        client.unload_variant("bf16")


def test_images_are_sent_as_pixel_values(server: Any, client: Any) -> None:
    pixels = np.ones((8, 3, 224, 224))
    answer = client.predict_images(pixels, variant="bf16", request_id="mine", wait_for_settled_energy=True)
    assert (answer.label, answer.request_id) == ("positive", "mine")
    (request,) = asked(server, "Predict")
    assert (request.variant, request.wait_for_settled_energy) == ("bf16", True)
    (tensor,) = request.tensors.tensors
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("pixel_values", "FP32", [8, 3, 224, 224])
    assert tensor.data == pixels.astype("<f4").tobytes()


def test_a_stream_takes_images_like_any_other_input(server: Any, client: Any) -> None:
    def sizes(requests: Any, call: Any) -> Any:
        for request in requests:
            (tensor,) = request.tensors.tensors
            yield pb.PredictStreamResponse(
                request_id=request.request_id, response=reply(str(list(tensor.shape)), request)
            )

    server.script["PredictStream"] = [sizes]
    answers = client.predict_many([np.ones((3, 2, 2)), np.ones((2, 3, 2, 2))])
    assert [answer.result().label for answer in answers] == ["[1, 3, 2, 2]", "[2, 3, 2, 2]"]


def test_pixels_that_are_none_are_refused_before_anything_is_sent(server: Any, client: Any) -> None:
    with pytest.raises(TypeError, match=r"uint8, shape .*: pixels must be floats"):
        client.predict_images(np.zeros((3, 2, 2), np.uint8))
    with pytest.raises(ValueError, match="image 0 holds values that are not finite"):
        client.predict_images(np.full((3, 2, 2), np.inf))
    assert server.calls == {}


@pytest.mark.parametrize("method", ["load_variant", "unload_variant"])
def test_variants_are_loaded_and_let_go_by_name(server: Any, client: Any, method: str) -> None:
    rpc = "LoadVariant" if method == "load_variant" else "UnloadVariant"
    server.script[rpc] = [
        pb.VariantInfo(name="int8", state=pb.VARIANT_STATE_READY),
        Refuse("FAILED_PRECONDITION", "no room"),
    ]
    found = getattr(client, method)("int8")
    assert (found.name, found.state) == ("int8", "ready")
    assert [request.variant for request in asked(server, rpc)] == ["int8"]
    with pytest.raises(NotPossible, match="no room"):
        getattr(client, method)("int8")


def test_inputs_that_cannot_be_sent_are_refused_before_anything_is_sent(server: Any, client: Any) -> None:
    with pytest.raises(TypeError):
        client.predict([1.0])
    with pytest.raises(ValueError, match="empty"):
        client.predict([])
    assert server.calls == {}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_ARGUMENT", InvalidRequest),
        ("NOT_FOUND", NotFound),
        ("FAILED_PRECONDITION", NotPossible),
        ("UNAVAILABLE", Unavailable),
        ("CANCELLED", Cancelled),
        ("INTERNAL", ServerError),
    ],
)
def test_a_refusal_is_raised_from_the_grpc_error_with_the_servers_words(
    server: Any, client: Any, code: str, kind: type[WattserveError]
) -> None:
    server.script["Predict"] = [Refuse(code, "because")]
    with pytest.raises(kind) as caught:
        client.predict("a film")
    assert (caught.value.message, caught.value.code, caught.value.target) == ("because", code, server.target)
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_an_answer_that_makes_no_sense_is_a_server_error(server: Any, client: Any) -> None:
    server.script["Predict"] = [
        pb.PredictResponse(output=pb.Tensor(name="logits", datatype="FP32", shape=[3], data=b"\0"))
    ]
    with pytest.raises(ServerError, match="tensor 'logits' has 1 bytes, which do not fit FP32"):
        client.predict("a film")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("predict", ["a film"]),
        ("receipt", ["r-1"]),
        ("find_receipts", ["mine"]),
        ("server_info", []),
        ("energy_report", []),
        ("load_variant", ["int8"]),
        ("unload_variant", ["int8"]),
    ],
)
def test_every_single_call_has_the_clients_deadline_or_its_own(
    server: Any, client: Any, method: str, arguments: list[str]
) -> None:
    getattr(client, method)(*arguments)
    getattr(client, method)(*arguments, timeout_s=300)
    (calls,) = server.calls.values()
    assert 20 < calls[0].seconds_left < 40
    assert 200 < calls[1].seconds_left < 400


def test_an_expired_deadline_is_its_own_exception_and_the_server_learns_of_it(
    server: Any, client: Any
) -> None:
    server.script["Predict"] = [until_it_ends]
    with pytest.raises(DeadlineExceeded):
        client.predict("a film", timeout_s=1)
    assert server.calls["Predict"][0].ended.wait(timeout=60)
    assert len(server.calls["Predict"]) == 1


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_no_server_is_unavailable_and_names_the_target(kind: Any) -> None:
    with ScriptedServer() as gone:
        target = gone.target
    with kind(target) as client, pytest.raises(Unavailable, match=f"UNAVAILABLE from {target}"):
        client.predict("a film")


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_a_read_that_no_server_took_says_nothing_of_what_ran(kind: Any) -> None:
    with ScriptedServer() as gone:
        target = gone.target
    with (
        kind(target, retry=False) as client,
        pytest.raises(Unavailable, match=r"^no server took the call \("),
    ):
        client.energy_report()


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_an_http_port_is_told_as_one(kind: Any) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with (
            kind(f"127.0.0.1:{server.server_port}", retry=False) as client,
            pytest.raises(Unavailable, match=r"^what answers there is not gRPC \(the metrics port\?\);"),
        ):
            client.server_info()
        server.shutdown()


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_a_deadline_too_short_to_reach_anyone_is_told_as_it_was_asked(server: Any, kind: Any) -> None:
    server.script["Predict"] = [until_it_ends]
    with (
        kind(server.target) as client,
        pytest.raises(DeadlineExceeded, match=r"^no answer within 0\.0001 s"),
    ):
        client.predict("a film", timeout_s=0.0001)


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_a_deadline_beyond_grpcs_calendar_has_not_passed(server: Any, kind: Any) -> None:
    with kind(server.target) as client:
        assert client.predict("a film", timeout_s=1e15).receipt.receipt_id


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), 10**400])
def test_a_deadline_that_is_none_is_refused(kind: Any, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="must be a positive, finite number of seconds"):
        kind(timeout_s=timeout_s)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_arguments_of_the_wrong_kind_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="timeout_s is '30'"):
        kind(timeout_s="30")
    with pytest.raises(ValueError, match="target is ''"):
        kind("")


def test_an_async_client_may_be_made_before_there_is_an_event_loop(server: ScriptedServer) -> None:
    client = AsyncClient(server.target)

    async def use() -> str:
        async with client:
            return (await client.predict("a film")).label

    assert asyncio.run(use()) == "positive"


def test_an_async_client_in_a_second_event_loop_is_told_what_to_do(server: ScriptedServer) -> None:
    client = AsyncClient(server.target)

    async def ask() -> str:
        return (await client.predict("a film")).label

    assert asyncio.run(ask()) == "positive"
    with pytest.raises(RuntimeError, match="another event loop: make one within each"):
        asyncio.run(ask())
    asyncio.run(client.close())


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_a_closed_client_refuses_new_calls_and_the_docs_say_so(server: ScriptedServer, kind: Any) -> None:
    with kind(server.target) as client:
        client.close()
        for call in (lambda: client.predict("a film"), lambda: list(client.predict_many(["a film"]))):
            with pytest.raises(RuntimeError, match="this client is closed"):
                call()
    assert all("RuntimeError" in (each.close.__doc__ or "") for each in (Client, AsyncClient))


def test_one_client_serves_several_threads(server: ScriptedServer) -> None:
    with Client(server.target) as client:
        labels: list[str] = []
        threads = [
            threading.Thread(target=lambda: labels.append(client.predict("a film").label)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert labels == ["positive"] * 8
