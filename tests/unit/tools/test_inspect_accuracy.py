"""`inspect accuracy`: its figures against slow definitions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from wattserve_common.stats import wilson_interval
from wattserve_server.engine.rows import Examples
from wattserve_server.errors import ConfigError
from wattserve_tools.inspect import accuracy
from wattserve_tools.inspect.accuracy import (
    NO_ANSWER,
    McNemar,
    Share,
    agreement,
    cosines,
    deviation,
    mcnemar,
    predicted,
    score,
)


def rows(*values: tuple[float, ...]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def exact_p(b: int, c: int) -> Fraction:
    """The sum of the probabilities of all outcomes of b + c fair tosses that are no likelier than this."""
    n = b + c
    chances = [Fraction(math.comb(n, k), 2**n) for k in range(n + 1)]
    return sum((chance for chance in chances if chance <= chances[b]), Fraction(0))


@pytest.mark.parametrize("b", range(9))
@pytest.mark.parametrize("c", range(9))
def test_mcnemars_p_is_that_of_the_exact_binomial_test(b: int, c: int) -> None:
    assert McNemar(b, c).p == pytest.approx(float(exact_p(b, c)), rel=1e-12)


def test_mcnemars_p_of_thousands_of_pairs_neither_overflows_nor_vanishes() -> None:
    assert McNemar(2500, 2500).p == 1.0
    assert 0 < McNemar(2300, 2700).p < 1e-6


def test_a_share_has_wilsons_interval() -> None:
    low, high = wilson_interval(93, 100)
    assert Share(93, 100).as_json() == {"count": 93, "of": 100, "share": 0.93, "low": low, "high": high}


def test_a_row_that_is_not_finite_has_no_label() -> None:
    found = predicted(rows((1, 2), (math.nan, 2), (math.inf, 1), (3, 2)))
    assert found.tolist() == [1, NO_ANSWER, NO_ANSWER, 0]


def test_rows_without_a_label_count_for_agreement_and_not_for_accuracy() -> None:
    reference = rows((2, 1), (2, 1), (1, 2), (1, 2))
    other = rows((2, 1), (1, 2), (1, 2), (1, 2))
    labels = np.array([0, -1, 1, 0])
    assert score(other, labels) == Share(2, 3)
    assert agreement(reference, other) == Share(3, 4)


def test_mcnemar_counts_only_labelled_rows_that_one_of_the_two_has_right() -> None:
    reference = rows((2, 1), (2, 1), (1, 2), (1, 2), (2, 1))
    other = rows((1, 2), (1, 2), (2, 1), (1, 2), (1, 2))
    assert mcnemar(reference, other, np.array([0, 0, 0, 1, -1])) == McNemar(b=2, c=1)


def test_two_rows_without_an_answer_do_not_agree() -> None:
    broken = rows((math.nan, 1), (1, 2))
    assert agreement(broken, broken) == Share(1, 2)


def test_the_errors_are_those_of_numpy_in_double_precision() -> None:
    generator = np.random.default_rng(1)
    reference, other = generator.normal(size=(2, 40, 3)).astype(np.float32)
    error = other.astype(np.float64) - reference.astype(np.float64)
    largest, rms = deviation(reference, other)
    assert largest == pytest.approx(float(np.abs(error).max()))
    assert rms == pytest.approx(float(np.sqrt((error**2).mean())))


def test_errors_leave_out_what_is_not_finite_and_are_unknown_where_nothing_is() -> None:
    assert deviation(rows((1, 2)), rows((math.inf, 4))) == (2.0, 2.0)
    assert deviation(rows((1, 2)), rows((math.nan, math.inf))) == (None, None)


def test_cosines_are_those_of_each_pair_of_rows_that_has_one() -> None:
    found = cosines(rows((1, 0), (1, 1), (0, 0), (1, 2)), rows((1, 0), (1, 0), (1, 0), (math.nan, 1)))
    assert found == pytest.approx([1.0, math.sqrt(0.5)])


class _Variant:
    """Of a variant, all that is asked before anything runs."""

    class variant:
        name = "int8-static"

        class built:
            detail = "activations by one scale per layer from 512 rows of train (sha256 0123456789ab)"


class _Subject:
    no_reference = ""

    class model:
        labels = ("a", "b")
        config = None
        has_random_weights = False

    def build(self) -> list[type[_Variant]]:
        return [_Variant]


def test_a_variant_is_not_judged_on_the_dataset_that_its_scales_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accuracy, "no_accuracy", lambda model, examples: "")
    examples = Examples((), np.zeros(0, dtype=np.int64), "train", "0123456789abcdef")
    subject: Any = _Subject()
    with pytest.raises(ConfigError, match="int8-static was calibrated on this very dataset"):
        accuracy.inspect_accuracy(subject, examples, None)
