"""The meter's readings in a report: power over time, and the cells in run order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.loadgen_pages import Page, make_meter, make_sheet
from tests.fixtures.loadgen_results import TARGET, make_results, reading_lines
from wattserve_loadgen.model.results import Results
from wattserve_loadgen.report.page import render, write_report
from wattserve_loadgen.report.record_charts import power_over_time, power_steps, run_order
from wattserve_loadgen.results.folder import ResultsFolder
from wattserve_loadgen.results.readings import MeterReadings


def timed() -> Results:
    """A sweep that knows when its windows were."""
    results = make_results()
    cells = [
        replace(cell, window_start_seconds=5.0 * place, window_seconds=4.0)
        for place, cell in enumerate(results.cells)
    ]
    return replace(results, cells=cells)


def test_fewer_steps_keep_the_energy() -> None:
    meter = make_meter(TARGET)
    edges, watts = power_steps(meter, 7)
    assert len(watts) <= 7
    assert float(watts @ np.diff(edges)) == pytest.approx(float(meter.joules[-1] - meter.joules[0]))


def test_a_counter_that_steps_back_has_no_power_there() -> None:
    meter = MeterReadings("a", "", np.array([0.0, 1.0, 2.0]), np.array([5.0, 7.0, 1.0]), None)
    assert np.isnan(power_steps(meter, 10)[1]).tolist() == [False, True]


def test_power_is_drawn_with_its_windows_and_a_tick_for_each_reading() -> None:
    drawing = power_over_time(make_sheet(timed()), make_meter(TARGET))
    assert drawing is not None
    found = drawing.svg("power")
    for text in ("watts", "seconds since the sweep's start", "each tick is a reading", "idle", "fp32 (A/A)"):
        assert text in found


def test_two_meters_have_a_chart_each() -> None:
    other = replace(make_meter(TARGET), device="cuda:0")
    found = Page(render(timed(), {}, [make_meter(TARGET), other]))
    assert f"cpu of {TARGET}" in found.figure(f"Power over time: cpu of {TARGET}")
    assert found.figure(f"Power over time: cuda:0 of {TARGET}")


def test_power_is_drawn_without_windows_too() -> None:
    drawing = power_over_time(make_sheet(make_results()), make_meter(TARGET))
    assert drawing is not None
    assert "each tick is a reading" not in drawing.svg("power")


def test_the_strip_shows_temperature_and_clock_only_where_they_are_known() -> None:
    results = make_results()
    strip = run_order(make_sheet(results))
    assert strip is not None
    assert "CPU MHz" in strip.svg("order")
    assert "°C" in strip.svg("order")
    strip = run_order(
        make_sheet(replace(results, cells=[replace(cell, conditions=None) for cell in results.cells]))
    )
    assert strip is not None
    assert "CPU MHz" not in strip.svg("order")
    assert "°C" not in strip.svg("order")


def test_the_report_of_a_folder_shows_its_readings(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path / "out")
    folder.start()
    folder.write(timed())
    (folder.path / "readings.jsonl").write_text(
        reading_lines(*((TARGET, second / 10, second * 0.5, 5.0) for second in range(100)))
    )
    assert "Power over time" in Page(write_report(folder.path).read_text()).text
