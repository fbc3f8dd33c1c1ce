"""What is checked before the first request, and what the results say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wattserve_client import ServerInfo
from wattserve_client.wire import from_message
from wattserve_common.dataset import Dataset
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.sweeping import checks
from wattserve_loadgen.sweeping.energy import is_metered, slowest_sensor_s
from wattserve_loadgen.sweeping.environment import describe_client, is_this_machine
from wattserve_loadgen.sweeping.first_results import accuracy_reason, server_notes
from wattserve_proto.v1 import inference_pb2 as pb


def make_info(**changes: Any) -> ServerInfo:
    limits = {"max_sequence_tokens": 8, "vocabulary_size": 100, "receipt_retention_seconds": 600}
    limits.update(changes.pop("limits", {}))
    source = pb.EnergySource(name="rapl", quality=changes.pop("quality", pb.ENERGY_QUALITY_MEASURED))
    values = {
        "task": "sequence-classification",
        "labels": ["negative", "positive"],
        "variants": [pb.VariantInfo(name=name) for name in ("fp32", "bf16", "int8")],
        "meter": pb.MeterInfo(source=source, poll_period_seconds=0.02, **changes.pop("meter", {})),
        "limits": pb.Limits(**limits),
    }
    return from_message(ServerInfo, pb.ServerInfo(**{**values, **changes}))


def make_dataset(
    rows: list[list[int]] | None = None, labels: list[int] | None = None, **description: Any
) -> Dataset:
    found = rows or [[1, 2, 3], [4, 5], [6]]
    arrays = tuple(np.array(row, dtype=np.int32) for row in found)
    given = [0] * len(found) if labels is None else labels
    return Dataset(Path("data"), arrays, np.array(given), "ab", description)


FP32 = ("fp32",)
LOADS = (closed(1), closed(8))


def test_all_variants_of_the_server_are_swept_unless_some_are_named() -> None:
    assert checks.choose_variants(make_info(), None) == ("fp32", "bf16", "int8")
    assert checks.choose_variants(make_info(), ("int8", "fp32")) == ("int8", "fp32")


def test_a_variant_that_could_not_be_made_is_swept_only_when_it_is_named() -> None:
    failed = pb.VariantInfo(name="int8", state=pb.VARIANT_STATE_FAILED, state_reason="only convolutions")
    info = make_info(variants=[pb.VariantInfo(name="fp32"), failed])
    assert checks.choose_variants(info, None) == ("fp32",)
    assert checks.choose_variants(info, ("int8",)) == ("int8",)
    assert server_notes(info, FP32, make_dataset(), same_machine=False) == [
        "The server could not make the variant int8, which is left out: only convolutions"
    ]


def test_an_unknown_variant_is_told_the_known_ones() -> None:
    with pytest.raises(PlanError, match="unknown variant 'fp8'; this server has fp32, bf16, int8"):
        checks.choose_variants(make_info(), ("fp32", "fp8"))


@pytest.mark.parametrize(
    ("info", "dataset", "message"),
    [
        (
            {},
            {"rows": [[1], [2] * 9]},
            "data: row 1 has 9 tokens, this server takes at most 8; prepare the dataset with --max-length 8",
        ),
        (
            {},
            {"rows": [[1], [2], [5, 100]]},
            "data: row 2 holds token 100, but the model's vocabulary has 100;"
            " prepare the dataset with this model's tokenizer",
        ),
        (
            {},
            {"labels": [0, 2, 1]},
            "data: row 1 has the label 2, but the model has 2 labels: negative, positive",
        ),
        (
            {},
            {"label_names": ["Positive", "Negative"]},
            "data: its labels are in the order positive, negative, the model's are negative, positive;"
            " prepare it with --tokenizer of this model",
        ),
        (
            {"limits": {"max_request_sequences": 2}},
            {},
            "concurrency 4, 3 sequences each: this server takes at most 2 sequences in a request",
        ),
    ],
)
def test_what_the_server_would_refuse_is_refused_first(
    info: dict[str, Any], dataset: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError) as caught:
        checks.check(make_info(**info), FP32, (*LOADS, closed(4, 3)), make_dataset(**dataset))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("info", "dataset"),
    [
        ({}, {}),
        ({}, {"rows": [[99] * 8]}),
        ({}, {"labels": [-1, 0, 1]}),
        ({}, {"label_names": ["NEGATIVE", "POSITIVE"]}),
        ({}, {"label_names": ["bad", "good"]}),
        ({"limits": {"max_sequence_tokens": 0, "vocabulary_size": 0}}, {"rows": [[500] * 500]}),
        ({"labels": []}, {"labels": [7, 7, 7]}),
        ({"limits": {"receipt_retention_seconds": 10, "receipt_retention_count": 5}}, {}),
    ],
)
def test_what_the_server_takes_is_let_through(info: dict[str, Any], dataset: dict[str, Any]) -> None:
    checks.check(make_info(**info), FP32, LOADS, make_dataset(**dataset))


@pytest.mark.parametrize(
    ("info", "labels", "reason"),
    [
        ({}, [0, 1, 1], ""),
        ({"random_weights": True}, [0, 1, 1], "the model has random weights"),
        (
            {"labels": [], "task": "feature-extraction"},
            [0, 1, 1],
            "the task feature-extraction predicts no labels",
        ),
        ({}, [-1, -1, -1], "the dataset has no labels"),
        ({}, [0, -1, 1], ""),
    ],
)
def test_accuracy_applies_only_where_it_means_something(
    info: dict[str, Any], labels: list[int], reason: str
) -> None:
    assert accuracy_reason(make_info(**info), make_dataset(labels=labels)) == reason


def test_the_notes_say_what_a_reader_must_know() -> None:
    data = make_dataset(label_names=["bad", "good"], truncated_rows=3, max_length=8)
    first, second, third = server_notes(make_info(), FP32, data, same_machine=True)
    assert "client ran on the server's machine" in first
    assert "names its labels bad, good and the server negative, positive: they are matched by index" in second
    assert third == "3 rows of the dataset were cut to 8 tokens."
    assert server_notes(make_info(), FP32, make_dataset(), same_machine=False) == []


def test_labels_that_are_only_numbers_name_nothing_and_need_no_note() -> None:
    data = make_dataset(label_names=["bad", "good"])
    assert server_notes(make_info(labels=["0", "1"]), FP32, data, same_machine=False) == []
    checks.check(make_info(labels=["0", "1"]), FP32, LOADS, data)


def test_proxies_and_unverified_precisions_are_let_through_and_named() -> None:
    ready = pb.VARIANT_STATE_READY
    info = make_info(
        variants=[
            pb.VariantInfo(name="fp32", verified=True, verification="4 kernels", state=ready),
            pb.VariantInfo(
                name="sim", proxy="fp32 products", verified=True, verification="seen", state=ready
            ),
            pb.VariantInfo(name="int8", verification="no profiler here", state=ready),
            pb.VariantInfo(name="lazy", verification="not loaded", state=pb.VARIANT_STATE_UNLOADED),
            pb.VariantInfo(name="older server's"),
        ]
    )
    names = [one.name for one in info.variants]
    checks.check(info, names, LOADS, make_dataset())
    assert server_notes(info, names, make_dataset(), same_machine=False) == [
        "sim is a proxy: fp32 products.",
        "The precision of int8 is not verified: no profiler here.",
    ]


def test_variants_on_devices_with_meters_of_their_own_are_not_compared_silently() -> None:
    variants = [pb.VariantInfo(name="fp32", device="cuda:0"), pb.VariantInfo(name="int8", device="cpu")]
    info = make_info(variants=variants, other_meters=[pb.MeterInfo(device="cpu")])
    (note,) = server_notes(info, ("fp32", "int8"), make_dataset(), same_machine=False)
    assert note.startswith("The variants ran on cpu and cuda:0, each with a meter of its own")
    assert server_notes(info, ("int8",), make_dataset(), same_machine=False) == []


def test_a_meter_on_any_device_makes_a_metered_server_and_the_slowest_sets_the_period() -> None:
    other = pb.MeterInfo(
        source=pb.EnergySource(quality=pb.ENERGY_QUALITY_MEASURED), update_period_seconds=0.5
    )
    info = make_info(quality=pb.ENERGY_QUALITY_NONE, other_meters=[other])
    assert is_metered(info)
    assert slowest_sensor_s(info) == 0.5


def images(shape: tuple[int, ...] = (3, 4, 6), labels: tuple[int, ...] = (0, 1)) -> Dataset:
    rows = tuple(np.zeros(shape, np.float32) for _ in labels)
    return Dataset(Path("data"), rows, np.array(labels), "ab", {}, pixel_shape=shape)


def test_images_are_let_through_to_a_model_that_takes_their_size() -> None:
    checks.check(make_info(pixel_shape=[3, 4, 6], limits={"max_sequence_tokens": 1}), FP32, LOADS, images())


@pytest.mark.parametrize(
    ("shape", "dataset", "message"),
    [
        ([], images(), "data: holds images, and this server's model takes token ids"),
        (
            [3, 4, 6],
            make_dataset(),
            "data: holds token ids, and this server's model takes images, [3, 4, 6] each:"
            " it needs a folder with pixel_values.pt and labels.pt",
        ),
        (
            [3, 6, 4],
            images(),
            "data: its images are [3, 4, 6], and this server's model takes [3, 6, 4]"
            " (channels, height, width)",
        ),
        (
            [3, 4, 6],
            images(labels=(0, 2)),
            "data: row 1 has the label 2, but the model has 2 labels: negative, positive",
        ),
    ],
)
def test_data_of_another_kind_or_size_is_refused_before_the_first_request(
    shape: list[int], dataset: Dataset, message: str
) -> None:
    with pytest.raises(PlanError) as caught:
        checks.check(make_info(pixel_shape=shape), FP32, LOADS, dataset)
    assert str(caught.value) == message


def test_a_variant_is_not_evaluated_on_the_data_that_it_was_calibrated_with() -> None:
    detail = "activations by one scale per layer from 512 rows of train (sha256 ab)"
    static = pb.VariantInfo(name="int8-static", detail=detail)
    info = make_info(variants=[pb.VariantInfo(name="fp32"), static])
    checks.check(info, FP32, LOADS, make_dataset())
    with pytest.raises(PlanError, match="int8-static was calibrated on this very dataset"):
        checks.check(info, ("fp32", "int8-static"), LOADS, make_dataset())


def test_a_thousand_labels_are_not_all_listed() -> None:
    info = make_info(pixel_shape=[3, 4, 6], labels=[f"l{index}" for index in range(1000)])
    with pytest.raises(PlanError, match=r"1000 labels: l0, .*, l9, \.\.\.$"):
        checks.check(info, FP32, LOADS, images(labels=(0, 1000)))


def test_the_sensor_period_is_how_often_a_reading_can_bring_something_new() -> None:
    assert slowest_sensor_s(make_info(meter={"update_period_seconds": 0.1})) == 0.1
    assert slowest_sensor_s(make_info(meter={"update_period_seconds": 0.001})) == 0.02
    assert slowest_sensor_s(make_info()) == 0.02
    assert slowest_sensor_s(make_info(quality=pb.ENERGY_QUALITY_NONE)) == 0.0


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("127.0.0.1:50051", True),
        ("localhost:1", True),
        ("[::1]:5", True),
        ("10.1.2.3:5", False),
        ("gpu7:50051", False),
    ],
)
def test_a_loopback_address_is_this_machine(target: str, local: bool) -> None:
    assert is_this_machine(target) is local


def test_the_client_is_described_by_what_repeats_a_sweep() -> None:
    found = describe_client(["10.1.2.3:5"])
    assert found["packages"]["grpcio"]
    assert found["cpu_count"] >= 1
    assert found["same_machine_as_server"] is False
    assert set(found) == {
        "python",
        "platform",
        "cpu_model",
        "cpu_count",
        "usable_cpus",
        "governor",
        "load_average_at_start",
        "packages",
        "git_revision",
        "same_machine_as_server",
    }
