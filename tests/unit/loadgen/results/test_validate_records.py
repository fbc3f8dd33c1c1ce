"""The checks that hold records against results.json, and the clock against itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.loadgen_results import (
    FP32,
    OPEN,
    make_cell,
    make_energy,
    make_percentiles,
    make_record,
    make_results,
    no_percentiles,
)
from wattserve_loadgen.model.cells import CellResult, Conditions, Percentiles, Record
from wattserve_loadgen.model.results import Check, Results
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.results.folder import ResultsFolder
from wattserve_loadgen.results.validate import validate, validate_folder


def check(name: str, results: Results, records: list[Record] | None = None) -> Check:
    (found,) = [one for one in validate(results, records) if one.name == name]
    return found


def measured(values: list[int]) -> Percentiles:
    """Percentiles that agree with these latencies; those that need more are not stored."""
    ordered = sorted(values)
    worth = float(len(values))
    p50 = ordered[(len(values) + 1) // 2 - 1]
    return replace(
        no_percentiles(),
        samples=len(values),
        effective_samples=worth,
        mean_ns=sum(values) / len(values),
        p50_ns=p50,
        max_ns=ordered[-1],
    )


def small_sweep(**changes: Any) -> tuple[Results, list[Record]]:
    """Two cells of twenty requests each, the second an open loop, whose records agree with them."""
    records: list[Record] = []
    cells: list[CellResult] = []
    for position, load in ((1, "concurrency 1"), (2, OPEN.name)):
        scheduled = load == OPEN.name
        start = position * 10**9
        own = [
            make_record(
                cell=position,
                load=load,
                scheduled_ns=start + index * 1_000 if scheduled else None,
                sent_ns=start + index * 1_000 + 50,
                done_ns=start + index * 1_000 + 500 + index,
            )
            for index in range(20)
        ]
        records += [make_record(cell=position, load=load, sent_ns=start - 10, done_ns=start, in_window=False)]
        records += own
        service = measured([one.done_ns - one.sent_ns for one in own])
        cells.append(
            make_cell(
                position=position,
                load=load,
                sent=20,
                answered=20,
                latency=measured([one.latency_ns for one in own]),
                service=service if scheduled else None,
                lag=measured([50] * 20) if scheduled else None,
                energy={"settled": 20},
                conditions=Conditions(1_795_000_000.0 + position, None, None, None),
            )
        )
    results = make_results(arms=(FP32,), loads=(closed(1), OPEN), cells=cells, points=[])
    return replace(results, **changes), records


def test_records_that_agree_pass() -> None:
    results, records = small_sweep()
    found = check("records agree", results, records)
    assert (found.passed, found.text) == (
        True,
        "40 requests of 2 windows give the stored counts and percentiles",
    )
    assert check("clock", results, records).passed is True


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sent": 21}, "21 sent, 20 by its records"),
        ({"latency": make_percentiles(20)}, "latency: mean_ns 13000000, 460 by its records"),
        ({"energy": make_energy(settled=19)}, "19 settled, 20 by its records"),
    ],
)
def test_results_that_records_do_not_bear_out_are_found(change: dict[str, Any], text: str) -> None:
    results, records = small_sweep()
    results = replace(results, cells=[replace(results.cells[0], **change), results.cells[1]])
    found = check("records agree", results, records)
    assert (found.passed, found.text) == (False, f"cell 1 (fp32, concurrency 1): {text}")


def test_a_percentile_that_was_changed_by_hand_is_found() -> None:
    results, records = small_sweep()
    lag = replace(measured([50] * 20), p50_ns=49)
    results = replace(results, cells=[results.cells[0], replace(results.cells[1], lag=lag)])
    assert check("records agree", results, records).text.endswith("lag: p50_ns 49, 50 by its records")


def test_records_that_are_missing_or_of_no_cell_are_found() -> None:
    results, records = small_sweep()
    assert check("records agree", results, records[:-1]).passed is False
    stray = [*records, make_record(cell=9)]
    assert check("records agree", results, stray).text == (
        "records of 1 cells that results.json does not know (cell 9)"
    )


def test_a_receipt_below_its_own_interval_is_found() -> None:
    results, records = small_sweep()
    records[5] = replace(records[5], energy_low_uj=501)
    assert check("finite figures", results, records).text == (
        "1 receipts are negative or outside their own interval"
    )


def test_a_clock_that_stepped_or_ran_backwards_is_found() -> None:
    results, records = small_sweep()
    stepped = replace(results.cells[1], conditions=Conditions(1_795_003_602.0, None, None, None))
    found = check("clock", replace(results, cells=[results.cells[0], stepped]), records)
    assert (found.passed, found.text.split(" against")[0]) == (False, "the wall clock stepped by 3600.0 s")
    resumed = replace(results, cells=[results.cells[0], stepped], interruptions=["Resumed."])
    found = check("clock", resumed, records)
    assert (found.passed, "the sweep was interrupted" in found.text) == (True, True)
    backwards = [*records[:-1], replace(records[-1], done_ns=0)]
    assert check("clock", results, backwards).text == "1 requests were answered before they were sent"
    again = [replace(one, sent_ns=one.sent_ns - 2 * 10**9) if one.cell == 2 else one for one in records]
    assert "cell 2 began before the one ahead of it ended" in check("clock", results, again).text


def test_a_folder_is_checked_with_its_records(tmp_path: Path) -> None:
    results, records = small_sweep()
    folder = ResultsFolder(tmp_path / "out")
    folder.start()
    folder.add_records(records)
    folder.write(results)
    found = {one.name: one.passed for one in validate_folder(tmp_path / "out")}
    assert (found["records agree"], found["clock"]) == (True, True)
    assert (found["every cell"], found["A/A pair"]) == (False, None)  # one variant: no pair
