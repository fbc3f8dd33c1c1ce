"""Accuracy of every arm on the same rows, paired with the baseline's."""

from __future__ import annotations

import pytest

from tests.fixtures.loadgen_results import make_record
from wattserve_loadgen.figures.accuracy import measure_accuracy, note_predictions

LABELS = {0: 0, 1: 1, 2: 0, 3: 1}


def test_each_row_counts_once_on_the_rows_that_all_arms_answered() -> None:
    predictions = {
        "fp32": {0: [0, 0], 1: [1], 2: [0], 3: [1]},
        "int8": {0: [0, 1], 1: [0], 2: [0]},
    }
    rows, found = measure_accuracy(predictions, LABELS, "fp32")
    assert rows == 3
    assert (found["fp32"].correct, found["int8"].correct) == (3, 2)
    assert (found["fp32"].unstable_rows, found["int8"].unstable_rows) == (0, 1)
    assert found["int8"].share == pytest.approx(2 / 3)


def test_an_arm_is_paired_with_the_baseline_row_by_row() -> None:
    """Of 100 rows the baseline has 90 right; int8 loses eight of them and gains two others."""
    labels = dict.fromkeys(range(100), 0)
    base = {row: [0 if row < 90 else 1] for row in range(100)}
    int8 = base | {row: [1] for row in range(8)} | {row: [0] for row in (98, 99)}
    _, found = measure_accuracy({"fp32": base, "int8": int8}, labels, "fp32")
    own = found["int8"]
    assert (own.correct, own.gained_rows, own.lost_rows) == (84, 2, 8)
    assert own.difference == pytest.approx(-0.06)
    assert own.p_value == pytest.approx(0.109375)
    assert own.difference_low == pytest.approx(-0.1311, abs=1e-4)
    assert own.difference_high == pytest.approx(0.0056, abs=1e-4)


def test_the_baseline_is_paired_with_nothing_wherever_it_stands() -> None:
    _, found = measure_accuracy({"int8": {0: [1]}, "fp32": {0: [0]}}, LABELS, "fp32")
    assert (found["fp32"].gained_rows, found["fp32"].difference, found["fp32"].p_value) == (None, None, None)
    assert (found["int8"].gained_rows, found["int8"].lost_rows) == (0, 1)


def test_without_the_baseline_nothing_is_paired() -> None:
    _, found = measure_accuracy({"int8": {0: [0]}}, LABELS, "fp32")
    assert (found["int8"].correct, found["int8"].difference) == (1, None)


def test_an_answer_without_a_prediction_is_wrong() -> None:
    assert measure_accuracy({"fp32": {0: [None]}}, LABELS, "fp32")[1]["fp32"].correct == 0


def test_a_row_without_a_label_is_left_out_and_spoils_no_other() -> None:
    labels = {0: 0, 2: 1}
    answers = {0: [0], 1: [1], 2: [0]}
    rows, found = measure_accuracy({"fp32": answers, "int8": answers}, labels, "fp32")
    assert rows == 2
    assert (found["fp32"].correct, found["fp32"].rows, found["int8"].unstable_rows) == (1, 2, 0)
    assert measure_accuracy({"fp32": {1: [1]}}, labels, "fp32") == (0, {})


def test_without_common_rows_there_is_no_accuracy() -> None:
    assert measure_accuracy({"fp32": {0: [1]}, "int8": {1: [1]}}, LABELS, "fp32") == (0, {})
    assert measure_accuracy({}, LABELS, "fp32") == (0, {})


def test_predictions_are_those_of_answers_in_the_window_row_by_row() -> None:
    found: dict[str, dict[int, list[int | None]]] = {}
    note_predictions(
        found,
        [
            make_record(rows=[4, 5], predicted=[1, None]),
            make_record(rows=[4], predicted=[0]),
            make_record(rows=[6], predicted=[0], in_window=False),
            make_record(rows=[7], predicted=[None], ok=False),
            make_record(arm="int8", rows=[4], predicted=[1]),
        ],
    )
    assert found == {"fp32": {4: [1, 0], 5: [None]}, "int8": {4: [1]}}
