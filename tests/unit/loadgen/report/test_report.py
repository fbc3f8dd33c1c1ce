"""The report: what it says, and what it must never do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.loadgen_pages import COLUMNS, Page, columns_for, default_html, default_page, undrawn
from tests.fixtures.loadgen_results import (
    ARMS,
    FP32,
    INT8,
    make_cell,
    make_record,
    make_results,
    make_server,
    no_energy,
    with_source,
)
from wattserve_common.stats import Interval
from wattserve_loadgen.model.results import Point, Results
from wattserve_loadgen.plan.load import Load, closed
from wattserve_loadgen.report import charts, ink
from wattserve_loadgen.report import text as report_text
from wattserve_loadgen.report.charts import CHARTS, Chart
from wattserve_loadgen.report.facts import facts
from wattserve_loadgen.report.page import render, write_report
from wattserve_loadgen.report.scene import Sheet
from wattserve_loadgen.report.tables import closure_table, summary_table
from wattserve_loadgen.report.text import headline
from wattserve_loadgen.results.folder import ResultsFolder


def with_figures(point: Point, **changes: Any) -> Point:
    assert point.figures is not None
    return replace(point, figures=replace(point.figures, **changes))


def row(results: Results, arm: str, concurrency: int = 4) -> dict[str, str]:
    table = summary_table(results, closed(concurrency))
    found = next(entries for entries in table.rows if entries[0].text == arm)
    return {name: f"{one.text} {one.below}".strip() for name, one in zip(table.columns, found, strict=True)}


def test_the_page_loads_and_runs_nothing() -> None:
    html = default_html()
    assert default_page().active == []
    assert "@import" not in html
    assert set(re.findall(r"https?://[^\"' <]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_every_figure_names_the_energy_source_and_its_quality() -> None:
    figures = default_page().figures
    assert len(figures) == 14
    assert all(
        "Energy source: MEASURED by rapl:package-0 (apportioned counter)" in figure for figure in figures
    )


def test_every_latency_chart_of_a_closed_loop_says_that_it_is_service_time() -> None:
    latency = [figure for figure in default_page().figures if "latency" in figure.lower()]
    assert len(latency) == 7
    assert all("ervice time (closed loop: there is no schedule)" in figure for figure in latency)
    assert not any("esponse time" in figure for figure in latency)


def test_every_axis_has_its_unit() -> None:
    text = " ".join(default_page().figures)
    for label in (
        "answers per second",
        "p50 latency, ms (log scale)",
        "mJ per request",
        "concurrency (requests in flight)",
        "accuracy, %",
        "mean batch size, sequences",
        "padding, % of computed tokens",
        "mean latency, ms",
        "tokens in the request",
        "computed positions, padding included",
        "share of batches, %",
        "times the baseline (log scale)",
        "percentage points more than the baseline",
        "cells in run order, by block",
    ):
        assert label in text


def test_ids_are_unique_over_the_whole_default_page() -> None:
    ids = re.findall(r'\bid="([^"]+)"', default_html())
    assert len(ids) == len(set(ids))


def test_the_same_results_give_the_same_page() -> None:
    assert render(make_results(), COLUMNS) == default_html()


@pytest.mark.parametrize(("quality", "word"), [("estimated", "ESTIMATED"), ("simulated", "SIMULATED")])
def test_joules_that_no_sensor_measured_are_announced_loudly(quality: str, word: str) -> None:
    banners = report_text.banners(make_results(server=with_source(quality=quality)))
    assert (banners[0].kind, banners[0].title) == ("loud", f"Every joule here is {word}")


def test_an_estimate_is_said_to_come_from_cpu_time_and_not_from_an_estimate() -> None:
    server = with_source(
        quality="estimated", name="estimate", method="apportioned estimate", note="7.5 W a core"
    )
    results = make_results(server=server)
    assert dict(facts(results))["Energy source"] == "ESTIMATED from CPU time (apportioned estimate)"
    assert (
        "Estimated from CPU time (apportioned estimate). 7.5 W a core."
        in report_text.banners(results)[0].text
    )


def test_a_replay_is_announced_as_one_and_not_as_a_power_law() -> None:
    server = with_source(quality="simulated", name="replay of nvml:GPU-5")
    assert report_text.banners(make_results(server=server))[0].text.startswith(
        "A recording was played back, not a sensor of the server. Simulated by replay of nvml:GPU-5"
    )


def test_what_the_probe_of_the_sensor_found_stands_among_the_facts() -> None:
    server = make_server()
    server["meter"] |= {
        "probe": {
            "duration_seconds": 1.3,
            "reads": 1042,
            "stepped": True,
            "update_period_seconds": 0.1,
            "edge_jitter_seconds": 0.002,
            "read_cost_p50_seconds": 0.0001,
            "read_cost_p99_seconds": 0.0004,
            "resolution_uj": 1000,
            "watts": 80.0,
            "cross_checks": [{"window_seconds": 1.2, "counter_joules": 99.0, "power_joules": 100.0}],
            "unsupported": {"average power": "the driver is too old"},
        },
        "lag_seconds": 0.04,
        "ramp_seconds": None,
        "neighbours": 2,
        "parts": [{"source": {"name": "nvml:GPU-5"}, "boundary": "GPU board"}],
    }
    found = dict(facts(make_results(server=server)))
    assert found["Sensor at start-up"] == (
        "1,042 reads in 1.3 s, steps every 100 ms (deviation 2.00 ms), a read takes 0.100 ms, p99 0.400 ms, "
        "changes are multiples of 1.00 mJ, 80.0 W drawn meanwhile"
    )
    assert found["Counter against power"] == "99.00 J against 100.00 J over 1.20 s (-1.0 %)"
    assert found["Not shown by the sensor"] == "average power: the driver is too old"
    assert found["Counting lag and ramp"] == "lag 40.0 ms, as the server estimated them when the sweep began"
    assert found["Other processes on the device"] == "2"
    assert found["Meter is the sum of"] == "nvml:GPU-5 (GPU board)"


def test_a_probe_that_found_nothing_leaves_only_its_reason() -> None:
    server = make_server()
    server["meter"]["probe"] = {"reads": 5, "read_cost_p50_seconds": None, "unsupported": {"reading": "gone"}}
    found = dict(facts(make_results(server=server)))
    assert "Sensor at start-up" not in found
    assert found["Not shown by the sensor"] == "reading: gone"


def test_measured_joules_are_announced_calmly() -> None:
    assert report_text.banners(make_results())[0].kind == "calm"


def test_without_a_meter_there_are_no_joules_and_the_reason_is_given() -> None:
    cells = [make_cell(energy=no_energy("started without a meter"))]
    nothing = dict.fromkeys(
        (
            "active_uj",
            "idle_uj",
            "total_uj",
            "meter_uj",
            "meter_difference",
            "active_uj_per_token",
            "active_uj_per_padded_token",
        )
    )
    ratios = make_results().points[-1].shown.ratios
    ratios = replace(ratios, active_energy=None, total_energy=None)
    points = [
        with_figures(point, **nothing, ratios=ratios, energy_reason="started without a meter")
        for point in make_results().points
    ]
    results = make_results(
        server=with_source(quality="none", name="none", method="none"),
        energy_reason="started without a meter",
        cells=cells,
        points=points,
    )
    found = Page(render(results, {}))
    assert "No joules in this report" in found.text
    assert "No joules: started without a meter." in found.text
    assert "There is no ledger to check: started without a meter." in found.text
    assert not re.search(r"\d (µJ|mJ|J|kJ)\b", found.text)
    assert row(results, "int8")["energy per request"] == "–"


def test_an_accuracy_that_does_not_apply_is_never_a_number() -> None:
    results = make_results(accuracy={}, accuracy_rows=0, accuracy_reason="the model has random weights")
    found = Page(render(results, COLUMNS))
    assert row(results, "fp32")["accuracy"] == "not applicable"
    assert "Accuracy: not applicable, because the model has random weights." in found.text
    assert "accuracy, %" not in found.text


def test_the_table_reads_as_the_issue_asks() -> None:
    assert row(make_results(), "int8") == {
        "precision": "int8",
        "device": "cpu",
        "answers/s": "640 627–653",
        "latency p50": "6.25 ms ≤ 6.38 ms",
        "p95": "8.50 ms ≤ 9.00 ms",
        "p99": "11.0 ms ≤ 12.5 ms",
        "energy per request": "10.0 mJ + 7.81 mJ idle",
        "accuracy": "90.0 % 83.0–95.0",
        "model size": "2.50 MB",
        "speed-up": "2.00× 1.96–2.04",
        "energy ratio": "0.500× 0.490–0.510",
    }
    assert row(make_results(), "fp32")["speed-up"] == "1 baseline"


def test_the_page_shows_the_highest_concurrency_and_one() -> None:
    text = default_page().text
    assert "At concurrency 4" in text
    assert "At concurrency 1" in text


def test_the_headline_compares_the_thriftiest_variant_with_the_baseline() -> None:
    assert headline(make_results()) == (
        "At concurrency 4, int8 saves 50 % of the active energy per request of fp32 (50 % less with its"
        " share of the idle draw) and answers 2.00× as many requests per second;"
        " accuracy 90.0 % against 92.0 %."
    )
    estimated = headline(make_results(server=with_source(quality="estimated")))
    assert "saves 50 % of the active energy per request (estimated) of fp32" in estimated


def test_the_headline_holds_for_one_variant_and_for_nothing() -> None:
    assert headline(make_results(arms=[FP32])) == (
        "At concurrency 4, fp32 answers 320 requests per second at 20.0 mJ + 15.6 mJ idle each."
    )
    assert headline(make_results(points=[])) == "Nothing was measured."


def test_one_arm_alone_makes_a_whole_default_page() -> None:
    found = Page(render(make_results(arms=[FP32]), COLUMNS))
    assert len(found.figures) == 12
    assert "Compared with" not in found.text
    assert "this rig's own resolution is not known" in found.text


def test_an_unfinished_sweep_says_how_far_it_came() -> None:
    results = make_results(ended="the server was lost: gone", cells=[], points=[], cells_planned=12)
    text = Page(render(results, {})).text
    assert "This sweep ended early" in text
    assert "The server was lost: gone. 0 of 12 cells were measured." in text


def test_the_closure_table_sums_the_cells_of_a_variant() -> None:
    table = closure_table(make_results())
    found = dict(zip(table.columns, (entry.text for entry in table.rows[0]), strict=True))
    assert (found["cells of"], found["measured"], found["active"]) == ("fp32", "780 J", "330 J")
    assert (found["measured − sum"], found["active − receipts"]) == ("0 µJ", "0 µJ")


def test_what_came_from_outside_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    server = make_server(model_name=evil, hardware=evil, versions={evil: evil})
    server["meter"]["source"]["note"] = evil
    cells = [make_cell(failures={"INTERNAL": 1}, failure_example=evil, stopped=evil)]
    results = make_results(server=server, notes=[evil], ended=evil, command=[evil], cells=cells)
    html = render(results, COLUMNS)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 8


def test_an_arm_name_from_outside_cannot_break_out_of_a_chart() -> None:
    evil = replace(INT8, name='"><script>x</script>')
    html = render(
        make_results(arms=(FP32, evil)), columns_for(closed(1), closed(4), arms=("fp32", evil.name))
    )
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 20


def test_failures_and_unknown_energies_are_listed_with_an_example() -> None:
    cells = [
        make_cell(failures={"INTERNAL": 2}, failure_example="INTERNAL boom"),
        make_cell(
            failures={"INTERNAL": 1}, failure_example="INTERNAL other", energy={"unknown_reasons": {"gap": 4}}
        ),
    ]
    results = make_results(cells=cells)
    assert report_text.failures(results) == ["3 × INTERNAL, e.g. “INTERNAL boom”"]
    assert report_text.unknown_reasons(results) == ["4 × gap"]


def test_the_facts_leave_out_what_is_not_known() -> None:
    found = dict(facts(make_results()))
    assert found["Meter period"] == "polled every 20 ms, its value changes every 1 ms"
    assert found["Idle power"] == "5.00 W (measured)"
    assert "Git revision" not in found
    assert "Meter period" not in dict(facts(make_results(server=make_server(meter=None))))


def test_a_report_is_made_from_the_folder_alone(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path / "out")
    folder.start()
    folder.write(make_results())
    folder.add_records([make_record(cell=1, done_ns=1_000 + 1_000_000 * index) for index in range(1, 200)])
    path = write_report(folder.path)
    assert path == folder.path / "report.html"
    assert "The tail at concurrency 4" in path.read_text()


def test_a_ratio_whose_interval_holds_one_is_no_difference() -> None:
    unclear = Interval(0.8, 0.5, 1.2, 3)
    points = [
        with_figures(point, ratios=replace(point.shown.ratios, active_energy=unclear, rate=unclear))
        for point in make_results(arms=ARMS[:2]).points
    ]
    assert (
        "no difference in active energy per request between int8 and fp32 could be shown, nor in speed"
        in headline(make_results(arms=ARMS[:2], points=points))
    )


def test_the_ceiling_and_the_boundary_stand_among_the_facts() -> None:
    found = dict(facts(make_results()))
    assert found["Client's ceiling"] == (
        "4,000/s by unary requests of 600 bytes with 1 process, at 200 µs of CPU each (measured 2026-11-20)"
    )
    assert found["Boundary"] == "CPU package 0; the client ran on the same machine and is inside"


def test_what_happened_between_cells_is_told() -> None:
    results = make_results(interruptions=["the server was gone for 12 s"], notes=["something else"])
    text = undrawn(results).text
    assert "the server was gone for 12 s" in text
    assert "something else" in text


def test_every_cell_of_a_table_names_its_column_for_a_narrow_screen() -> None:
    html = default_html()
    labels = re.findall(r'<td[^>]* data-label="([^"]*)"', html)
    assert len(labels) == html.count("<td")
    assert "" not in labels


def test_a_new_chart_is_one_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(sheet: Sheet, load: Load) -> ink.Drawing:
        axes = ink.axes()
        axes.set_xlabel("an axis of its own")
        return ink.Drawing(axes)

    chart = Chart("New {at}", "What it shows {at}.", draw, lambda sheet: [closed(4)])
    monkeypatch.setattr(charts, "CHARTS", (CHARTS[-1], chart))
    html = render(make_results(), COLUMNS)
    page = Page(html)
    assert len(page.figures) == 3  # with the opening one
    figure = page.figure("New at concurrency 4")
    assert "an axis of its own" in figure
    words = "What it shows at concurrency 4. Energy source: MEASURED by rapl:package-0 (apportioned counter)."
    assert words in figure
    assert f'aria-label="New at concurrency 4. {words}"' in html
