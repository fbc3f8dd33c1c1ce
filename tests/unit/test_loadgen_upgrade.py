"""Results of version 1 are read as today's; those of a later version are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.loadgen_results import make_results
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.plan.load import Arm, closed
from wattserve_loadgen.results.codec import plain
from wattserve_loadgen.results.folder import ResultsFolder, read_columns, read_records, read_results
from wattserve_loadgen.results.schema import Results

DEMO = Path(__file__).resolve().parents[2] / "docs" / "results" / "2026-11-20-demo-look"
RECORD = {
    "block": 1,
    "variant": "fp32",
    "concurrency": 4,
    "row": 7,
    "tokens": 10,
    "sent_ns": 1_000,
    "done_ns": 3_000,
    "in_window": True,
    "ok": True,
    "code": "OK",
    "message": None,
    "predicted": 1,
    "label": 0,
    "receipt_id": "r0",
    "energy_uj": 500,
    "energy_low_uj": 400,
    "energy_high_uj": 600,
    "energy_state": "settled",
    "energy_reason": None,
    "batch_size": 2,
    "padded_tokens": 12,
    "queue_ns": 100,
    "compute_ns": 900,
}


def stored() -> dict[str, Any]:
    value: dict[str, Any] = json.loads((DEMO / "results.json").read_text())
    assert value["schema_version"] == 1
    return value


def read(folder: Path, value: dict[str, Any]) -> Results:
    (folder / "results.json").write_text(json.dumps(value))
    return read_results(folder)


def refusal(folder: Path, value: dict[str, Any]) -> str:
    with pytest.raises(ResultsError) as caught:
        read(folder, value)
    return str(caught.value).removeprefix(f"{folder}/results.json: ")


def test_variants_and_concurrencies_become_arms_and_closed_loops() -> None:
    results = read_results(DEMO)
    server = "127.0.0.1:46445"
    assert results.schema_version == 2
    assert results.plan.arms == tuple(Arm(name, name, server) for name in ("fp32", "bf16", "int8"))
    assert results.plan.loads == (closed(1), closed(4), closed(16))
    assert (results.baseline, results.server["hardware"]) == ("fp32", "AMD EPYC (2 cores)")
    assert results.targets[0].meter["source"]["quality"] == "estimated"
    assert results.targets[0].meter_origin == "server"
    assert len(results.points) == 9
    assert len(results.cells) == 27


def test_figures_are_the_stored_ones() -> None:
    point = read_results(DEMO).points[0]
    assert (point.arm, point.load, point.answered) == ("fp32", "concurrency 1", 1043)
    figures = point.shown
    assert figures.rate_per_second is not None
    assert figures.rate_per_second.mean == 173.66989057588543
    assert (figures.latency.p50_ns, figures.latency.p99_ns, figures.latency.p999_ns) == (
        5644348,
        8170362,
        None,
    )
    assert figures.latency.samples == 1043
    assert figures.latency.p99_bound_ns is None
    assert figures.service is None
    assert figures.active_uj is not None
    assert figures.active_uj.mean == 40475.22070880641


def test_totals_and_ratios_of_medians_follow_from_the_cells() -> None:
    results = read_results(DEMO)
    point = next(one for one in results.points if (one.arm, one.load) == ("int8", "concurrency 4"))
    active, idle, total = point.shown.active_uj, point.shown.idle_uj, point.shown.total_uj
    assert active is not None
    assert idle is not None
    assert total is not None
    assert total.mean == pytest.approx(active.mean + idle.mean)
    assert point.shown.ratios.p50 is not None
    assert point.shown.ratios.p50.n == 3
    assert results.points[0].shown.ratios.rate is None  # of the baseline


def test_a_look_shows_its_figures_under_the_verdict() -> None:
    point = read_results(DEMO).points[0]
    assert point.figures is not None
    assert [one.code for one in point.verdicts] == ["too short"]
    assert point.hollow


def test_a_spoilt_point_of_another_preset_is_withheld(tmp_path: Path) -> None:
    value = stored()
    value["plan"]["preset"] = "quick"
    point = read(tmp_path, value).points[0]
    assert point.figures is None
    assert point.withheld is not None


def test_a_meter_gap_takes_the_joules_alone(tmp_path: Path) -> None:
    value = stored()
    value["plan"]["preset"] = "full"
    value["points"][4]["verdicts"] = [{"code": "meter gap", "text": "a meter gap of 0.50 s"}]
    point = read(tmp_path, value).points[4]
    assert point.figures is not None
    assert (point.figures.active_uj, point.figures.total_uj, point.figures.ratios.active_energy) == (
        None,
    ) * 3
    assert point.figures.energy_reason == "a meter gap of 0.50 s"
    assert point.figures.rate_per_second is not None
    assert not point.hollow


def test_results_without_a_meter_or_a_finished_cell_are_read(tmp_path: Path) -> None:
    value = stored() | {"points": [], "cells": [], "accuracy": {}, "ended": "interrupted by the user"}
    value["server"]["meter"] = None
    results = read(tmp_path, value)
    assert (results.boundary, results.targets[0].meter_origin) == ("", "none")
    assert results.ended == "interrupted by the user"


def test_a_cell_without_an_answer_has_no_latencies(tmp_path: Path) -> None:
    value = stored()
    cell = value["cells"][0]
    for name in ("rate_per_second", "p50_ns", "p90_ns", "p95_ns", "p99_ns", "max_ns", "mean_latency_ns"):
        cell[name] = None
    cell.update(answered=0, failed=568, effective_samples=None)
    latency = read(tmp_path, value).cells[0].latency
    assert (latency.samples, latency.p50_ns, latency.max_ns) == (0, None, None)


def test_proxies_and_the_gap_account_came_later_and_are_kept(tmp_path: Path) -> None:
    value = stored()
    value["cells"][0] |= {"proxy": "fp32 arithmetic", "verified": False}
    value["cells"][0]["energy"]["gap_uj"] = 5
    cells = read(tmp_path, value).cells
    assert (cells[0].proxy, cells[0].verified, cells[0].energy.gap_uj) == ("fp32 arithmetic", False, 5)
    assert (cells[1].proxy, cells[1].verified, cells[1].energy.gap_uj) == ("", None, None)


def test_a_damaged_field_of_version_1_is_named_by_its_path(tmp_path: Path) -> None:
    value = stored()
    del value["points"][3]["p50_ns"]
    assert refusal(tmp_path, value) == "points[3].p50_ns: missing"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            3,
            "schema_version: version 3 was written by a newer loadgen (9.9); this one reads up to 2:"
            " upgrade it",
        ),
        (0, "schema_version: 0 is no version of these results"),
        (None, "schema_version: None is no version of these results"),
        ("2", "schema_version: '2' is no version of these results"),
    ],
)
def test_a_version_that_is_not_known_is_refused(tmp_path: Path, version: object, message: str) -> None:
    value = plain(make_results()) | {"schema_version": version, "loadgen_version": "9.9"}
    assert refusal(tmp_path, value) == message


def test_records_of_version_1_are_read_in_their_cells(tmp_path: Path) -> None:
    value = stored()
    read(tmp_path, value)
    (tmp_path / "records.jsonl").write_text(json.dumps(RECORD) + "\n")
    (record,) = read_records(tmp_path)
    assert (record.cell, record.arm, record.load) == (10, "fp32", "concurrency 4")
    assert (record.rows, record.predicted, record.labels) == ([7], [1], [0])
    assert record.latency_ns == 2_000
    columns = read_columns(tmp_path)[("fp32", "concurrency 4")]
    assert (columns.latency_ns.tolist(), columns.energy_uj.tolist()) == ([2_000], [500.0])


def test_an_older_sweep_is_not_gone_on_with(tmp_path: Path) -> None:
    read(tmp_path, stored())
    with pytest.raises(ResultsError, match="written by an older loadgen: it can be read, but not gone on"):
        ResultsFolder(tmp_path, resume=True).resume()
