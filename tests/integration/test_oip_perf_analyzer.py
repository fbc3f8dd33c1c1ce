"""perf_analyzer's calls, in its order and with its arithmetic: what it reads, subtracts, and gives up over.

Its messages are replayed: not every machine has the binary, which tests/clients/test_perf_analyzer.py runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest

from tests.clients.oip_stub import OipStub, infer_request, rows, told
from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server
from wattserve_proto.oip import open_inference_pb2 as oip

IDS = np.array([[1, 2, 3, 4]])
EQUAL = ("compute_input", "compute_infer", "compute_output")
DURATIONS = ("success", "queue", *EQUAL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "demo")
    with running_server(
        *("--model", str(folder), "--variants", "fp32,bf16"),
        *("--meter", "none", "--threads", "1"),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as made:
        yield made


@dataclass
class Window:
    """The server's side of one measurement: what its statistics grew by."""

    sequences: int
    batches: int
    counts: dict[str, int]
    ns: dict[str, int]


@dataclass
class PerfAnalyzer:
    """What it does for a model, step by step. Each part of an id is one of its own counters."""

    calls: Any
    model: str
    metadata: oip.ModelMetadataResponse = field(init=False)
    config: oip.ModelConfig = field(init=False)
    statistics: list[oip.ModelStatistics] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metadata = self.calls.ModelMetadata(oip.ModelMetadataRequest(name=self.model))
        self.config = self.calls.ModelConfig(oip.ModelConfigRequest(name=self.model)).config
        extensions = self.calls.ServerMetadata(oip.ServerMetadataRequest()).extensions
        assert "statistics" in extensions  # else it prints no figures of the server's
        self.measure()
        self._ids = itertools.count()

    def measure(self) -> None:
        """It asks for the statistics of one name, and takes those of every version that it is told of."""
        (found,) = self.calls.ModelStatistics(oip.ModelStatisticsRequest(name=self.model)).model_stats
        assert found.name == self.model
        assert int(found.version) == 1  # it reads it by stoll, which ends it for anything else
        self.statistics.append(found)

    def request(self, parameters: dict[str, bool | int | str], **inputs: Any) -> oip.ModelInferRequest:
        """Inputs in the order of the alphabet, as bytes; every output by its name."""
        every = {**parameters, "triton_enable_empty_final_response": True}
        made = infer_request(self.model, every, **dict(sorted(inputs.items())))
        for output in self.metadata.outputs:
            made.outputs.add(name=output.name)
        made.id = f"0_{next(self._ids)}"
        return made

    def window(self) -> Window:
        """Between the last two measurements."""
        before, after = self.statistics[-2:]
        old, new = before.inference_stats, after.inference_stats
        return Window(
            after.inference_count - before.inference_count,
            after.execution_count - before.execution_count,
            {name: getattr(new, name).count - getattr(old, name).count for name in DURATIONS},
            {name: getattr(new, name).ns - getattr(old, name).ns for name in DURATIONS},
        )


def check(window: Window, requests: int, sequences: int) -> None:
    assert (window.counts["success"], window.sequences) == (requests, sequences)
    assert 1 <= window.batches <= sequences
    assert window.counts["queue"] == requests  # set, though 0 ns may have been waited
    assert {window.counts[name] for name in EQUAL} == {requests}  # "failed to obtain ... " otherwise
    assert all(value >= 0 for value in window.ns.values())
    assert sum(window.ns[name] for name in ("queue", *EQUAL)) <= window.ns["success"]  # the rest is overhead


def test_shapes_fit_together(channel: grpc.Channel) -> None:
    """With a batch in front in the metadata, without in the configuration: it adds -1 itself to check."""
    tool = PerfAnalyzer(OipStub(channel), "demo")
    assert tool.config.max_batch_size > 0
    pairs: Sequence[tuple[Any, Any]] = (
        *zip(tool.metadata.inputs, tool.config.input, strict=True),
        *zip(tool.metadata.outputs, tool.config.output, strict=True),
    )
    for described, configured in pairs:
        assert described.name == configured.name
        assert list(described.shape) == [-1, *configured.dims]
        kind = oip.DataType.Name(configured.data_type).removeprefix("TYPE_")
        assert described.datatype == {"STRING": "BYTES"}.get(kind, kind)
    assert all(each.optional for each in tool.config.input)  # or it would want data for every one of them
    assert not tool.config.model_transaction_policy.decoupled
    assert tool.config.WhichOneof("scheduling_choice") == "dynamic_batching"  # which is no sequence scheduler


@pytest.mark.parametrize(
    ("model", "parameters", "variant"),
    [("demo", {}, "fp32"), ("demo@bf16", {}, "bf16"), ("demo", {"variant": "bf16"}, "bf16")],
)
def test_windows_of_requests_add_up(
    channel: grpc.Channel, model: str, parameters: dict[str, bool | int | str], variant: str
) -> None:
    tool = PerfAnalyzer(OipStub(channel), model)
    for batch in (1, 4):
        for _ in range(2):
            for _ in range(5):
                mask = np.ones((batch, 4), np.int64)
                request = tool.request(
                    parameters, input_ids=np.repeat(IDS, batch, axis=0), attention_mask=mask
                )
                assert [each.name for each in request.inputs] == ["attention_mask", "input_ids"]
                reply = tool.calls.ModelInfer(request)
                assert reply.id == request.id
                assert told(reply)["variant"] == variant
                assert rows(reply).shape == (batch, 3)
            tool.measure()
            check(tool.window(), requests=5, sequences=5 * batch)


def test_texts_add_up_with_their_tokenising(channel: grpc.Channel) -> None:
    tool = PerfAnalyzer(OipStub(channel), "demo")
    for _ in range(3):
        tool.calls.ModelInfer(tool.request({}, text=["a fine film"]))
    tool.measure()
    check(tool.window(), requests=3, sequences=3)
    assert tool.window().ns["compute_input"] > 0


def test_concurrent_calls_add_up(channel: grpc.Channel) -> None:
    """--async: batches hold what several calls sent, and are fewer than they."""
    tool = PerfAnalyzer(OipStub(channel), "demo@fp32")
    large = np.full((256, 60), 4)  # it keeps the device busy, so that the others meet in its queue
    for _ in range(20):  # on a busy machine they may come one by one
        asked = [
            tool.calls.ModelInfer.future(tool.request({}, input_ids=ids)) for ids in [large, *[IDS] * 40]
        ]
        assert len({call.result(timeout=60).id for call in asked}) == 41
        tool.measure()
        check(tool.window(), requests=41, sequences=256 + 40)
        if tool.window().batches < 41:
            return
    raise AssertionError("no two of the calls ever shared a batch")


def test_a_stream_adds_up_and_marks_each_answer_as_the_last_one(channel: grpc.Channel) -> None:
    """--streaming: it waits for an answer with `triton_final_response` to each of its ids."""
    tool = PerfAnalyzer(OipStub(channel), "demo")
    replies = list(tool.calls.ModelStreamInfer(iter([tool.request({}, input_ids=IDS) for _ in range(6)])))
    assert {reply.error_message for reply in replies} == {""}
    assert [reply.infer_response.id for reply in replies] == [f"0_{number}" for number in range(6)]
    assert all(told(reply.infer_response)["triton_final_response"] is True for reply in replies)
    tool.measure()
    check(tool.window(), requests=6, sequences=6)


def test_failures_are_counted_apart(channel: grpc.Channel) -> None:
    tool = PerfAnalyzer(OipStub(channel), "demo")
    with pytest.raises(grpc.RpcError):
        tool.calls.ModelInfer(tool.request({}, input_ids=IDS * 99))
    tool.calls.ModelInfer(tool.request({}, input_ids=IDS))
    tool.measure()
    check(tool.window(), requests=1, sequences=1)
    before, after = tool.statistics[-2:]
    assert after.inference_stats.fail.count - before.inference_stats.fail.count == 1
