"""The parameters of a request: what they ask for, what is ignored, what is refused."""

from __future__ import annotations

import pytest

from tests.clients.oip_stub import parameters
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.errors import InvalidRequest
from wattserve_server.service.oip_request import read_options
from wattserve_server.service.prediction import Options


def options(**given: bool | int | str) -> Options:
    return read_options(oip.ModelInferRequest(id="mine", parameters=parameters(given)))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Options("mine", 2, False, None)),
        ({"priority": 1}, Options("mine", 1)),
        ({"priority": 3}, Options("mine", 3)),
        ({"priority": 0}, Options("mine", 2)),  # Triton's word for the default
        ({"timeout": 1500}, Options("mine", timeout_ns=1_500_000)),
        ({"timeout": 0}, Options("mine", timeout_ns=None)),  # and for none
        ({"energy": "settled"}, Options("mine", waits_for_energy=True)),
        ({"energy": "provisional"}, Options("mine")),
        ({"energy": ""}, Options("mine")),
        ({"triton_enable_empty_final_response": True}, Options("mine")),
        ({"sequence_id": 0, "sequence_start": False, "sequence_end": False}, Options("mine")),
        ({"sequence_id": ""}, Options("mine")),
        ({"headers": "x", "binary_data_output": True, "whatever": 7}, Options("mine")),
    ],
)
def test_what_a_request_asks_for(given: dict[str, bool | int | str], wanted: Options) -> None:
    assert options(**given) == wanted


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("priority", 4, "priority 4; 1 goes first, 2 is the default, 3 goes last"),
        ("priority", -1, "-1 is no whole number from 0"),
        ("priority", "1", "'1' is no whole number from 0"),
        ("priority", True, "True is no whole number from 0"),
        ("timeout", -5, "-5 is no whole number from 0"),
        ("timeout", "soon", "'soon' is no whole number from 0"),
        ("energy", "now", "'now'; either 'provisional' or 'settled'"),
        ("energy", True, "True is no string_param"),
        ("sequence_id", 7, "keeps nothing from one request to the next"),
        ("sequence_id", "a", "keeps nothing"),
        ("sequence_start", True, "keeps nothing"),
        ("sequence_end", True, "keeps nothing"),
        ("triton_other", True, "'triton_other' is reserved"),
        ("truncate", "yes", "'yes' is no bool_param"),
        ("truncate", True, "only texts are cut"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, value: bool | int | str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        options(**{name: value})
    assert words in str(caught.value)
    assert caught.value.field == f"parameters[{name}]"


def test_texts_may_be_cut() -> None:
    request = oip.ModelInferRequest(parameters=parameters({"truncate": True}))
    request.inputs.add(name="text")
    assert read_options(request).truncates


def test_unsigned_numbers_count_and_fractions_do_not() -> None:
    """tritonclient sends priorities as uint64."""
    request = oip.ModelInferRequest()
    request.parameters["priority"].uint64_param = 1
    assert read_options(request).priority == 1
    request.parameters["priority"].double_param = 1.0
    with pytest.raises(InvalidRequest, match=r"1\.0 is no whole number"):
        read_options(request)


def test_a_parameter_without_a_value_is_none() -> None:
    request = oip.ModelInferRequest()
    request.parameters["sequence_id"].SetInParent()
    assert read_options(request) == Options()
    request.parameters["priority"].SetInParent()
    with pytest.raises(InvalidRequest, match="None is no whole number"):
        read_options(request)


@pytest.mark.parametrize(
    ("given", "why"), [("x" * 257, "at most 256 are kept"), ("a\0b", "holds the character NUL")]
)
def test_an_id_that_cannot_be_kept_is_refused(given: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        read_options(oip.ModelInferRequest(id=given))
    assert caught.value.field == "id"
