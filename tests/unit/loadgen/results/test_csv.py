"""results.csv: a row for each point, and nothing in it that is not published."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from tests.fixtures.loadgen_results import ARMS, FP32, INT8, OPEN, PEER, make_point, make_results
from wattserve_loadgen.model.results import Results, Verdict
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.results.csv_table import columns, csv_text


def rows(results: Results) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(results))))


def test_a_point_is_a_row_with_its_figures() -> None:
    found = rows(make_results(loads=(closed(4),)))
    assert [one["arm"] for one in found] == ["fp32", "int8", "fp32 (A/A)"]
    int8 = found[1]
    assert (int8["variant"], int8["target"], int8["shape"]) == ("int8", "127.0.0.1:50051", "closed")
    assert (int8["concurrency"], int8["load_rate_per_second"], int8["offered_per_second"]) == ("4", "", "")
    assert (int8["achieved_per_second"], int8["achieved_per_second_low"]) == ("640", "627.2")
    assert (int8["p50_ns"], int8["p99_ns"], int8["p999_ns"]) == ("6250000", "11000000", "15000000")
    assert (int8["p99_bound_ns"], int8["service_p50_ns"], int8["lag_p50_ns"]) == ("12500000", "", "")
    assert (int8["active_uj_per_request"], int8["idle_uj_per_request"]) == ("10000", "7812.5")
    assert (int8["total_uj_per_request"], int8["meter_uj_per_request"]) == ("17812.5", "17812.5")
    assert (int8["accuracy_share"], int8["accuracy_difference"]) == ("0.9", "-0.02")
    assert (int8["rate_ratio"], int8["active_energy_ratio_high"]) == ("2", "0.51")
    assert (int8["published"], int8["verdicts"], int8["verified"]) == ("yes", "", "yes")
    assert found[2]["twin_of"] == "fp32"


def test_an_open_loop_shows_all_three_times_and_a_peer_its_server() -> None:
    found = rows(make_results(arms=(*ARMS, PEER), loads=(OPEN,)))
    assert (found[0]["load"], found[0]["load_rate_per_second"], found[0]["concurrency"]) == (
        "40/s poisson",
        "40",
        "",
    )
    assert (found[0]["p50_ns"], found[0]["service_p50_ns"], found[0]["lag_p50_ns"]) == (
        "12500000",
        "11250000",
        "62500",
    )
    assert (found[3]["arm"], found[3]["target"]) == ("triton: demo", "triton")


def test_figures_that_are_not_published_are_empty() -> None:
    spoilt = make_point(
        INT8, closed(4), [Verdict("too short", "6 s of 600 s"), Verdict("meter gap", "a gap", "energy")]
    )
    (row,) = rows(make_results(points=[spoilt]))
    assert (row["published"], row["verdicts"]) == ("no", "too short; meter gap")
    assert {
        row[name] for name in ("achieved_per_second", "p50_ns", "active_uj_per_request", "rate_ratio")
    } == {""}
    assert row["answered"] == "24000"


def test_joules_that_are_not_known_are_empty_with_their_reason() -> None:
    point = make_point(FP32, closed(4))
    assert point.figures is not None
    point = replace(point, figures=replace(point.figures, active_uj=None, energy_reason="no meter"))
    (row,) = rows(make_results(points=[point]))
    assert (row["active_uj_per_request"], row["energy_reason"]) == ("", "no meter")


def test_column_names_are_unique_and_the_file_ends_with_a_line() -> None:
    names = [column.name for column in columns()]
    assert len(names) == len(set(names))
    assert csv_text(make_results(points=[])) == ",".join(names) + "\n"
