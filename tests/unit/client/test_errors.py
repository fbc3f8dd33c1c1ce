"""Which exception a status code becomes, and what it carries."""

from __future__ import annotations

import pickle

import grpc
import pytest

from wattserve_client import errors
from wattserve_client.errors import CODE_NAMES, WattserveError, error_for, error_for_number

EXPECTED = {
    "CANCELLED": errors.Cancelled,
    "UNKNOWN": errors.ServerError,
    "INVALID_ARGUMENT": errors.InvalidRequest,
    "DEADLINE_EXCEEDED": errors.DeadlineExceeded,
    "NOT_FOUND": errors.NotFound,
    "ALREADY_EXISTS": errors.ServerError,
    "PERMISSION_DENIED": errors.NotAllowed,
    "RESOURCE_EXHAUSTED": errors.Overloaded,
    "FAILED_PRECONDITION": errors.NotPossible,
    "ABORTED": errors.ServerError,
    "OUT_OF_RANGE": errors.InvalidRequest,
    "UNIMPLEMENTED": errors.ServerError,
    "INTERNAL": errors.ServerError,
    "UNAVAILABLE": errors.Unavailable,
    "DATA_LOSS": errors.ServerError,
    "UNAUTHENTICATED": errors.NotAllowed,
}


def test_every_code_of_grpc_but_ok_has_its_exception() -> None:
    assert {code.name for code in grpc.StatusCode} - {"OK"} == set(EXPECTED)
    assert {code: type(error_for(code, "m", "t")) for code in EXPECTED} == EXPECTED


def test_the_numbers_of_the_codes_are_grpcs() -> None:
    assert {code.value[0]: code.name for code in grpc.StatusCode} == dict(enumerate(CODE_NAMES))


@pytest.mark.parametrize(
    ("number", "code"),
    [(5, "NOT_FOUND"), (8, "RESOURCE_EXHAUSTED"), (0, "UNKNOWN"), (17, "UNKNOWN"), (-1, "UNKNOWN")],
)
def test_a_number_becomes_its_code_and_a_senseless_one_unknown(number: int, code: str) -> None:
    error = error_for_number(number, "why", "host:1")
    assert (error.code, type(error)) == (code, EXPECTED[code])


def test_an_error_prints_the_servers_words_the_code_and_the_target() -> None:
    error = error_for("NOT_FOUND", "no variant 'fp8'; there are fp32, bf16", "host:1")
    assert str(error) == "no variant 'fp8'; there are fp32, bf16 (NOT_FOUND from host:1)"
    assert (error.message, error.code, error.target) == (
        "no variant 'fp8'; there are fp32, bf16",
        "NOT_FOUND",
        "host:1",
    )


def test_an_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(error_for("UNAVAILABLE", "draining", "host:1")))
    assert type(error) is errors.Unavailable
    assert str(error) == "draining (UNAVAILABLE from host:1)"


def test_the_tree_in_the_docstring_names_every_exception() -> None:
    classes = {each.__name__ for each in WattserveError.__subclasses__()}
    assert classes == {each.__name__ for each in EXPECTED.values()}
    assert errors.__doc__ is not None
    assert all(f"── {name} " in errors.__doc__ for name in classes)
