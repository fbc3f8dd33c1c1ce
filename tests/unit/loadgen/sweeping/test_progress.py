"""What the user sees while a sweep runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.fixtures.loadgen_results import FP32, make_cell, make_percentiles, make_results
from wattserve_loadgen.model.results import Check
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.plan.schedule import cells, make_plan
from wattserve_loadgen.sweep_commands import checks_line
from wattserve_loadgen.sweeping.progress import LiveDisplay, PlainDisplay, Tick, TimeLeft, describe_result

CELLS = cells(make_plan("look", [FP32], loads=[closed(1)]))  # one short heat-up cell, three of 2.3 s


def test_the_time_left_is_the_load_to_come_plus_what_settling_took_so_far() -> None:
    now = 100.0
    left = TimeLeft(CELLS, clock=lambda: now)
    assert left.seconds() == 0.4 + 3 * 2.3 + 4 * 0.5  # a guess of half a second per cell at first
    now = 100.0 + 0.4 + 1.0
    left.cell_done()
    assert round(left.seconds(), 6) == round(3 * 2.3 + 3 * 1.0, 6)
    now += 1.5
    assert round(left.seconds(), 6) == round(3 * 2.3 + 3 * 1.0 - 1.5, 6)


def test_cells_that_were_measured_before_a_resume_take_no_time_and_say_nothing_of_settling() -> None:
    now = 100.0
    left = TimeLeft(CELLS, clock=lambda: now)
    now = 100.0 + 0.4 + 1.0
    left.cell_done()  # the heat-up cell: a second beside its load
    left.cell_passed()
    left.cell_passed()
    assert round(left.seconds(), 6) == 2.3 + 1.0


def test_the_time_left_is_never_negative() -> None:
    now = 0.0
    left = TimeLeft(CELLS[:1], clock=lambda: now)
    now = 50.0
    assert left.seconds() == 0.0


def test_a_result_is_told_in_one_line_with_what_went_wrong() -> None:
    assert describe_result(make_cell()) == "   80.0/s  p50  12.5 ms  p99  22.0 ms  20.0 mJ/request"
    text = describe_result(
        make_cell(
            failed=2,
            failure_example="INTERNAL boom",
            stopped="interrupted by the user",
            energy={"active_uj_per_request": None, "reason": "no meter"},
        )
    )
    assert text.endswith("no joules: no meter  2 failed: INTERNAL boom  ended early: interrupted by the user")


def test_a_percentile_that_the_sample_does_not_carry_is_a_dash() -> None:
    few = describe_result(make_cell(latency=make_percentiles(samples=100)))
    assert few == "   80.0/s  p50  12.5 ms  p99        –  20.0 mJ/request"


def test_a_log_gets_one_plain_line_per_cell() -> None:
    file = io.StringIO()
    display = PlainDisplay(Console(file=file, width=40))
    display.begin(CELLS)
    for cell in CELLS[:2]:
        display.cell_started(cell)
        display.tick(Tick(500.0, 1_000_000, 2_000_000, 30.0))
        display.cell_done(cell, None if cell.discarded else make_cell())
    display.cell_passed(CELLS[2])
    display.end()
    first, second, third = file.getvalue().splitlines()
    assert first.startswith("[  1/4] heat-up  fp32             concurrency 1     (not counted)  · ")
    assert second.startswith(
        "[  2/4] block 1  fp32             concurrency 1        80.0/s  p50  12.5 ms  p99"
    )
    assert third.startswith("[  3/4] block 2  fp32             concurrency 1     already measured  · ")
    assert third.endswith("s left")
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_the_running_cell_and_its_figures_in_whole(width: int) -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, width=width, force_terminal=True))
    display.say("starting [not markup]")
    display.begin(CELLS)
    display.cell_started(CELLS[1])
    display.tick(Tick(None, None, None, None))
    display.tick(Tick(1512.0, 18_910_000, 131_000_000, 264.8))
    display.cell_done(CELLS[1], make_cell())
    display.end()
    text = file.getvalue()
    for part in (
        "starting [not markup]",
        "block 1 fp32 concurrency 1",
        "warming up",
        "1,510/s  p50 18.9 ms  p99 131 ms  265 W  175 mJ/request with idle",
        "0/4 cells",
        "s left",
        "20.0 mJ/request",
    ):
        assert part in text
    assert "…" not in text


def test_a_long_line_is_cut_and_not_wrapped() -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, width=20, force_terminal=True))
    display.begin(CELLS)
    display.tick(Tick(512.0, 1_910_000, 2_000_000, 30.0))
    display.end()
    assert "512/s  p50 1.91 ms …" in file.getvalue()


def test_the_checks_are_summed_up_in_one_line() -> None:
    checks = [Check("every cell", True, ""), Check("steady power", False, ""), Check("clock", None, "")]
    assert checks_line(make_results(checks=checks), Path("out")) == (
        "1 of 2 checks failed: steady power (`loadgen validate out` says why)"
    )
    assert checks_line(make_results(checks=checks[:1]), Path("out")) == "all checks passed (1)"
