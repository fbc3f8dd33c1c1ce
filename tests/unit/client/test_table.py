"""Tables and lists of facts as plain text."""

from __future__ import annotations

import pytest
from rich.text import Text

from wattserve_client._cli.predict_lines import row_of
from wattserve_client._cli.words import facts, flat, table


def test_columns_stand_under_their_titles_and_numbers_to_the_right() -> None:
    shown = table(("label", ">joules"), [("positive", "0.1"), ("no", "12.25")])
    assert shown.splitlines() == [
        "label     joules",
        "positive     0.1",
        "no         12.25",
    ]


def test_only_the_named_column_is_shortened_and_only_as_far_as_needed() -> None:
    rows = [("a long variant name", "a text that is too long"), ("short", "a text")]
    shown = table(("variant", "input"), rows, width=40, elide="input").splitlines()
    assert shown == [
        "variant              input",
        "a long variant name  a text that is too…",
        "short                a text",
    ]
    assert max(map(len, shown)) == 40


def test_without_a_width_nothing_is_shortened() -> None:
    assert "x" * 500 in table(("a",), [("x" * 500,)], elide="a")


def test_the_other_columns_win_over_the_width() -> None:
    shown = table(("a", "b"), [("x" * 50, "a text that is too long")], width=20, elide="b")
    assert shown.splitlines()[1] == f"{'x' * 50}  a text …"


def test_a_cell_cannot_break_its_line_or_move_the_cursor() -> None:
    shown = table(("input", "joules"), [("two\nlines\x1b[2J", "1")])
    assert shown.count("\n") == 1
    assert "\x1b" not in shown
    assert flat("a\tb") == "a b"


def test_wide_characters_take_two_columns() -> None:
    shown = table(("a", "b"), [("日本", "1"), ("abcd", "2")]).splitlines()
    assert shown[1:] == ["日本  1", "abcd  2"]


@pytest.mark.parametrize("text", ["a text of words", "日本語日本語日本語日本語", "ab日cd本ef語gh日ij本kl語"])
def test_what_is_shortened_fits_and_says_so(text: str) -> None:
    for width in range(9, 15):
        line = table(("a",), [(text,)], width, elide="a").splitlines()[1]
        assert Text(line).cell_len <= width
        assert line.endswith("…")


def test_a_row_by_itself_keeps_to_the_page_and_its_columns_and_loses_no_cell() -> None:
    cells = ("1", "日本", "0.900", "3", "3", "0.04", "settled")
    row = row_of(cells, "a text that is too long for the page", width=80)
    assert row == "     1  日本           0.900       3       3      0.04  settled      a text tha…"
    assert Text(row).cell_len == 80
    long = row_of(("1", "a label of eighteen", *cells[2:]), "a text", width=80)
    assert long.startswith("     1  a label of eighteen   0.900  ")
    assert row_of(cells, "a text " * 99, width=0).endswith("a text " * 99)


def test_a_long_fact_goes_on_below_itself_and_loses_nothing() -> None:
    shown = facts([("source", "a rather long note about a meter"), ("run", "7")], width=24 + 8)
    assert shown.splitlines() == ["source  a rather long note about", "        a meter", "run     7"]


def test_a_fact_without_a_value_is_left_out() -> None:
    assert facts([("proxy", ""), ("run", "7")]) == "run  7"
    assert facts([]) == ""
