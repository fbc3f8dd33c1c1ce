"""Names of the Open Inference Protocol: which variant each stands for."""

from __future__ import annotations

import pytest

from tests.clients.oip_world import NAME, VARIANTS, ready
from wattserve_server.errors import InvalidRequest, NotFound
from wattserve_server.service.oip_request import DESCRIBED, INFERRED, alias, alias_of, hosted_named

ENGINE = ready().engine


@pytest.mark.parametrize(
    ("name", "version", "variant"),
    [
        (NAME, "", None),
        (NAME, "1", None),
        (f"{NAME}@fp32", "", "fp32"),
        (f"{NAME}@bf16", "1", "bf16"),
        (f"{NAME}@int8@cpu", "", "int8@cpu"),
    ],
)
def test_a_name_stands_for_its_variant(name: str, version: str, variant: str | None) -> None:
    assert alias_of(ENGINE, name, version, DESCRIBED) == variant
    assert hosted_named(ENGINE, name, version, DESCRIBED).choice.name == (variant or "fp32")


def test_every_variant_has_a_name_that_stands_for_it() -> None:
    for variant in VARIANTS:
        assert alias_of(ENGINE, alias(ENGINE, variant), "", DESCRIBED) == variant


@pytest.mark.parametrize(
    ("name", "version", "error", "field", "words"),
    [
        ("", "", NotFound, "model_name", "unknown model ''"),
        ("demo", "", NotFound, "model_name", "unknown model 'demo'; this server has 'de@mo'"),
        ("de", "", NotFound, "model_name", "unknown model 'de'"),
        ("DE@MO", "", NotFound, "model_name", "unknown model"),
        (f"{NAME}fp32", "", NotFound, "model_name", "unknown model"),
        (f"{NAME}@", "", NotFound, "model_name", "unknown variant ''"),
        (f"{NAME}@int8", "", NotFound, "model_name", "unknown variant 'int8' of 'de@mo'; this server has"),
        (f"{NAME}@fp32 ", "", NotFound, "model_name", "unknown variant 'fp32 '"),
        (NAME, "2", NotFound, "model_version", "version '2': this server has version '1' only"),
        (NAME, "01", NotFound, "model_version", "version '01'"),
        (NAME, "fp32", InvalidRequest, "model_version", "a variant is chosen by the parameter"),
        (NAME, "-1", InvalidRequest, "model_version", "a version is a whole number"),
        (NAME, " 1", InvalidRequest, "model_version", "a version is a whole number"),
        ("other", "2", NotFound, "model_version", "version '2'"),
        (NAME, "9" * 500, NotFound, "model_version", "9" * 80),
    ],
)  # fmt: skip
def test_other_names_and_versions_are_refused(
    name: str, version: str, error: type[Exception], field: str, words: str
) -> None:
    with pytest.raises(error) as caught:
        alias_of(ENGINE, name, version, INFERRED)
    assert words in str(caught.value)
    assert getattr(caught.value, "field", "") == field


def test_the_field_of_a_refusal_is_that_of_the_message_asked_with() -> None:
    for name, version, field in (("other", "", "name"), (NAME, "2", "version")):
        with pytest.raises(NotFound) as caught:
            alias_of(ENGINE, name, version, DESCRIBED)
        assert caught.value.field == field
