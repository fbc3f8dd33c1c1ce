"""OipTarget against a small server of the protocol that is not Wattserve, with its choices and its faults."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.fake_server.child import ChildServer
from tests.fixtures.fake_server.memory import MemoryServer, memory_servers
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.fake_server.peer import OipPeer
from tests.fixtures.loadgen_data import make_images, make_labelled
from wattserve_client import EnergyQuality, ServerInfo
from wattserve_common.dataset import Dataset, load
from wattserve_loadgen.errors import PlanError, TargetError
from wattserve_loadgen.target.oip import OipTarget
from wattserve_loadgen.target.wire import open_channel
from wattserve_proto.v1 import inference_pb2 as pb


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load(make_labelled(tmp_path_factory.mktemp("tokens") / "d", rows=6))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load(make_images(tmp_path_factory.mktemp("images") / "d", rows=6))


@contextmanager
def peer_in_memory(**options: Any) -> Iterator[MemoryServer]:
    with memory_servers():
        yield MemoryServer(OipPeer(**options))


def ask(
    address: str, dataset: Dataset, groups: list[list[int]], model: str = "parity"
) -> tuple[ServerInfo, list[pb.PredictResponse]]:
    """What the server says of itself, and its answers to the first model."""

    async def asked() -> tuple[ServerInfo, list[pb.PredictResponse]]:
        target, channel = OipTarget(address, model), open_channel(address)
        try:
            info = await target.server_info(20)
            call: Any = channel.unary_unary(target.connection.method)
            requests = target.make_requests(dataset, groups, info.default_variant)
            return info, [target.read(await call(request, timeout=20)) for request in requests]
        finally:
            await channel.close()
            await target.close()

    return asyncio.run(asked())


def info_of(address: str, model: str = "parity") -> ServerInfo:
    async def asked() -> ServerInfo:
        target = OipTarget(address, model)
        try:
            return await target.server_info(10)
        finally:
            await target.close()

    return asyncio.run(asked())


def labels(answers: list[pb.PredictResponse]) -> list[int]:
    """The index of the higher of two logits."""
    found = []
    for answer in answers:
        data = answer.output.data
        if answer.output.datatype == "BF16":
            logits = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            logits = np.frombuffer(data, {"FP32": "<f4", "FP16": "<f2"}[answer.output.datatype])
        found.append(int(logits.argmax()))
    return found


EACH = [[row] for row in range(6)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"datatype": "INT32", "length": 80},
        {"inputs": "INPUT_IDS,Attention_Mask,token_type_ids"},
        {"inputs": "input_ids"},
        {"batch": 0},
        {"batch": 1, "length": 64},
        {"config": 4, "inputs": "input_ids,attention_mask,text"},
        {"output": "OUTPUT"},
        {"output": "scores"},
        {"output": "scores", "batch": 0},
        {"answer": "typed"},
        {"answer": "fp16"},
        {"answer": "bf16"},
        {"answer": "fp64"},
    ],
    ids=str,
)
def test_a_peer_is_fed_as_its_metadata_asks_and_its_logits_are_read(
    tokens: Dataset, options: dict[str, Any]
) -> None:
    with peer_in_memory(**options) as peer:
        info, answers = ask(peer.address, tokens, EACH)
    assert labels(answers) == tokens.labels.tolist()
    assert {answer.variant for answer in answers} == {"parity"}
    assert {answer.output.name for answer in answers} == {"logits"}
    assert {tuple(answer.output.shape) for answer in answers} == {(1, 2)}
    assert not any(answer.HasField("receipt") for answer in answers)
    assert info.limits.max_sequence_tokens == max(0, options.get("length", 0))


@pytest.mark.parametrize("batch", [-1, 0])
def test_a_model_of_images_is_fed_whatever_its_input_is_called(images: Dataset, batch: int) -> None:
    with peer_in_memory(image="3,4,6", batch=batch) as peer:
        info, answers = ask(peer.address, images, EACH)
    assert list(info.pixel_shape) == [3, 4, 6]
    assert labels(answers) == images.labels.tolist()


def test_a_free_size_of_an_image_is_0(images: Dataset) -> None:
    with peer_in_memory(image="3,-1,-1") as peer:
        info, answers = ask(peer.address, images, EACH[:1])
    assert list(info.pixel_shape) == [3, 0, 0]
    assert labels(answers) == images.labels[:1].tolist()


def test_a_group_is_one_request_padded_to_its_longest(tokens: Dataset) -> None:
    with peer_in_memory() as peer:
        _, answers = ask(peer.address, tokens, [[0, 1, 2], [0, 1, 2]])
    assert [tuple(answer.output.shape) for answer in answers] == [(3, 2), (3, 2)]
    assert answers[0] == answers[1]


def test_the_server_info_claims_nothing_of_what_ran() -> None:
    with ChildServer(OipPeer(config=8)) as peer:  # on a wire
        info = info_of(peer.address, "parity, parity-int8")
    assert info.server_version == "peer 1.2"
    assert (info.model_name, info.model_source, info.default_variant) == ("parity", "arithmetic", "parity")
    assert [one.name for one in info.variants] == ["parity", "parity-int8"]
    assert {(one.device, one.dtype, one.verified, one.native) for one in info.variants} == {
        ("", "", False, False)
    }
    assert info.meter.source.quality is EnergyQuality.NONE
    assert (info.instance_id, list(info.labels)) == ("", ["0", "1"])
    assert info.limits.max_request_sequences == 8


def test_outputs_that_are_no_scores_have_no_labels() -> None:
    with peer_in_memory(output="embedding") as peer:
        info = info_of(peer.address)
    assert (list(info.labels), info.task) == ([], "")


@pytest.mark.parametrize(
    ("options", "model", "words"),
    [
        ({"live": 0}, "parity", "says that it is not live"),
        (
            {"ready": 0},
            "parity",
            "the model 'parity' is not ready or not there; it has parity (UNAVAILABLE), parity-int8",
        ),
        ({}, "other", "the model 'other' cannot be asked: no model other; it has parity (READY)"),
        ({"bare": 1}, "parity", "it takes inputs that its metadata does not declare"),
        ({"inputs": "input_ids,position_ids"}, "parity", "it takes input_ids INT64 [-1, -1], position_ids"),
        ({"datatype": "FP32"}, "parity", "it takes input_ids FP32 [-1, -1], attention_mask FP32 [-1, -1]"),
        ({"image": "224,224,3"}, "parity", "INPUT__0 FP32 [-1, 224, 224, 3] has its channels last"),
    ],
    ids=str,
)
def test_a_model_that_cannot_be_used_is_refused_in_one_sentence(
    options: dict[str, Any], model: str, words: str
) -> None:
    with peer_in_memory(**options) as peer, pytest.raises(TargetError) as caught:
        info_of(peer.address, model)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nobody_there_and_another_protocol_are_told_apart() -> None:
    with pytest.raises(TargetError, match=r"^127\.0\.0\.1:1 does not answer: UNAVAILABLE"):
        info_of("127.0.0.1:1")
    with (
        ChildServer(Metered()) as server,
        pytest.raises(TargetError, match="but not the Open Inference Protocol"),
    ):
        info_of(server.address)


@pytest.mark.parametrize(
    ("options", "groups", "words"),
    [
        ({"batch": 0}, [[0, 1]], "takes exactly 1 rows in a request, not 2"),
        ({"batch": 4}, [[0]], "takes exactly 4 rows in a request, not 1"),
        ({"config": 2}, [[0, 1, 2]], "takes at most 2 rows in a request, not 3"),
        ({"length": 2}, [[0]], r"takes 2 tokens, and a row has \d+; prepare the dataset with --max-length 2"),
        ({"image": "3,4,6"}, [[0]], "holds tokens, and model 'parity' takes images"),
    ],
    ids=str,
)
def test_rows_that_the_shapes_do_not_allow_are_a_mistake_of_the_plan(
    tokens: Dataset, options: dict[str, Any], groups: list[list[int]], words: str
) -> None:
    with peer_in_memory(**options) as peer, pytest.raises(PlanError, match=words):
        ask(peer.address, tokens, groups)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("empty", "the answer holds no output"),
        ("short", "the output 'logits' holds 7 bytes, and FP32 [1, 2] has 8"),
        ("flat", "the output 'logits' has the shape [2, 1, 1], not [rows, labels]"),
        ("words", "the answer holds no float output, only logits BYTES"),
        ("uneven", "the answer has 1 outputs and raw contents of 2"),
        ("garbage", "the answer is no ModelInferResponse"),
    ],
)
def test_an_answer_without_logits_is_a_value_error_with_words(
    tokens: Dataset, answer: str, words: str
) -> None:
    with peer_in_memory(answer=answer) as peer, pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        ask(peer.address, tokens, EACH[:1])


def test_no_model_named_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no model named"):
        OipTarget("127.0.0.1:1", " , ")
