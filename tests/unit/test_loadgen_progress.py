"""What the user sees while a sweep runs."""

from __future__ import annotations

import io

from rich.console import Console

from tests.fixtures.loadgen_results import make_cell
from wattserve_loadgen.plan.schedule import cells, make_plan
from wattserve_loadgen.sweeping.progress import LiveDisplay, PlainDisplay, TimeLeft, describe_result

CELLS = cells(make_plan("look", ("fp32",), concurrencies=(1,)))  # one short heat-up cell, three of 2.3 s


def test_the_time_left_is_the_load_to_come_plus_what_settling_took_so_far() -> None:
    now = 100.0
    left = TimeLeft(CELLS, clock=lambda: now)
    assert left.seconds() == 0.4 + 3 * 2.3 + 4 * 0.5  # a guess of half a second per cell at first
    now = 100.0 + 0.4 + 1.0
    left.cell_done()
    assert round(left.seconds(), 6) == round(3 * 2.3 + 3 * 1.0, 6)
    now += 1.5
    assert round(left.seconds(), 6) == round(3 * 2.3 + 3 * 1.0 - 1.5, 6)


def test_the_time_left_is_never_negative() -> None:
    now = 0.0
    left = TimeLeft(CELLS[:1], clock=lambda: now)
    now = 50.0
    assert left.seconds() == 0.0


def test_a_result_is_told_in_one_line_with_what_went_wrong() -> None:
    assert describe_result(make_cell()) == "   80.0/s  p50  40.0 ms  20.0 mJ/request"
    text = describe_result(
        make_cell(
            failed=2,
            failure_example="INTERNAL boom",
            stopped="interrupted by the user",
            energy={"active_uj_per_request": None, "reason": "no meter"},
        )
    )
    assert text.endswith("no joules: no meter  2 failed: INTERNAL boom  ended early: interrupted by the user")


def test_a_log_gets_one_plain_line_per_cell() -> None:
    file = io.StringIO()
    display = PlainDisplay(Console(file=file, width=40))
    display.begin(CELLS)
    for cell in CELLS[:2]:
        display.cell_started(cell)
        display.tick(500.0, 1_000_000)
        display.cell_done(cell, None if cell.discarded else make_cell())
    display.end()
    first, second = file.getvalue().splitlines()
    assert first.startswith("[  1/4] heat-up  fp32             × 1   (not counted)  · ")
    assert second.startswith(
        "[  2/4] block 1  fp32             × 1      80.0/s  p50  40.0 ms  20.0 mJ/request  · "
    )
    assert "\x1b" not in file.getvalue()


def test_a_terminal_shows_the_running_cells_figures() -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, width=120, force_terminal=True))
    display.say("starting [not markup]")
    display.begin(CELLS)
    display.cell_started(CELLS[1])
    display.tick(None, None)
    display.tick(512.0, 1_910_000)
    display.cell_done(CELLS[1], make_cell())
    display.end()
    text = file.getvalue()
    for part in (
        "starting [not markup]",
        "warming up",
        "512/s",
        "p50 1.91 ms",
        "0/4 cells",
        "left",
        "20.0 mJ/request",
    ):
        assert part in text
