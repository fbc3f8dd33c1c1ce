"""The checklist of a sweep: each check holds on a good one and fails on what it is there for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import ROOT
from tests.fixtures.loadgen_results import (
    ARMS,
    FP32,
    PEER,
    TWIN,
    interval,
    make_accuracy,
    make_cell,
    make_energy,
    make_meter_window,
    make_point,
    make_record,
    make_results,
    make_server,
    make_target,
)
from wattserve_common.stats import Interval
from wattserve_loadgen.model.cells import Record, Slices
from wattserve_loadgen.model.results import Ceiling, Check, Results, Verdict
from wattserve_loadgen.plan.load import RAMP, Load, closed
from wattserve_loadgen.results.validate import failed, validate, validate_folder

DEMO = ROOT / "docs" / "results" / "2026-11-20-demo-look"
NAMES = (
    "every cell",
    "enough sensor samples",
    "no meter gaps",
    "steady power",
    "steady state",
    "declared device",
    "labelled",
    "closed accounts",
    "client ceiling",
    "A/A pair",
    "finite figures",
    "plausible accuracy",
    "records agree",
    "points agree",
    "accuracy agrees",
    "clock",
)


def check(name: str, results: Results, records: list[Record] | None = None) -> Check:
    (found,) = [one for one in validate(results, records) if one.name == name]
    return found


def with_energy(results: Results, **changes: Any) -> Results:
    """The first cell's energy changed."""
    first = results.cells[0]
    return replace(
        results, cells=[replace(first, energy=replace(first.energy, **changes)), *results.cells[1:]]
    )


def test_a_good_sweep_passes_all_that_can_be_seen_without_records() -> None:
    found = validate(make_results())
    assert tuple(one.name for one in found) == NAMES
    assert [one.name for one in found if one.passed is None] == list(NAMES[-4:])
    assert not failed(found)


def test_older_results_are_checked_and_say_what_they_lack() -> None:
    found = {one.name: one for one in validate_folder(DEMO)}
    assert found["every cell"].text == "all 27 planned cells ran"
    assert found["enough sensor samples"].passed is None
    assert found["client ceiling"].passed is False
    assert found["A/A pair"].text == (
        "no variant ran under two names: what this rig can tell apart is not known"
    )


def test_a_missing_cell_is_named() -> None:
    results = make_results()
    results = replace(results, cells=results.cells[1:], ended="interrupted by the user")
    gone = make_results().cells[0]
    found = check("every cell", results)
    assert found.passed is False
    assert found.text == f"1 of 18 are missing (block 1: {gone.arm}, {gone.load})"


def with_readings(count: int, period_seconds: float) -> Results:
    """A point of 80 s whose sensor has that period."""
    server = make_server()
    server["meter"] |= {"poll_period_seconds": 0.02, "update_period_seconds": period_seconds}
    meter = make_meter_window(readings=count, seconds=80.0)
    return make_results(server=server, cells=[make_cell(energy={"meter": meter})])


@pytest.mark.parametrize(
    ("count", "period_seconds", "enough"),
    [(800, 0.1, True), (18, 0.1, False), (800, 0.001, True), (160, 0.5, True), (100, 0.5, False)],
)
def test_eight_hundred_readings_are_enough_for_eighty_seconds_unless_the_sensor_is_slower(
    count: int, period_seconds: float, enough: bool
) -> None:
    assert check("enough sensor samples", with_readings(count, period_seconds)).passed is enough


def test_the_readings_of_the_worst_point_are_told() -> None:
    assert check("enough sensor samples", with_readings(18, 0.1)).text == (
        "18 readings in 80.0 s, of 799 to expect, at worst (fp32 under concurrency 1)"
    )


def test_a_gap_between_readings_or_in_the_ledger_is_found() -> None:
    between = with_energy(make_results(), meter=make_meter_window(longest_gap_seconds=1.5))
    found = check("no meter gaps", between)
    assert found.passed is False
    assert "1.50 s without a reading (limit 0.50 s)" in found.text
    ledger = with_energy(make_results(), gap_count=1, gap_seconds=0.25)
    assert "the ledger has a gap of 0.25 s" in check("no meter gaps", ledger).text


@pytest.mark.parametrize(
    ("watts", "deviation", "readings", "steady"),
    [
        (6.6, 0.3, 625, True),
        (300.0, 9.0, 100, True),  # below 10 W
        (6.6, 3.0, 625, True),  # flickers, and its mean is known to 3.6 %
        (6.6, 3.0, 100, False),
        (300.0, 90.0, 100, False),
    ],
)
def test_power_is_steady_or_read_often_enough(
    watts: float, deviation: float, readings: int, steady: bool
) -> None:
    meter = make_meter_window(watts=watts, watts_deviation=deviation, readings=readings)
    cell = make_cell(energy={"meter": meter})
    assert check("steady power", make_results(cells=[cell])).passed is steady


def test_blocks_add_up_to_a_mean_that_is_known() -> None:
    meter = make_meter_window(watts=10.0, watts_deviation=3.0, readings=100)
    cells = [make_cell(position=block, block=block, energy={"meter": meter}) for block in (1, 2, 3)]
    found = check("steady power", make_results(cells=cells))
    assert (found.passed, found.text) == (
        True,
        "10 W with a deviation of 3 W (30 %), its mean known to ± 3.5 %, at worst (fp32 under concurrency 1)",
    )


def test_a_probe_that_held_the_counter_against_power_is_quoted() -> None:
    server = make_server()
    held = {"window_seconds": 2.0, "counter_joules": 12.12, "power_joules": 12.0}
    server["meter"]["probe"] = {"cross_checks": [held]}
    assert check("enough sensor samples", make_results(server=server)).text.endswith(
        "; counter against power: 12.12 J against 12.00 J over 2.00 s (+1.0 %)"
    )


def test_a_point_that_drifts_is_not_in_a_steady_state() -> None:
    drift = Verdict("energy drift", "energy per request rose by 9 % within its windows", "energy")
    results = make_results()
    points = [make_point(FP32, closed(1), [drift]), *results.points[1:]]
    found = check("steady state", replace(results, points=points))
    assert (found.passed, found.text) == (
        False,
        "fp32 under concurrency 1: energy per request rose by 9 % within its windows",
    )


def test_points_that_no_drift_test_could_look_at_are_listed() -> None:
    results = make_results(arms=(FP32,))
    assert check("steady state", results).text == "what could be tested holds still in 2 of 2 points"
    blind = [
        replace(one, slices=None)
        if one.load == "concurrency 1"
        else replace(one, slices=Slices(1.25, [80.0] * 10, [None] * 10, [20_000.0] * 10))
        for one in results.cells
    ]
    found = check("steady state", replace(results, cells=blind))
    assert (found.passed, found.text) == (
        True,
        "what could be tested holds still in 1 of 2 points; not tested: throughput and the median latency and"
        " energy per request (the windows are too short for slices): fp32 under concurrency 1; the median"
        " latency (at most 0 slices of a block have a figure; it takes 8): fp32 under concurrency 4",
    )


def test_a_sweep_that_no_drift_test_could_look_at_passes_none() -> None:
    ramp = Load(RAMP, rate=10.0, rate_end=70.0)
    found = check("steady state", make_results(arms=(FP32,), loads=[ramp]))
    assert (found.passed, found.text) == (
        None,
        "no point was tested for drift; not tested: a load that changes by design: fp32 under 10-70/s ramp",
    )


def test_a_ramp_is_held_against_the_ceiling_by_its_highest_rate() -> None:
    ramp = Load(RAMP, rate=10.0, rate_end=3_000.0)
    found = check("client ceiling", make_results(arms=(FP32,), loads=[ramp]))
    assert (found.passed, found.text) == (
        False,
        "fp32 under 10-3000/s ramp: 3,000/s is 75 % of the ceiling of 4,000/s",
    )


def moved(device: str, **changes: Any) -> dict[str, Any]:
    """A server whose int8 is declared elsewhere."""
    server = make_server(**changes)
    server["variants"][1]["device"] = device
    return server


def test_a_variant_that_is_declared_where_it_cannot_have_run_is_found() -> None:
    no_cuda = make_results(server=moved("cuda:0", versions={"torch": "2.13.0+cpu"}))
    assert check("declared device", no_cuda).text == (
        "int8 is declared on cuda:0, but torch 2.13.0+cpu runs on the CPU alone"
    )
    assert check("declared device", make_results(server=moved(""))).passed is False
    server = moved("cuda:0")
    server["meter"]["device"] = "cpu"
    assert check("declared device", make_results(server=server)).text == (
        "int8 is declared on cuda:0, but the meter covers cpu"
    )


def test_a_meter_of_several_devices_covers_the_variants_of_each() -> None:
    server = moved("cuda")
    server["meter"]["parts"] = [{"device": "cpu"}, {"device": "cuda:0"}]
    found = check("declared device", make_results(server=server))
    assert (found.passed, found.text) == (True, "fp32 on cpu, int8 on cuda, fp32 (A/A) on cpu")


def test_a_second_meter_covers_its_own_device() -> None:
    server = moved("cuda:0", other_meters=[{"device": "cuda:0"}])
    server["meter"]["device"] = "cpu"
    assert check("declared device", make_results(server=server)).passed is True


def test_a_peer_alone_does_not_say_where_it_runs() -> None:
    results = make_results(arms=(PEER,))
    assert check("declared device", results).passed is None


def test_a_proxy_or_an_unverified_precision_must_be_marked_in_every_cell() -> None:
    server = make_server()
    server["variants"][1] |= {"proxy": "fp32 arithmetic", "verified": False}
    results = make_results(server=server)
    assert check("labelled", results).passed is False
    marks: dict[str, Any] = {"proxy": "fp32 arithmetic", "verified": False}
    cells = [replace(one, **marks) if one.arm == "int8" else one for one in results.cells]
    points = [replace(one, **marks) if one.arm == "int8" else one for one in results.points]
    found = check("labelled", replace(results, cells=cells, points=points))
    assert (found.passed, found.text) == (True, "marked: int8 (proxy, unverified)")
    half = replace(results, cells=cells)
    assert "int8 is a proxy (fp32 arithmetic), and the point under" in check("labelled", half).text


def test_one_microjoule_that_is_left_over_opens_the_accounts() -> None:
    found = check("closed accounts", with_energy(make_results(), accounts_residual_uj=-1))
    assert (found.passed, found.text.split(";")[0]) == (False, "-1.00 µJ are left over in 1 of 18 cells")


def test_a_load_above_half_of_the_ceiling_is_found() -> None:
    ceiling = Ceiling(1_000.0, 200.0, 600, "unary", 1, "2026-11-20T11:59:00+00:00")
    found = check("client ceiling", make_results(ceilings=[ceiling]))
    assert (found.passed, found.text) == (
        False,
        "int8 under concurrency 4: 640/s is 64 % of the ceiling of 1,000/s",
    )
    assert check("client ceiling", make_results(ceilings=[])).text.startswith("not known for native unary")
    assert check("client ceiling", make_results(ceilings=[replace(ceiling, kind="oip")])).passed is False
    assert check("client ceiling", make_results()).text == "at most 16 % of what this client can send"


def twin_rates(*means: float) -> Results:
    """The A/A pair's ratio of rates under as many loads."""
    loads = tuple(closed(count) for count in range(1, len(means) + 1))
    points = [make_point(FP32, load) for load in loads]
    for load, mean in zip(loads, means, strict=True):
        point = make_point(TWIN, load)
        assert point.figures is not None
        ratios = replace(point.figures.ratios, rate=interval(mean))
        points.append(replace(point, figures=replace(point.figures, ratios=ratios)))
    return make_results(loads=loads, points=points)


def test_the_pair_says_what_the_rig_can_tell_apart() -> None:
    found = check("A/A pair", twin_rates(1.0, 1.01))
    assert found.passed is True
    assert found.text == (
        "in 6 of 6 comparisons of the twins, 'equal' is inside the 95 % interval; two runs of the same"
        " variant may differ by up to 3.0 % (rate under concurrency 2): nothing smaller can be told apart"
    )


@pytest.mark.parametrize(("high", "told"), [(2.385, "138.5 %"), (882.9, "a factor of 883")])
def test_a_rig_that_tells_nothing_apart_has_no_good_pair_but_a_weak_one(high: float, told: str) -> None:
    point = make_point(TWIN, closed(1))
    ratios = replace(point.shown.ratios, rate=Interval(1.3, 0.7, high, 3))
    wide = replace(point, figures=replace(point.shown, ratios=ratios))
    found = check("A/A pair", make_results(loads=[closed(1)], points=[make_point(FP32, closed(1)), wide]))
    assert (found.passed, found.outcome) == (True, "weak")
    assert found.text.endswith(
        f"two runs of the same variant may differ by up to {told} (rate under concurrency 1): nothing smaller"
        " can be told apart; measure longer"
    )


def test_one_of_many_intervals_may_miss_by_chance_and_many_may_not() -> None:
    once = check("A/A pair", twin_rates(1.0, 1.1))
    assert once.passed is True
    assert once.text.startswith(
        "in 5 of 6 comparisons of the twins, 'equal' is inside the 95 % interval (not in: rate under"
        " concurrency 2: 1.10×, 1.08–1.12);"
    )
    often = check("A/A pair", twin_rates(1.1, 1.1, 1.1))
    assert often.passed is False
    assert often.text.count("rate under concurrency") == 4  # each that is outside, and the widest


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"active_uj_per_request": float("nan")}, "cells[0].energy.active_uj_per_request is nan"),
        ({"meter_uj_per_request": -1.0}, "meter_uj_per_request is -1"),
        ({"active_uj_per_request": None}, "no joules, and no reason"),
    ],
)
def test_figures_that_cannot_be_are_found(changes: dict[str, Any], text: str) -> None:
    found = check("finite figures", with_energy(make_results(), **changes))
    assert found.passed is False
    assert text in found.text


def test_accuracy_must_beat_the_commonest_label_and_stay_near_the_baseline() -> None:
    labels = [make_record(rows=[row], labels=[0 if row < 9 else 1]) for row in range(10)]
    good = make_results()
    found = check("plausible accuracy", good, labels)
    assert (found.passed, found.text) == (
        False,
        "int8: 90.0 %, no better than one answer for all rows (90.0 %)",
    )
    assert (
        "(always the commonest label: 50.0 %)"
        in check("plausible accuracy", good, [labels[0], labels[9]]).text
    )
    assert check("plausible accuracy", good).passed is True
    lost = make_accuracy(70, difference=-0.22, difference_low=-0.30, difference_high=-0.14)
    found = check("plausible accuracy", make_results(accuracy={**good.accuracy, "int8": lost}))
    assert (found.passed, found.text) == (False, "int8: 70.0 %, −22.0 % from fp32")


def test_random_weights_have_no_accuracy_to_check() -> None:
    results = make_results(server=make_server(random_weights=True))
    assert check("plausible accuracy", results).passed is None


def test_a_target_without_a_meter_has_nothing_to_check_of_it() -> None:
    results = make_results(arms=ARMS, targets=[make_target(meter={}, meter_origin="none")])
    blank = make_energy(meter=None, meter_uj_per_request=None)
    cells = [replace(one, energy=blank) for one in results.cells]
    found = {one.name: one.passed for one in validate(replace(results, cells=cells))}
    assert (found["enough sensor samples"], found["steady power"]) == (None, None)
