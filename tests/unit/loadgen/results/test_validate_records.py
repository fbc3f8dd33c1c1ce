"""The checks that hold records against results.json, and the clock against itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.loadgen_results import (
    FP32,
    OPEN,
    interval,
    make_cell,
    make_energy,
    make_percentiles,
    make_record,
    make_results,
    no_percentiles,
)
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.figures.accuracy import measure_accuracy
from wattserve_loadgen.figures.points import make_points
from wattserve_loadgen.model.cells import CellResult, Conditions, Percentiles, Record
from wattserve_loadgen.model.results import Check, Results
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.results.folder import ResultsFolder, read_results
from wattserve_loadgen.results.record_checks import gather
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
                energy={"settled": 20, "active_uj_per_request": 500.0, "receipts_uj": 21 * 500},
                conditions=Conditions(1_795_000_000.0 + position, None, None, None),
            )
        )
    results = make_results(arms=(FP32,), loads=(closed(1), OPEN), cells=cells, points=[])
    facts = gather(records, {load.name: load for _, load in results.plan.pairs()})
    points = make_points(results.plan, cells, facts.samples, {}, {})
    rows, accuracy = measure_accuracy(facts.predictions, {0: 1}, "fp32")
    results = replace(results, points=points, accuracy_rows=rows, accuracy=accuracy, accuracy_reason="")
    return replace(results, **changes), records


def test_records_that_agree_pass() -> None:
    results, records = small_sweep()
    found = check("records agree", results, records)
    assert (found.passed, found.text) == (
        True,
        "40 requests of 2 windows give the stored counts, percentiles and joules",
    )
    assert check("points agree", results, records).text == "2 points are what the cells make"
    assert check("accuracy agrees", results, records).passed is True
    assert check("clock", results, records).passed is True


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sent": 21}, "21 sent, 20 by its records"),
        ({"latency": make_percentiles(20)}, "latency: mean_ns 13000000, 460 by its records"),
        ({"energy": make_energy(settled=19)}, "19 settled, 20 by its records"),
        (
            {"energy": make_energy(settled=20, receipts_uj=10_501)},
            "10501 microjoules of all receipts, 10500 by its records",
        ),
        (
            {"energy": make_energy(settled=20, receipts_uj=10_500, active_uj_per_request=499.0)},
            "499 active microjoules a request, 500 by its records",
        ),
    ],
)
def test_results_that_records_do_not_bear_out_are_found(change: dict[str, Any], text: str) -> None:
    results, records = small_sweep()
    results = replace(results, cells=[replace(results.cells[0], **change), results.cells[1]])
    found = check("records agree", results, records)
    assert (found.passed, found.text) == (False, f"cell 1 (fp32, concurrency 1): {text}")


def pooled(results: Results, **changes: Any) -> Results:
    """The first point with other figures, whether they are published or withheld."""
    first, *rest = results.points
    name = "figures" if first.figures is not None else "withheld"
    figures: Any = {name: replace(first.shown, **changes)}
    return replace(results, points=[replace(first, **figures), *rest])


def test_points_that_cells_do_not_make_are_found() -> None:
    results, records = small_sweep()
    first, second = results.points

    def said(changed: Results) -> str:
        found = check("points agree", changed, records)
        assert found.passed is False
        return found.text

    gone = said(replace(results, points=[]))
    assert gone.startswith("fp32 under concurrency 1: its cells have run, and it is not there; and 1 more")
    assert said(pooled(results, active_uj=interval(450.0))).startswith(
        "fp32 under concurrency 1: active_uj mean 450, 500 made again"
    )
    latency = replace(first.shown.latency, p50_ns=1)
    assert ": latency p50_ns 1, " in said(pooled(results, latency=latency))
    assert said(replace(results, points=[replace(first, answered=19), second])).endswith(
        "answered 19, 20 made again"
    )
    records = [one for one in records if one.cell == 1]
    assert said(replace(results, cells=results.cells[:1])) == "fp32 under 40/s poisson: no cell has made it"


def test_a_point_that_its_cells_withhold_is_not_published() -> None:
    results, records = small_sweep()
    first, second = results.points
    assert first.figures is None  # so few requests carry no figure
    results = replace(results, points=[replace(first, figures=first.withheld, withheld=None), second])
    found = check("points agree", results, records)
    assert (found.passed, "fp32 under concurrency 1: published, although" in found.text) == (False, True)


def test_a_verdict_that_was_taken_out_is_found() -> None:
    results, records = small_sweep()
    assert check("points agree", results, records).passed
    first, second = results.points
    assert first.verdicts
    changed = replace(results, points=[replace(first, verdicts=first.verdicts[1:]), second])
    found = check("points agree", changed, records)
    assert found.passed is False
    assert found.text == f"fp32 under concurrency 1: without the verdict {first.verdicts[0].text}"


def test_accuracy_that_no_record_bears_out_is_found() -> None:
    results, records = small_sweep()
    accuracy = replace(results.accuracy["fp32"], correct=0)
    assert check("accuracy agrees", replace(results, accuracy={"fp32": accuracy}), records).text == (
        "fp32 correct 0, 1 made again"
    )
    assert check("accuracy agrees", replace(results, accuracy={}), records).text == "fp32: it is not there"
    assert check("accuracy agrees", replace(results, accuracy_rows=2), records).text == "rows 2, 1 made again"
    unlike = [*records[:-1], replace(records[-1], labels=[0])]
    assert check("accuracy agrees", results, unlike).text == "row 0 has several labels"
    other = replace(results, accuracy={**results.accuracy, "int8": accuracy})
    assert check("accuracy agrees", other, records).text == "int8 has one, and no record"


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


@pytest.mark.parametrize("change", [{"energy_low_uj": 501}, {"energy_state": "provisional"}])
def test_a_receipt_that_cannot_be_is_found(change: dict[str, Any]) -> None:
    results, records = small_sweep()
    records[5] = replace(records[5], **change)
    assert check("finite figures", results, records).text == (
        "1 receipts are negative, outside their own interval, or have joules and are not settled"
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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda found: found["points"][1].update(arm="int9"),
            "points[1]: 'int9' under '40/s poisson'",
        ),
        (lambda found: found["cells"][0].update(load="x"), "cells[0]: 'fp32' under 'x' is not in the plan"),
        (lambda found: found["points"][0].update(figures=None, withheld=None), "points[0]: it has neither"),
        (lambda found: found["points"].append(found["points"][0]), "points[2]: fp32 under concurrency 1 is"),
        (
            lambda found: found["cells"][0]["energy"].update(active_uj_per_token=1e308),
            "cells[0].energy.active_uj_per_token: no sweep measures more than 1e+30",
        ),
        (
            lambda found: found["targets"][0]["server"].update(variants=["fp32"]),
            "targets[0].server.variants[0]: expected object, got str",
        ),
        (
            lambda found: found["targets"][0]["server"].update(meter={"probe": {"reads": "many"}}),
            "targets[0].server.meter.probe.reads: expected int, got str",
        ),
        (
            lambda found: found["targets"][0].update(meter={"parts": True}),
            "targets[0].meter.parts: expected array | null, got bool",
        ),
        (
            lambda found: found["plan"]["loads"][0].update(shape="square"),
            "plan: shape 'square' is unknown; choose from",
        ),
        (
            lambda found: found["plan"].update(own_loads={"fp32": [{"shape": "square"}]}),
            "plan: shape 'square' is unknown; choose from",
        ),
        (lambda found: found["plan"].update(blocks=10**9), "plan: 1000000000 blocks: a plan takes 1 to 1000"),
        (lambda found: found["plan"].update(seconds=0), "plan: 0 seconds: a cell takes more than 0"),
        (lambda found: found.update(plan=found["plan"] | {"arms": []}), "plan: no variant to measure"),
        (lambda found: found.update(targets=[]), "plan: fp32 is of '127.0.0.1:50051', which is not among"),
    ],
)
def test_results_that_speak_of_what_is_not_in_them_are_refused(
    tmp_path: Path, change: Callable[[Any], object], text: str
) -> None:
    results, _ = small_sweep()
    folder = ResultsFolder(tmp_path / "out")
    folder.start()
    folder.write(results)
    found = json.loads((folder.path / "results.json").read_text())
    change(found)
    (folder.path / "results.json").write_text(json.dumps(found))
    with pytest.raises(ResultsError) as raised:
        read_results(folder.path)
    assert text in str(raised.value)
