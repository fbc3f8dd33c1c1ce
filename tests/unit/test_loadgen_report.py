"""The report: what it says, and what it must never do."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.fixtures.loadgen_pages import COLUMNS, Page
from tests.fixtures.loadgen_results import make_cell, make_record, make_results, make_server, with_source
from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.report import text as report_text
from wattserve_loadgen.report.page import render, write_report
from wattserve_loadgen.report.tables import closure_table, facts, summary_table, validity_table
from wattserve_loadgen.results.folder import ResultsFolder
from wattserve_loadgen.results.schema import Results, Verdict


@cache
def default_html() -> str:
    return render(make_results(), COLUMNS)


def page() -> Page:
    return Page(default_html())


def row(results: Results, variant: str, concurrency: int = 4) -> dict[str, str]:
    table = summary_table(results, concurrency)
    found = next(entries for entries in table.rows if entries[0].text == variant)
    return {name: f"{one.text} {one.below}".strip() for name, one in zip(table.columns, found, strict=True)}


def test_the_page_loads_and_runs_nothing() -> None:
    html = default_html()
    assert page().active == []
    assert "@import" not in html
    assert set(re.findall(r"https?://[^\"' <]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_every_figure_names_the_energy_source_and_its_quality() -> None:
    figures = page().figures
    assert len(figures) == 10
    assert all(
        "Energy source: rapl:package-0 · apportioned counter · MEASURED" in figure for figure in figures
    )


def test_every_latency_chart_says_that_the_loop_is_closed() -> None:
    latency = [figure for figure in page().figures if "latency" in figure.lower()]
    assert len(latency) >= 5
    assert all("Closed loop: no arrival schedule" in figure for figure in latency)


def test_every_axis_has_its_unit() -> None:
    text = " ".join(page().figures)
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
    ):
        assert label in text


def test_ids_are_unique_over_the_whole_page() -> None:
    ids = re.findall(r'\bid="([^"]+)"', default_html())
    assert len(ids) == len(set(ids))


def test_the_same_results_give_the_same_page() -> None:
    assert render(make_results(), COLUMNS) == default_html()


@pytest.mark.parametrize(("quality", "word"), [("estimated", "ESTIMATED"), ("simulated", "SIMULATED")])
def test_joules_that_no_sensor_measured_are_announced_loudly(quality: str, word: str) -> None:
    banners = report_text.banners(make_results(server=with_source(quality=quality)))
    assert (banners[0].kind, banners[0].title) == ("loud", f"Every joule here is {word}")


def test_a_replay_is_announced_as_one_and_not_as_a_power_law() -> None:
    server = with_source(quality="simulated", name="replay of nvml:GPU-5")
    assert report_text.banners(make_results(server=server))[0].text.startswith(
        "A recording was played back, not a sensor of the server. Source: replay of nvml:GPU-5"
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
    cells = [
        make_cell(
            energy={"active_uj_per_request": None, "measured_uj": None, "reason": "started without a meter"}
        )
    ]
    points = [
        replace(point, active_uj=None, idle_uj=None, energy_ratio=None) for point in make_results().points
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
        "answers/s": "640 640–640",
        "latency p50": "50.0 ms",
        "p95": "95.0 ms",
        "p99": "99.0 ms",
        "energy per request": "10.0 mJ + 10.0 mJ idle",
        "accuracy": "90.0 % 83.0–94.0",
        "model size": "2.50 MB",
        "speed-up": "2.00× 2.00–2.00",
        "energy ratio": "0.500× 0.500–0.500",
    }
    assert row(make_results(), "fp32")["speed-up"] == "1 baseline"


def test_the_page_shows_the_highest_concurrency_and_one() -> None:
    text = page().text
    assert "At concurrency 4" in text
    assert "At concurrency 1" in text


def test_the_headline_compares_the_thriftiest_variant_with_the_baseline() -> None:
    assert report_text.headline(make_results()) == (
        "At concurrency 4, int8 needs 50 % less active energy per request than fp32 and answers 2.00× as many"
        " requests per second; accuracy 90.0 % against 92.0 %."
    )
    estimated = report_text.headline(make_results(server=with_source(quality="estimated")))
    assert "50 % less active energy per request (estimated) than fp32" in estimated


def test_the_headline_holds_for_one_variant_and_for_nothing() -> None:
    alone = [point for point in make_results().points if point.variant == "fp32"]
    assert report_text.headline(make_results(points=alone)) == (
        "At concurrency 4, fp32 answers 320 requests per second at 20.0 mJ each."
    )
    assert report_text.headline(make_results(points=[])) == "Nothing was measured."


def test_an_unfinished_sweep_says_how_far_it_came() -> None:
    results = make_results(ended="the server was lost: gone", cells=[], points=[], cells_planned=12)
    text = Page(render(results, {})).text
    assert "This sweep ended early" in text
    assert "The server was lost: gone. 0 of 12 cells were measured." in text


def test_points_with_a_verdict_are_hollow_and_say_why() -> None:
    results = make_results()
    short = [replace(one, verdicts=[Verdict("too short", "too short: 1 s")]) for one in results.points]
    assert [entry.text for entry in validity_table(replace(results, points=short)).rows[0]][
        -1
    ] == "too short: 1 s"
    assert "valid" in [entry.text for entry in validity_table(results).rows[0]]
    solid, hollow = default_html(), render(replace(results, points=short), COLUMNS)
    assert hollow.count("fill: #ffffff") > solid.count("fill: #ffffff")
    assert "Too short to publish" in hollow
    assert "Too short to publish" not in solid


def test_the_closure_table_sums_the_cells_of_a_variant() -> None:
    table = closure_table(make_results())
    found = dict(zip(table.columns, (entry.text for entry in table.rows[0]), strict=True))
    assert (found["cells of"], found["measured"], found["active"]) == ("fp32", "540 J", "165 J")
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


def test_a_variant_name_from_outside_cannot_break_out_of_a_chart() -> None:
    evil = '"><script>x</script>'
    points = [
        replace(point, variant=evil) if point.variant == "int8" else point for point in make_results().points
    ]
    plan = replace(make_results().plan, variants=("fp32", evil))
    assert "<script" not in render(make_results(points=points, plan=plan), {})


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
    assert found["Boundary"] == "CPU package 0"
    assert found["Meter period"] == "polled every 20 ms, its value changes every 1 ms"
    assert found["Idle power"] == "5.00 W (measured)"
    assert "Git revision" not in found
    assert "Meter period" not in dict(facts(make_results(server=make_server(meter=None))))


def test_a_report_is_made_from_the_folder_alone(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path / "out")
    folder.start()
    folder.write(make_results())
    folder.add_records([make_record(done_ns=1_000 + 1_000_000 * index) for index in range(1, 200)])
    path = write_report(folder.path)
    assert path == folder.path / "report.html"
    assert "The tail at concurrency 4" in path.read_text()


def test_a_ratio_whose_interval_holds_one_is_no_difference() -> None:
    unclear = Interval(0.8, 0.5, 1.2, 3)
    points = [
        replace(point, energy_ratio=unclear, speed_ratio=unclear) if point.variant != "fp32" else point
        for point in make_results().points
    ]
    text = report_text.headline(make_results(points=points))
    assert (
        "no difference in active energy per request between int8 and fp32 could be shown, nor in speed"
        in text
    )
