"""Perplexity of several arms on the same rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wattserve_loadgen.figures.perplexity import Scored, measure_perplexity


def test_it_is_of_all_tokens_and_not_a_mean_of_rows() -> None:
    told = measure_perplexity({"fp32": Scored([2.0, 30.0], [1, 9])}, "fp32")["fp32"]
    assert told.nats_per_token == pytest.approx(3.2)
    assert told.perplexity == pytest.approx(math.exp(3.2))
    assert (told.rows, told.tokens, told.difference) == (2, 10, None)
    assert math.isfinite(measure_perplexity({"fp32": Scored([1e30], [1])}, "fp32")["fp32"].perplexity)


def test_rows_are_paired_so_a_small_difference_is_certain_where_rows_differ_much() -> None:
    source = np.random.default_rng(3)
    nats = source.uniform(50, 300, 80)
    tokens = [50] * 80
    told = measure_perplexity(
        {"fp32": Scored(nats.tolist(), tokens), "int8": Scored((nats * 1.01).tolist(), tokens)}, "fp32"
    )
    own, base = told["int8"], told["fp32"]
    assert own.low is not None
    assert base.high is not None
    assert own.low < base.high  # alone they could not be told apart
    assert own.difference == pytest.approx(0.01 * base.nats_per_token)
    assert own.difference_low is not None
    assert own.difference_low > 0


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    source = np.random.default_rng(8)
    held = 0
    for _ in range(200):
        nats = source.gamma(4.0, 25.0, 60)  # a mean of 100 a row, 2 a token
        told = measure_perplexity({"fp32": Scored(nats.tolist(), [50] * 60)}, "fp32")["fp32"]
        assert told.low is not None
        assert told.high is not None
        held += told.low <= 2.0 <= told.high
    assert 0.88 <= held / 200 <= 0.99


def test_one_row_has_no_interval() -> None:
    told = measure_perplexity({"a": Scored([5.0], [4]), "b": Scored([6.0], [4])}, "a")
    assert (told["a"].low, told["a"].high) == (None, None)
    assert (told["b"].difference, told["b"].difference_low) == (0.25, None)


def test_what_the_scoring_cost_stays_with_its_arm() -> None:
    told = measure_perplexity({"a": Scored([1.0], [1], 70), "b": Scored([1.0], [1], None, "no meter")}, "a")
    assert (told["a"].energy_uj, told["b"].energy_uj, told["b"].energy_reason) == (70, None, "no meter")
