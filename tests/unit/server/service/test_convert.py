"""Between messages and the engine: what is accepted, and what is said of the rest."""

import numpy as np
import pytest

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.reading import Quality, Source
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt
from wattserve_server.engine.tasks import InputFacts
from wattserve_server.errors import InvalidRequest
from wattserve_server.service import inference as convert
from wattserve_server.service.checks import check_ids, check_texts

TEXT = InputFacts(max_tokens=8, vocabulary_size=100)


def tokens(*sequences: list[int]) -> pb.PredictRequest:
    return pb.PredictRequest(tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=ids) for ids in sequences]))


def tensors(*arrays: tuple[str, np.ndarray]) -> pb.PredictRequest:
    names = {np.dtype("int64"): "INT64", np.dtype("int32"): "INT32", np.dtype("float32"): "FP32"}
    return pb.PredictRequest(
        tensors=pb.TensorInput(
            tensors=[
                pb.Tensor(name=name, datatype=names[array.dtype], shape=array.shape, data=array.tobytes())
                for name, array in arrays
            ]
        )
    )


IDS = np.array([[5, 6, 7], [8, 9, 0]])


def test_tokens_become_one_array_per_sequence() -> None:
    first, second = convert.items_of(tokens([1, 2, 3], [4]), TEXT, 3)
    assert first.tolist() == [1, 2, 3]
    assert second.tolist() == [4]
    assert first.dtype == np.int64


def test_a_prefix_mask_takes_the_padding_off() -> None:
    rows = convert.items_of(
        tensors(("input_ids", IDS), ("attention_mask", np.array([[1, 1, 1], [1, 1, 0]]))), TEXT, 3
    )
    assert [row.tolist() for row in rows] == [[5, 6, 7], [8, 9]]


def test_without_a_mask_every_id_counts_and_int32_will_do() -> None:
    rows = convert.items_of(tensors(("input_ids", IDS.astype(np.int32))), TEXT, 3)
    assert [row.tolist() for row in rows] == [[5, 6, 7], [8, 9, 0]]


@pytest.mark.parametrize(
    ("request_", "field", "message"),
    [
        (pb.PredictRequest(), "input", "needs one of text, tokens or tensors"),
        (tokens(), "tokens.sequences", "at least one sequence"),
        (tokens([1], [1], [1], [1]), "tokens.sequences", "at most 3 sequences, this one has 4"),
        (
            tensors(("input_ids", np.ones((4, 1), np.int64))),
            "tensors.tensors[0].shape",
            "at most 3 sequences",
        ),
        (tensors(("input_idz", IDS)), "tensors.tensors[0].name", "unknown tensor 'input_idz'"),
        (
            tensors(("pixel_values", np.zeros((1, 3, 4, 6), np.float32))),
            "tensors.tensors[0].name",
            "unknown tensor 'pixel_values'; this model takes input_ids and attention_mask",
        ),
        (tokens([1], [100]), "tokens.sequences[1]", "token id 100 is outside the vocabulary, 0 to 99"),
        (tensors(("input_ids", IDS * 20)), "tensors.tensors[0].data", "row 0: token id 140 is outside"),
        (tensors(("input_ids", IDS), ("input_ids", IDS)), "tensors.tensors[1].name", "given twice"),
        (tensors(("attention_mask", IDS)), "tensors.tensors", "'input_ids' is missing"),
        (
            tensors(("input_ids", IDS.astype(np.float32))),
            "tensors.tensors[0].datatype",
            "datatype 'FP32' of input_ids; known here: INT64, INT32",
        ),
        (tensors(("input_ids", IDS[0])), "tensors.tensors[0].shape", "is not [sequences, length]"),
        (tensors(("input_ids", IDS[:, :0])), "tensors.tensors[0].shape", "both at least 1"),
        (
            tensors(("input_ids", IDS), ("attention_mask", np.array([[1, 1, 1]]))),
            "tensors.tensors[1].shape",
            "attention_mask has shape [1, 3], input_ids [2, 3]",
        ),
        (
            tensors(("input_ids", IDS), ("attention_mask", np.array([[1, 1, 1], [0, 1, 1]]))),
            "tensors.tensors[1].data",
            "row 1 of attention_mask is not a prefix mask",
        ),
        (
            tensors(("input_ids", IDS), ("attention_mask", np.array([[2, 0, 0], [1, 1, 0]]))),
            "tensors.tensors[1].data",
            "row 0 of attention_mask is not a prefix mask",
        ),
    ],
)
def test_malformed_input_names_its_field(request_: pb.PredictRequest, field: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert.items_of(request_, TEXT, 3)
    assert caught.value.field == field
    assert message in str(caught.value)


@pytest.mark.parametrize("shape", [[2, 2], [2, 4], [2, 2**62], [-1, -6], [-2, 3]])
def test_bytes_that_do_not_fit_the_shape_are_refused(shape: list[int]) -> None:
    tensor = pb.Tensor(name="input_ids", datatype="INT64", shape=shape, data=IDS.tobytes())
    with pytest.raises(InvalidRequest, match=r"bytes of data|both at least 1|more than 1048576"):
        convert.items_of(pb.PredictRequest(tensors=pb.TensorInput(tensors=[tensor])), TEXT, 3)


@pytest.mark.parametrize(
    ("sequences", "field", "message"),
    [
        ([[]], "x[0]", "the sequence is empty"),
        ([[1], [1] * 9], "x[1]", "has 9 tokens; this model takes at most 8"),
        ([[1, 100]], "x[0]", "token id 100 is outside the vocabulary, 0 to 99"),
        ([[1], [-1]], "x[1]", "token id -1 is outside the vocabulary"),
    ],
)
def test_ids_that_could_break_the_model_are_refused(
    sequences: list[list[int]], field: str, message: str
) -> None:
    arrays = [np.array(ids, dtype=np.int64) for ids in sequences]
    with pytest.raises(InvalidRequest) as caught:
        check_ids(arrays, TEXT, "x")
    assert caught.value.field == field
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ([], "text.texts"),
        ([""], "text.texts[0]"),
        (["a", " \n"], "text.texts[1]"),
        (["a", "b\0c"], "text.texts[1]"),
        (["a" * 200_001], "text.texts"),
        (["a"] * 4, "text.texts"),
    ],
)
def test_text_that_is_empty_enormous_or_not_text_is_refused(texts: list[str], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_texts(texts, 3, "text.texts")
    assert caught.value.field == field


def test_logits_travel_as_little_endian_float32() -> None:
    tensor = pb.Tensor()
    convert.write_output(tensor, "logits", [np.array([1.0, -2.0], np.float32)])
    assert (tensor.datatype, list(tensor.shape)) == ("FP32", [1, 2])
    assert tensor.data == b"\x00\x00\x80?\x00\x00\x00\xc0"


def test_an_unknown_energy_is_absent_with_a_reason() -> None:
    receipt = Receipt("r-1", "mine", "fp32", "cpu", 5)
    receipt.lines.append(Line(receipt, 3, padded_tokens=4, batch_size=2, windows=1))
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(receipt.lines[0], None, 0.0, None, "the GPU is lost"), ACCELERATOR)
    message = convert.receipt_message(receipt, {ACCELERATOR: Source("nvml", "", Quality.MEASURED)})
    assert not message.HasField("energy_uj")
    assert not message.HasField("energy_low_uj")
    assert not message.lines[0].HasField("energy_uj")
    assert message.state == pb.ENERGY_STATE_UNKNOWN
    assert message.unknown_reason == "the GPU is lost"


def test_a_provisional_receipt_without_a_law_says_that_it_will_settle() -> None:
    receipt = Receipt("r-1", "mine", "fp32", "cpu", 5)
    receipt.lines.append(Line(receipt, 3, batch_size=1, windows=1))
    receipt.end(Outcome.COMPLETED)
    message = convert.receipt_message(receipt, {ACCELERATOR: Source("nvml", "", Quality.MEASURED)})
    assert message.state == pb.ENERGY_STATE_PROVISIONAL
    assert not message.HasField("energy_uj")
    assert message.unknown_reason == "the cost law of 'fp32' is not known yet; this will settle"


def test_token_types_are_taken_when_there_is_one_segment_only() -> None:
    zeros = np.zeros_like(IDS)
    (first, _) = convert.items_of(tensors(("input_ids", IDS), ("token_type_ids", zeros)), TEXT, 3)
    assert first.tolist() == IDS[0].tolist()
    with pytest.raises(InvalidRequest) as caught:
        convert.items_of(tensors(("input_ids", IDS), ("token_type_ids", zeros + 1)), TEXT, 3)
    assert caught.value.field == "tensors.tensors[1].data"
