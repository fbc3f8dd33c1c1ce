"""tritonclient, as its users have it, against a real server: each call it offers, and what it says of errors.

That it is imported into the process that has our own stubs is part of the test: both hold the same messages.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.clients.triton_calls import counts, given, parameters, spent_ns
from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

IDS = np.array([[2, 4, 6, 3]], np.int64)
LABELS = ("negative", "neutral", "positive")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    with running_server(
        *("--model", str(folder), "--variants", "fp32,bf16", "--threads", "1"),
        *("--meter", "estimate", "--calibration-seconds", "0.2"),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as made:
        yield made


def ids(array: np.ndarray = IDS) -> list[triton.InferInput]:
    return [given("input_ids", array)]


def test_the_server_and_the_model_are_live_ready_and_described(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    for name in ("tiny", "tiny@fp32", "tiny@bf16"):
        assert client.is_model_ready(name)
        assert client.is_model_ready(name, "1")
    described = client.get_server_metadata(as_json=True)
    assert described["name"] == "wattserve"
    assert {"classification", "statistics", "model_configuration"} <= set(described["extensions"])
    model = client.get_model_metadata("tiny@bf16", as_json=True)
    assert (model["name"], model["versions"]) == ("tiny@bf16", ["1"])
    assert model["inputs"] == [
        {"name": "input_ids", "datatype": "INT64", "shape": ["-1", "-1"]},
        {"name": "attention_mask", "datatype": "INT64", "shape": ["-1", "-1"]},
        {"name": "text", "datatype": "BYTES", "shape": ["-1", "1"]},
    ]
    assert model["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": ["-1", "3"]}]
    config = client.get_model_config("tiny@bf16").config
    assert [(each.name, list(each.dims)) for each in config.input] == [
        ("input_ids", [-1]),
        ("attention_mask", [-1]),
        ("text", [1]),
    ]
    assert config.max_batch_size == 256
    assert config.parameters["variant"].string_value == "bf16"


def test_the_index_names_the_model_and_each_variant(client: triton.InferenceServerClient) -> None:
    models = client.get_model_repository_index().models
    assert [(each.name, each.version, each.state) for each in models] == [
        ("tiny", "1", "READY"),
        ("tiny@fp32", "1", "READY"),
        ("tiny@bf16", "1", "READY"),
    ]


def test_statistics_grow_by_what_was_asked_under_each_name(client: triton.InferenceServerClient) -> None:
    names = ("tiny", "tiny@fp32", "tiny@bf16")
    before = {name: client.get_inference_statistics(name) for name in names}
    for _ in range(3):
        client.infer("tiny", ids())
    client.infer("tiny@bf16", ids(np.repeat(IDS, 4, axis=0)))
    with pytest.raises(InferenceServerException):
        client.infer("tiny@bf16", ids(np.full((1, 1), 999)))
    grown = {}
    for name in names:
        old, new = before[name], client.get_inference_statistics(name)
        grown[name] = {kind: count - counts(old)[kind] for kind, count in counts(new).items()}
        for kind in ("queue", "compute_input", "compute_infer", "compute_output"):
            assert grown[name][kind] == grown[name]["success"]
        took = {kind: ns - spent_ns(old)[kind] for kind, ns in spent_ns(new).items()}
        assert 0 < took["compute_infer"] < took["success"]
    asked = ("success", "fail", "sequences", "batches")
    assert [grown["tiny@fp32"][kind] for kind in asked] == [3, 0, 3, 3]
    assert [grown["tiny@bf16"][kind] for kind in asked] == [1, 1, 4, 1]
    for kind, count in grown["tiny"].items():
        assert count == grown["tiny@fp32"][kind] + grown["tiny@bf16"][kind]
    (whole, *variants) = client.get_inference_statistics().model_stats
    assert [each.name for each in (whole, *variants)] == list(names)
    assert [usage.type for each in variants for usage in each.memory_usage] == ["CPU", "CPU"]


def test_ids_mask_and_text_give_the_native_answer(
    client: triton.InferenceServerClient, server: RunningServer
) -> None:
    tokens = pb.TokenInput(sequences=[pb.TokenIds(ids=IDS[0])])
    with grpc.insecure_channel(server.address) as channel:
        output = pb_grpc.InferenceStub(channel).Predict(pb.PredictRequest(tokens=tokens)).output
    wanted = np.frombuffer(output.data, "<f4").reshape(output.shape)
    padded, mask = np.array([[2, 4, 6, 3, 0]], np.int32), np.array([[1, 1, 1, 1, 0]], np.int64)
    asked = [
        ids(),
        [given("attention_mask", mask), given("input_ids", padded)],
        [given("text", np.array(["good film"], np.object_))],
        [given("text", np.array([["good film"]], np.object_))],
    ]
    for inputs in asked:
        result = client.infer(
            "tiny", inputs, request_id="mine", outputs=[triton.InferRequestedOutput("logits")]
        )
        np.testing.assert_array_equal(result.as_numpy("logits"), wanted)
        reply = result.get_response()
        assert (reply.model_name, reply.model_version, reply.id) == ("tiny", "1", "mine")


def test_classes_come_as_value_index_label_best_first(client: triton.InferenceServerClient) -> None:
    rows = np.array([[2, 4, 6, 3], [2, 5, 5, 3]], np.int64)
    logits = client.infer("tiny", ids(rows)).as_numpy("logits")
    for count in (1, 3, 99):
        outputs = [triton.InferRequestedOutput("logits", class_count=count)]
        classes = client.infer("tiny", ids(rows), outputs=outputs).as_numpy("logits")
        assert classes.shape == (2, min(count, 3))
        for row, best in zip(logits, classes, strict=True):
            wanted = [f"{row[index]:f}:{index}:{LABELS[index]}" for index in np.argsort(-row)]
            assert [each.decode() for each in best] == wanted[:count]


def test_the_reply_says_what_the_request_cost(client: triton.InferenceServerClient) -> None:
    told = parameters(client.infer("tiny", ids(), parameters={"energy": "settled", "unknown": 1.5}))
    assert (told["energy_state"], told["energy_quality"]) == ("settled", "estimated")
    assert (told["variant"], told["batch_size"], told["tokens"], told["padded_tokens"]) == ("fp32", 1, 4, 4)
    assert 0 <= told["energy_low_uj"] <= told["energy_uj"] <= told["energy_high_uj"]
    # One short row may cost less than the estimate can tell from nothing.
    many = ids(np.full((64, 60), 4, np.int64))
    assert parameters(client.infer("tiny", many, parameters={"energy": "settled"}))["energy_uj"] > 0
    assert told["idle_share_uj"] >= 0
    assert told["receipt_id"]
    assert told["compute_ns"] > 0
    assert told["queue_ns"] >= 0
    assert "energy_unknown_reason" not in told
    at_once = parameters(client.infer("tiny", ids()))
    assert at_once["energy_state"] == "provisional"


def test_a_variant_is_asked_for_by_parameter_or_by_name(client: triton.InferenceServerClient) -> None:
    exact, near = client.infer("tiny", ids()), client.infer("tiny@bf16", ids())
    by_parameter = client.infer("tiny", ids(), parameters={"variant": "bf16"})
    np.testing.assert_array_equal(by_parameter.as_numpy("logits"), near.as_numpy("logits"))
    assert not np.array_equal(exact.as_numpy("logits"), near.as_numpy("logits"))
    assert parameters(near)["variant"] == parameters(by_parameter)["variant"] == "bf16"
    both = client.infer("tiny@bf16", ids(), parameters={"variant": "bf16"})
    assert both.get_response().model_name == "tiny@bf16"


def infer(*args: Any, **options: Any) -> Callable[[triton.InferenceServerClient], object]:
    return lambda client: client.infer("tiny", ids() if not args else args[0], *args[1:], **options)


def call(name: str, *args: Any, **options: Any) -> Callable[[triton.InferenceServerClient], object]:
    return lambda client: getattr(client, name)(*args, **options)


SCORES = [triton.InferRequestedOutput("scores")]
ABSENT, WRONG, LACKING = "NOT_FOUND", "INVALID_ARGUMENT", "UNIMPLEMENTED"
REFUSED: dict[str, tuple[Callable[[triton.InferenceServerClient], object], str, str]] = {
    "model": (call("infer", "other", ids()), ABSENT, "model_name: unknown model 'other'; this server has"),
    "alias": (call("infer", "tiny@int3", ids()), ABSENT, "model_name: unknown variant 'int3' of 'tiny'"),
    "variant": (infer(parameters={"variant": "int3"}), ABSENT, "parameters[variant]: unknown variant 'int3'"),
    "conflict": (
        call("infer", "tiny@bf16", ids(), parameters={"variant": "fp32"}),
        *(WRONG, "parameters[variant]: 'fp32', and the model's name says 'bf16'"),
    ),
    "version": (infer(ids(), "2"), ABSENT, "model_version: version '2': this server has version '1' only"),
    "precision": (infer(ids(), "bf16"), WRONG, "model_version: version 'bf16': a version is a whole"),
    "metadata": (call("get_model_metadata", "other"), ABSENT, "name: unknown model 'other'"),
    "configuration": (call("get_model_config", "tiny", "x"), WRONG, "version: version 'x'"),
    "statistics": (call("get_inference_statistics", "tiny@int3"), ABSENT, "name: unknown variant 'int3'"),
    "ready": (call("is_model_ready", "tiny", "x"), WRONG, "version: version 'x'"),
    "dtype": (infer(ids(IDS.astype(np.float32))), WRONG, "inputs[0].datatype: datatype 'FP32' of"),
    "shape": (infer(ids(IDS[0])), WRONG, "inputs[0].shape: shape [4] is not [sequences, length]"),
    "empty": (infer(ids(IDS[:, :0])), WRONG, "with both at least 1"),
    "output": (infer(outputs=SCORES), WRONG, "outputs[0].name: unknown output 'scores'; this model"),
    "priority": (infer(priority=4), WRONG, "parameters[priority]: priority 4"),
    "sequence": (infer(sequence_id=7), WRONG, "parameters[sequence_id]: this model keeps nothing"),
    "energy": (infer(parameters={"energy": "now"}), WRONG, "parameters[energy]: 'now'; either"),
    "timeout": (infer(timeout=1), "DEADLINE_EXCEEDED", "the deadline passed while the request waited"),
    "load": (call("load_model", "tiny", config="{}"), WRONG, "parameters[config]: this server's"),
    "load unknown": (call("load_model", "tiny@int3"), ABSENT, "model_name: unknown variant 'int3'"),
    "memory": (call("register_system_shared_memory", "a", "/a", 64), LACKING, "no shared memory"),
    "forget memory": (call("unregister_system_shared_memory"), LACKING, "no shared memory"),
    "cuda memory": (call("register_cuda_shared_memory", "a", b"aGk=", 0, 9), LACKING, "no shared memory"),
    "forget cuda memory": (call("unregister_cuda_shared_memory"), LACKING, "no shared memory"),
    "trace": (call("get_trace_settings"), LACKING, "no traces"),
    "log": (call("update_log_settings", {"log_info": True}), LACKING, "no log settings"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_its_status_and_says_where(client: triton.InferenceServerClient, name: str) -> None:
    refused, code, words = REFUSED[name]
    with pytest.raises(InferenceServerException) as caught:
        refused(client)
    assert caught.value.status() == f"StatusCode.{code}"
    assert words in caught.value.message()


def test_shared_memory_is_said_to_be_empty(client: triton.InferenceServerClient) -> None:
    assert not client.get_system_shared_memory_status().regions
    assert not client.get_cuda_shared_memory_status("any").regions


def test_a_text_is_cut_by_a_parameter_and_the_reply_says_how_much(
    client: triton.InferenceServerClient,
) -> None:
    text = triton.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"good " * 100], dtype=object))
    with pytest.raises(InferenceServerException, match="has 102 tokens; this model takes at most 64"):
        client.infer("tiny", [text])
    reply = client.infer("tiny", [text], parameters={"truncate": True}).get_response()
    assert reply.parameters["cut_tokens"].int64_param == 102 - 64
    assert reply.parameters["tokens"].int64_param == 64


def test_an_input_in_shared_memory_is_refused(client: triton.InferenceServerClient) -> None:
    there = triton.InferInput("input_ids", [1, 4], "INT64")
    there.set_shared_memory("region", 32)
    with pytest.raises(
        InferenceServerException, match=r"parameters\[shared_memory_region\]: shared memory is not"
    ):
        client.infer("tiny", [there])


def test_compression_headers_priorities_and_time_limits_go_through(
    client: triton.InferenceServerClient,
) -> None:
    wanted = client.infer("tiny", ids()).as_numpy("logits")
    for options in (
        {"compression_algorithm": "gzip"},
        {"compression_algorithm": "deflate", "headers": {"traceparent": "00-1-2-01"}},
        {"priority": 1, "timeout": 10_000_000, "client_timeout": 10.0},
        {"priority": 3},
    ):
        np.testing.assert_array_equal(client.infer("tiny", ids(), **options).as_numpy("logits"), wanted)
    with pytest.raises(InferenceServerException, match=r"[Dd]eadline") as caught:
        client.infer("tiny", ids(np.tile(IDS, (256, 15))), client_timeout=0.001)
    # Where the server reads it in time, and knows that it takes longer, it refuses it: DEADLINE_TOO_SHORT.
    assert caught.value.status() in ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.RESOURCE_EXHAUSTED")


def test_async_infer_calls_back_with_the_result_or_the_error(client: triton.InferenceServerClient) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for model in ("tiny", "other"):
        client.async_infer(model, ids(), lambda result, error: done.put((result, error)), request_id=model)
    outcomes = [done.get(timeout=60) for _ in range(2)]
    (result,), (error,) = ([each for each in column if each] for column in zip(*outcomes, strict=True))
    assert result.get_response().id == "tiny"
    assert error.status() == "StatusCode.NOT_FOUND"


def test_a_stream_keeps_the_order_and_outlives_an_error(client: triton.InferenceServerClient) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: done.put((result, error)))
    for index in range(20):
        rows = np.full((1 if index % 2 else 40, 4), 999 if index == 7 else 4)
        client.async_stream_infer("tiny@bf16" if index % 3 else "tiny", ids(rows), request_id=str(index))
    outcomes = [done.get(timeout=60) for _ in range(20)]
    client.stop_stream()
    assert done.empty()
    for index, (result, error) in enumerate(outcomes):
        if index == 7:
            assert error.message().startswith("[INVALID_ARGUMENT] raw_input_contents[0]: row 0: token id 999")
            continue
        assert error is None
        assert result.get_response().id == str(index)
        assert parameters(result)["triton_final_response"] is True
        assert parameters(result)["variant"] == ("bf16" if index % 3 else "fp32")


def test_an_unloaded_variant_is_not_ready_until_it_is_loaded_again(
    client: triton.InferenceServerClient,
) -> None:
    client.unload_model("tiny@bf16")
    assert not client.is_model_ready("tiny@bf16")
    assert client.is_model_ready("tiny")
    states = {each.name: each.state for each in client.get_model_repository_index().models}
    assert states == {"tiny": "READY", "tiny@fp32": "READY", "tiny@bf16": "UNAVAILABLE"}
    with pytest.raises(InferenceServerException, match="'bf16' is not loaded") as caught:
        client.infer("tiny@bf16", ids())
    assert caught.value.status() == "StatusCode.FAILED_PRECONDITION"
    client.load_model("tiny@bf16")
    assert client.is_model_ready("tiny@bf16")
    assert parameters(client.infer("tiny@bf16", ids()))["variant"] == "bf16"
