"""The metrics of a real server: what a scrape says is what happened, and no caller makes it grow."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.clients.oip_stub import OipStub, infer_request
from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc
from wattserve_server.telemetry.table import all_metrics

NATIVE, OIP = "wattserve.v1.Inference", "inference.GRPCInferenceService"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3,*/*;q=0.2"
)


@dataclass
class Served:
    running: RunningServer
    channel: grpc.Channel

    @property
    def native(self) -> Any:
        return pb_grpc.InferenceStub(self.channel)

    @property
    def oip(self) -> OipStub:
        return OipStub(self.channel)

    def page(self, accept: str = "*/*") -> str:
        request = urllib.request.Request(self.running.metrics_url, headers={"Accept": accept})
        text: str = urllib.request.urlopen(request, timeout=60).read().decode()
        return text

    def families(self) -> dict[str, Metric]:
        return {each.name: each for each in text_string_to_metric_families(self.page(PROMETHEUS))}

    def values(self) -> dict[str, float]:
        lines = [line for line in self.page().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def ask(self, variant: str = "fp32", request_id: str = "", length: int = 5) -> pb.PredictResponse:
        tokens = pb.TokenInput(sequences=[pb.TokenIds(ids=[2, *[4] * length, 3])])
        asked = pb.PredictRequest(tokens=tokens, variant=variant, request_id=request_id)
        reply: pb.PredictResponse = self.native.Predict(asked, timeout=60)
        return reply

    def call(self, path: str, message: bytes) -> bytes:
        """Whatever the method, and whatever the message."""
        method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(path)
        return method(message, timeout=60)

    def settled(self, reply: pb.PredictResponse) -> pb.Receipt:
        asked = pb.GetReceiptRequest(receipt_id=reply.receipt.receipt_id, wait_until_settled=True)
        receipt: pb.Receipt = self.native.GetReceipt(asked, timeout=60)
        return receipt


def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    with (
        running_server(
            *("--model", str(folder), "--variants", "fp32,bf16", "--threads", "1"),
            *("--meter", "simulated", "--calibration-seconds", "0.2", "--max-queue-sequences", "300"),
        ) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        yield Served(running, channel)


def handled(method: str, code: str, kind: str = "unary", service: str = NATIVE) -> str:
    return (
        f'grpc_server_handled_total{{grpc_code="{code}",grpc_method="{method}",'
        f'grpc_service="{service}",grpc_type="{kind}"}}'
    )


def test_all_that_is_shown_is_declared_and_named_as_openmetrics_wants_it(server: Served) -> None:
    server.settled(server.ask())
    server.native.GetServerInfo(pb.GetServerInfoRequest())
    declared = {metric.family for metric in all_metrics()}
    shown = {name for name in server.families() if not name.startswith(("process_", "python_"))}
    assert shown <= declared
    elsewhere = ("nv_gpu_", "DCGM_", "wattserve_tenant_", "wattserve_account_book_", "wattserve_audit_")
    absent = {name for name in declared - shown if not name.startswith(elsewhere)}
    generation = {"wattserve_cache_used_bytes", "wattserve_cache_limit_bytes", "wattserve_preemptions"}
    assert absent == generation | {
        f"wattserve_meter_{name}"
        for name in ("cross_check_ratio", "part_joules", "part_idle_watts", "raw_joules")
    }


def test_an_exemplar_names_a_receipt_that_can_be_asked_for(server: Served) -> None:
    receipt = server.settled(server.ask(request_id="the-one"))
    families = server.families()
    for name in ("wattserve_request_duration_seconds", "wattserve_request_energy_joules"):
        found = [
            sample.exemplar
            for sample in families[name].samples
            if sample.exemplar and sample.exemplar.labels.get("request_id") == "the-one"
        ]
        assert [each.labels["receipt_id"] for each in found] == [receipt.receipt_id]
        stamp = found[0].timestamp
        assert stamp is not None
        assert abs(float(stamp) - time.time()) < 60
    assert found[0].value == receipt.energy_uj / 1e6
    assert "receipt_id" not in server.page()


def test_joules_per_request_and_per_token_come_from_counters_that_agree(server: Served) -> None:
    replies = [server.ask(variant, length=length) for variant in ("fp32", "bf16") for length in (3, 20, 50)]
    for reply in replies:
        assert server.settled(reply).state == pb.ENERGY_STATE_SETTLED
    until("all receipts are final", lambda: server.values()["wattserve_pending_receipts"] == 0)
    values = server.values()
    for variant in ("fp32", "bf16"):
        own = f'{{device="cpu",variant="{variant}"}}'
        joules = values[f"wattserve_energy_active_joules_total{own}"]
        assert values[f'wattserve_request_energy_joules_sum{{variant="{variant}"}}'] == pytest.approx(joules)
        tokens = values[f'wattserve_tokens_total{{variant="{variant}"}}']
        assert values[f"wattserve_settled_tokens_total{own}"] == tokens >= 3 + 20 + 50 + 6
        ran = values[f'wattserve_batch_sequences_sum{{variant="{variant}"}}']
        assert values[f"wattserve_settled_sequences_total{own}"] == ran


def test_no_scrape_sees_active_energy_that_is_on_no_receipt(server: Served) -> None:
    """Also while charges are on their way from the meter's thread to the receipts."""
    residual = 'wattserve_energy_receipts_residual_joules{device="cpu"}'
    seen = []
    for _ in range(4):  # a page is made once a second
        for _ in range(3):
            server.ask()
        seen.append(server.values()[residual])
    assert set(seen) == {0.0}
    assert server.values()['wattserve_filter_restarts_total{device="cpu"}'] == 0


def test_the_queue_has_a_limit_and_the_meter_was_read_just_now(server: Served) -> None:
    begun = time.time()

    def is_of_now(key: str) -> bool:
        return server.values()[key] > begun

    for name in ("last_reading", "last_change"):
        key = f'wattserve_meter_{name}_timestamp_seconds{{device="cpu"}}'
        until(f"the {name} is of now", partial(is_of_now, key))
        assert server.values()[key] < time.time() + 0.1
    values = server.values()
    assert values["wattserve_queue_limit_sequences"] == 300
    assert values["wattserve_queue_sequences"] == 0
    busy = values['wattserve_device_busy_seconds_total{device="cpu"}']
    server.ask()
    assert server.values()['wattserve_device_busy_seconds_total{device="cpu"}'] > busy > 0
    assert not [name for name in values if name.startswith("nv_gpu_")]


def test_calls_are_counted_whichever_service_they_are_of(server: Served) -> None:
    before = server.values()
    server.ask()
    with pytest.raises(grpc.RpcError):
        server.ask("no-such-variant")
    with pytest.raises(grpc.RpcError):
        server.call(f"/{NATIVE}/Predict", b"\xff\xff rubbish")
    server.oip.ModelInfer(infer_request("tiny", input_ids=np.array([[2, 4, 3]])))
    health = health_pb2_grpc.HealthStub(server.channel)
    health.Check(health_pb2.HealthCheckRequest())
    watch = health.Watch(health_pb2.HealthCheckRequest())
    next(watch)
    watching = handled("Watch", "Canceled", "server_stream", "grpc.health.v1.Health")
    assert watching not in server.values() or server.values()[watching] == before.get(watching, 0)
    watch.cancel()
    until("the watch is counted", lambda: server.values().get(watching, 0) == before.get(watching, 0) + 1)
    after = server.values()
    for name in (
        handled("Predict", "OK"),
        handled("Predict", "NotFound"),
        handled("Predict", "InvalidArgument"),
        handled("ModelInfer", "OK", service=OIP),
        handled("Check", "OK", service="grpc.health.v1.Health"),
    ):
        assert after[name] == before.get(name, 0) + 1, name


def test_a_stream_of_requests_is_one_call_and_as_many_requests(server: Served) -> None:
    requests = 'wattserve_requests_total{code="OK",variant="fp32"}'
    streams = handled("PredictStream", "OK", "bidi_stream")
    before = server.values()
    tokens = pb.TokenInput(sequences=[pb.TokenIds(ids=[2, 4, 3])])
    asked = [pb.PredictRequest(tokens=tokens, request_id=str(number)) for number in range(20)]
    assert len(list(server.native.PredictStream(iter(asked), timeout=60))) == 20
    after = server.values()
    assert after[requests] == before[requests] + 20
    assert after[streams] == before.get(streams, 0) + 1


HOSTILE = (
    "",
    " ",
    "x" * 5000,
    'a"b\\c\nd{}',
    "\u202e\u00e9\U0001f600",
    "fp32 ",
    "FP32",
    "none",
    "../fp32",
    "%n%s",
)


def test_no_caller_makes_series(server: Served) -> None:
    def refused(ask: Callable[[], object]) -> None:
        with pytest.raises(grpc.RpcError):
            ask()

    def attack(name: str) -> pb.PredictResponse:
        wrong = f"{name}?"
        refused(lambda: server.ask(wrong))
        refused(lambda: server.oip.ModelInfer(infer_request(wrong, input_ids=np.array([[2, 3]]))))
        refused(lambda: server.oip.ModelInfer(infer_request(f"tiny@{wrong}", input_ids=np.array([[2, 3]]))))
        refused(lambda: server.oip.ModelMetadata(oip.ModelMetadataRequest(name=wrong)))
        refused(lambda: server.native.GetReceipt(pb.GetReceiptRequest(receipt_id=wrong)))
        refused(lambda: server.native.LoadVariant(pb.LoadVariantRequest(variant=wrong)))
        refused(lambda: server.native.UnloadVariant(pb.UnloadVariantRequest(variant=wrong)))
        method = re.sub("[^a-z]", "", name) or "nothing"
        refused(lambda: server.call(f"/{NATIVE}/{method}", b""))
        refused(lambda: server.call(f"/{method}/Predict", b""))
        return server.ask(request_id=name[:200])

    def series() -> set[str]:
        return {name for name in server.values() if not name.startswith(("process_", "python_"))}

    server.settled(attack("once"))  # every code and method has its series now
    server.native.GetServerInfo(pb.GetServerInfoRequest())
    for variant in ("fp32", "bf16"):
        server.settled(server.ask(variant))
        while f'wattserve_provisional_error_ratio_count{{variant="{variant}"}}' not in series():
            server.settled(server.ask(variant))  # until its law is known, and foretells
    before = series()
    for reply in [attack(name) for name in (*HOSTILE, *(f"variant-{number}" for number in range(100)))]:
        server.settled(reply)
    assert series() == before
    text = server.page(PROMETHEUS)
    for name in HOSTILE[2:5]:
        assert name[:30] not in text
    list(text_string_to_metric_families(text))  # still well-formed
    found = set(re.findall(r'variant="([^"]*)"', "\n".join(before)))
    assert found == {"fp32", "bf16", "none"}


@pytest.mark.parametrize("path", ["/metrics/", "/favicon.ico", "/metrics/fp32"])
def test_the_metrics_port_answers_its_own_pages_only(server: Served, path: str) -> None:
    address = server.running.metrics_url.removesuffix("/metrics") + path
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(address, timeout=60)
    assert caught.value.code == 404
    caught.value.close()
