"""What is said of a model and its variants: shapes, states and figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.clients.oip_world import NAME, ready, unload
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.energy.receipt import Window
from wattserve_server.engine.roster import Readiness, Resident
from wattserve_server.service import oip as describe
from wattserve_server.service.prediction import Host
from wattserve_server.telemetry.observer import Observer, Times


def tensors(metadata: oip.ModelMetadataResponse) -> list[tuple[str, str, list[int]]]:
    return [(each.name, each.datatype, list(each.shape)) for each in (*metadata.inputs, *metadata.outputs)]


def configured(name: str, variant: str, server: Host) -> oip.ModelConfig:
    return describe.model_config(name, server, server.engine.roster.named(variant).choice)


def test_the_metadata_of_a_model_of_text() -> None:
    found = describe.model_metadata(f"{NAME}@bf16", ready())
    assert (found.name, list(found.versions), found.platform) == (f"{NAME}@bf16", ["1"], "wattserve")
    assert tensors(found) == [
        ("input_ids", "INT64", [-1, -1]),
        ("attention_mask", "INT64", [-1, -1]),
        ("text", "BYTES", [-1, 1]),
        ("logits", "FP32", [-1, 3]),
    ]


def test_without_a_tokenizer_there_is_no_text() -> None:
    assert "text" not in [
        name for name, _, _ in tensors(describe.model_metadata(NAME, ready(has_tokenizer=False)))
    ]


def test_the_metadata_of_a_model_of_images() -> None:
    found = describe.model_metadata(NAME, ready(pixel_shape=(3, 32, 48)))
    assert tensors(found) == [("pixel_values", "FP32", [-1, 3, 32, 48]), ("logits", "FP32", [-1, 3])]
    (given,) = configured(NAME, "fp32", ready(pixel_shape=(3, 32, 48))).input
    assert not given.optional


def test_the_configuration_says_limits_scheduling_and_variants() -> None:
    config = configured(f"{NAME}@bf16", "bf16", ready())
    assert config.max_batch_size == 3  # of one request
    assert [list(each.dims) for each in config.input] == [[-1], [-1], [1]]
    assert [list(each.dims) for each in config.output] == [[3]]
    batching = config.dynamic_batching
    assert list(batching.preferred_batch_size) == [32]
    assert batching.max_queue_delay_microseconds == 1500
    assert (batching.priority_levels, batching.default_priority_level) == (3, 2)
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "task": "sequence-classification",
        "variant": "bf16",
        "variants": "fp32,bf16,int8@cpu",
    }


def test_an_output_without_labels_is_as_wide_as_the_model() -> None:
    (output,) = configured(NAME, "fp32", ready(labels=())).output
    assert list(output.dims) == [32]


@pytest.mark.parametrize(
    ("state", "reason"),
    [(Readiness.LOADING, ""), (Readiness.CALIBRATING, "calibrating: the meter learns what it costs")],
)
def test_the_index_has_the_model_in_the_state_of_its_default_variant(state: Readiness, reason: str) -> None:
    server = ready()
    fp32, bf16, int8 = server.engine.roster
    unload(fp32)
    unload(bf16, Readiness.FAILED, "no memory")
    unload(int8, state)
    found = describe.model_index(server, only_ready=False).models
    assert [(each.name, each.version, each.state, each.reason) for each in found] == [
        (NAME, "1", "UNAVAILABLE", "unloaded"),
        (f"{NAME}@fp32", "1", "UNAVAILABLE", "unloaded"),
        (f"{NAME}@bf16", "1", "UNAVAILABLE", "no memory"),
        (f"{NAME}@int8@cpu", "1", "LOADING", reason),
    ]
    assert not describe.model_index(server, only_ready=True).models


def test_the_index_says_that_a_request_would_load_it() -> None:
    server = ready(is_lazy=True)
    unload(next(iter(server.engine.roster)))
    index = describe.model_index(server, only_ready=False).models
    assert index[0].reason == "unloaded; a request loads it"
    assert [each.name for each in describe.model_index(server, only_ready=True).models] == [
        f"{NAME}@bf16",
        f"{NAME}@int8@cpu",
    ]


def test_statistics_are_told_with_the_counts_that_clients_compare() -> None:
    observer = Observer("test")
    observer.answered("fp32", 3, Times(1, 2, 3, 4, 20))
    observer.failed("fp32", "INTERNAL", "", "", 5)
    for size in (2, 1):
        observer.batch_ran(Window("fp32", 0, 7, (5,) * size, 5))
    entry = next(iter(ready().engine.roster))
    found = describe.model_statistics(f"{NAME}@fp32", observer.statistics(["fp32"]), entry)
    assert (found.name, found.version, found.inference_count, found.execution_count) == (
        f"{NAME}@fp32",
        "1",
        3,
        2,
    )
    stats = found.inference_stats
    told = (
        *(stats.success, stats.fail, stats.queue),
        *(stats.compute_input, stats.compute_infer, stats.compute_output),
    )
    assert [(each.count, each.ns) for each in told] == [(1, 10), (1, 5), (1, 2), (1, 1), (1, 3), (1, 4)]
    assert [(each.batch_size, each.compute_infer.ns) for each in found.batch_stats] == [(1, 7), (2, 7)]
    assert [(each.type, each.id, each.byte_size) for each in found.memory_usage] == [("CPU", 0, 1000)]
    copies = {f"cuda:{index}": cast(Any, SimpleNamespace(parameter_bytes=7 + index)) for index in range(2)}
    entry.resident = Resident(copies["cuda:0"], copies)
    found = describe.model_statistics(f"{NAME}@fp32", observer.statistics(["fp32"]), entry)
    used = [(each.type, each.id, each.byte_size) for each in found.memory_usage]
    assert used == [("GPU", 0, 7), ("GPU", 1, 8)]
    unload(entry)
    assert not describe.model_statistics(NAME, observer.statistics(["fp32"]), entry).memory_usage
    assert not describe.model_statistics(NAME, observer.statistics(["fp32"]), None).memory_usage


def test_a_duration_of_nothing_is_there() -> None:
    """perf_analyzer asks whether it is set before it looks at its count."""
    stats = describe.model_statistics(NAME, Observer("test").statistics(["fp32"]), None).inference_stats
    for name in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
        assert stats.HasField(name)
