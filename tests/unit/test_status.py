"""The one table from errors to gRPC codes."""

import grpc

from wattserve_server import errors
from wattserve_server.service.status import CODES, INTERNAL_MESSAGE, MAX_MESSAGE, code_and_message

NEVER_ON_THE_WIRE = (errors.ConfigError, errors.MeterError)


def leaves(kind: type[errors.WattserveError]) -> set[type[errors.WattserveError]]:
    below = kind.__subclasses__()
    return set().union(*(leaves(child) for child in below)) if below else {kind}


def test_every_error_that_a_caller_can_meet_has_a_code() -> None:
    met = {kind for kind in leaves(errors.WattserveError) if not issubclass(kind, NEVER_ON_THE_WIRE)}
    assert set(CODES) == met


def test_the_message_names_the_field() -> None:
    error = errors.InvalidRequest("the text is empty", "text.texts[0]")
    assert code_and_message(error) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "text.texts[0]: the text is empty",
    )


def test_a_bug_shows_nothing_of_itself_to_the_caller() -> None:
    assert code_and_message(KeyError("secret")) == (grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE)


def test_a_message_that_repeats_a_callers_huge_value_is_shortened() -> None:
    _, message = code_and_message(
        errors.NotFound(f"unknown variant {'x' * 20_000!r}; loaded: fp32", "variant")
    )
    assert len(message) <= MAX_MESSAGE + 5
    assert message.startswith("variant: unknown variant 'xxx")
    assert message.endswith("loaded: fp32")
