"""The gates that keep a point, or its joules, out of print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.loadgen_results import (
    ARMS,
    FP32,
    OPEN,
    make_cell_of,
    make_generated,
    make_percentiles,
    no_energy,
)
from wattserve_loadgen.figures.verdicts import Evidence, duration_floor_seconds, foreseen, verdicts_of
from wattserve_loadgen.model.cells import Slices
from wattserve_loadgen.model.results import Ceiling
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.plan.load import OFFLINE, POISSON, RAMP, RECORDED, Load, closed

PLAN = schedule.make_plan("quick", ARMS, loads=[closed(1)])
LATENCY = make_percentiles(3000)
CEILING = Ceiling(200.0, 50.0, 600, "unary", 1, "2026-11-20T11:59:00+00:00")


def verdicts(
    change: dict[str, Any] | None = None,
    *,
    blocks: int = 3,
    load: Load | None = None,
    every: dict[str, Any] | None = None,
    **known: Any,
) -> list[tuple[str, str, str]]:
    """Of a point whose second block is changed so; `every` changes all of them."""
    load = closed(1) if load is None else load
    cells = [
        make_cell_of(
            FP32, load, position=at, block=at, **{**(every or {}), **((change or {}) if at == 2 else {})}
        )
        for at in range(1, blocks + 1)
    ]
    about: dict[str, Any] = {
        "plan": PLAN,
        "latency": LATENCY,
        "service": make_percentiles(3000, 0.9) if load.scheduled else None,
        "lag": make_percentiles(3000, 0.005) if load.scheduled else None,
        "sensor_period_seconds": 0.001,
        "ceiling": None,
    }
    evidence = Evidence(load=load, cells=cells, **{**about, **known})
    return [(one.code, one.spoils, one.text) for one in verdicts_of(evidence)]


def slices(rate: float = 0.0, p50: float = 0.0, energy: float = 0.0) -> Slices:
    """Twenty slices in which a figure rises by that share over the window, with a little noise."""
    noise = 1 + 0.002 * np.sin(np.arange(20) * 2.4)
    run = (np.arange(20) - 9.5) / 20

    def figure(level: float, rise: float) -> list[float | None]:
        return list((level * noise * (1 + rise * run)).tolist())

    return Slices(0.6, figure(80.0, rate), figure(12e6, p50), figure(20_000.0, energy))


@pytest.mark.parametrize("load", [closed(1), OPEN, Load(OFFLINE, concurrency=4)])
def test_a_long_complete_quiet_point_has_no_verdict(load: Load) -> None:
    assert verdicts(load=load, every={"slices": slices()}) == []


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"client_cpu_share": 0.95}, "client busy", "the client used 95 % of a core: it may be what limits"),
        ({"failed": 31, "answered": 969}, "failures", "31 of 3000 requests failed"),
        (
            {"stopped": "interrupted by the user"},
            "cut short",
            "1 of its cells ended early: interrupted by the user",
        ),
        (
            {"energy": {"foreign_sequences": 2}},
            "shared server",
            "2 sequences of other clients ran meanwhile",
        ),
        (
            {"energy": {"other_active_uj": 22_000_000}},
            "shared server",
            "25 % of its active joules were not its own: a variant was loaded?",
        ),
    ],
)
def test_each_fault_of_one_block_spoils_the_point(change: dict[str, Any], code: str, text: str) -> None:
    assert verdicts(change) == [(code, "point", text)]


def test_what_preemptions_cost_is_the_points_own() -> None:
    made = make_generated(overhead_uj_per_request=2_000.0)
    each = {"generated": made, "energy": {"other_active_uj": 2_000_000}, "sent": 1000}
    assert verdicts(each) == []
    (verdict,) = verdicts(each | {"energy": {"other_active_uj": 8_000_000}})
    assert verdict[0] == "shared server"


@pytest.mark.parametrize(
    ("energy", "code", "text"),
    [
        (
            {"gap_count": 1, "gap_seconds": 0.25},
            "meter gap",
            "1 meter gap of 0.25 s fell in its cells",
        ),
        ({"gap_seconds": 0.25}, "meter gap", "a meter gap of 0.25 s fell in its cells"),
        ({"unknown": 31}, "energy unknown", "31 of 3000 answers have no settled energy"),
        (
            no_energy("the meter was frozen"),
            "energy unknown",
            "1 of its 3 cells have no joules: the meter was frozen",
        ),
        (
            {"accounts_residual_uj": -11},
            "open accounts",
            "the server's accounts do not sum to what its meter measured: -11.0 µJ are left over",
        ),
    ],
)
def test_a_fault_of_the_meter_spoils_energy_alone(energy: Any, code: str, text: str) -> None:
    assert verdicts({"energy": energy}) == [(code, "energy", text)]


@pytest.mark.parametrize(
    "change", [{"client_cpu_share": 0.9}, {"failed": 30, "answered": 970}, {"energy": {"unknown": 30}}]
)
def test_what_is_within_the_limits_gives_none(change: dict[str, Any]) -> None:
    assert verdicts(change) == []


def test_a_server_without_a_meter_is_no_fault_of_the_point() -> None:
    assert verdicts(every={"energy": no_energy()}) == []


def test_a_block_without_an_answer_is_a_failed_cell() -> None:
    change = {"sent": 5, "answered": 0, "failed": 5, "failure_example": "UNAVAILABLE gone"}
    assert verdicts(change)[0] == (
        "failed cells",
        "point",
        "1 of its cells got no answer: UNAVAILABLE gone",
    )


@pytest.mark.parametrize(
    ("preset", "blocks", "found"),
    [
        ("full", 5, []),
        ("full", 4, [("few blocks", "point", "4 of at least 5 blocks")]),
        ("full", 3, [("few blocks", "point", "3 of at least 5 blocks")]),
        ("quick", 3, []),
    ],
)
def test_what_is_published_unlabelled_needs_five_blocks(
    preset: str, blocks: int, found: list[tuple[str, str, str]]
) -> None:
    plan = schedule.make_plan(preset, ARMS, loads=[closed(1)], blocks=blocks)
    assert verdicts(blocks=blocks, every={"window_seconds": 210.0}, plan=plan) == found


def test_a_look_of_any_length_is_too_short_to_publish() -> None:
    look = schedule.make_plan("look", ARMS, loads=[closed(1)], seconds=210)
    assert verdicts(every={"window_seconds": 210.0}, plan=look) == [
        ("too short", "point", "a look is never published: ask for the preset full")
    ]


def test_fewer_than_three_blocks_are_too_few() -> None:
    assert verdicts(blocks=2, every={"window_seconds": 100.0}) == [
        ("few blocks", "point", "2 of at least 3 blocks")
    ]


def test_a_point_needs_its_presets_seconds() -> None:
    assert verdicts(every={"window_seconds": 9.9}) == [
        ("too short", "point", "too short to publish: 29.7 s of 30 s")
    ]


@pytest.mark.parametrize(
    ("slowest_ns", "sensor_period", "floor"),
    [(1, 0.001, 30), (7_000_000_000, 0.001, 35), (1, 0.5, 50), (1, None, 30)],
)
def test_the_floor_is_the_longest_of_five_p99_a_hundred_sensor_periods_and_the_preset(
    slowest_ns: int, sensor_period: float | None, floor: float
) -> None:
    assert duration_floor_seconds(PLAN, slowest_ns, sensor_period) == floor


def test_without_a_p99_the_slowest_answer_stands_for_it() -> None:
    latency = replace(LATENCY, p99_ns=None, max_ns=8_000_000_000)
    assert verdicts(latency=latency) == [("too short", "point", "too short to publish: 37.5 s of 40 s")]


def test_a_point_needs_answers_enough_for_a_median_unless_it_is_offline() -> None:
    few = replace(LATENCY, samples=200, effective_samples=9.0, p50_ns=None)
    assert verdicts(latency=few) == [("few samples", "point", "too few answers for a median: 200, worth 9")]
    assert verdicts(latency=few, load=Load(OFFLINE, concurrency=4)) == []


def test_a_scenarios_least_count_of_requests_must_be_sent() -> None:
    assert verdicts(plan=replace(PLAN, least_requests=3000)) == []
    assert verdicts(plan=replace(PLAN, least_requests=3001)) == [
        ("few requests", "point", "3000 of at least 3001 requests")
    ]


def test_more_than_one_late_send_of_a_hundred_spoils_the_point() -> None:
    assert verdicts({"late": 15}, load=OPEN) == []
    assert verdicts({"late": 16}, load=OPEN) == [
        ("late sends", "point", "16 of 1500 requests were sent late")
    ]


def test_the_lag_may_not_exceed_a_millisecond_or_a_twentieth_of_the_service_time() -> None:
    lag = make_percentiles(3000, p99_ns=1_500_000)
    assert verdicts(load=OPEN, lag=lag) == [
        ("lag", "point", "the p99 of the lag behind the schedule is 1.50 ms, above 1.00 ms")
    ]
    assert verdicts(load=OPEN, lag=lag, service=make_percentiles(3000, 3.0)) == []


def test_a_point_that_does_not_keep_up_with_what_is_offered_is_not_one() -> None:
    assert verdicts(load=OPEN, every={"rate_per_second": 38.0}) == [
        ("behind offer", "point", "95.0 % of the offered 40.0/s were done: it did not keep up")
    ]
    assert verdicts(load=OPEN, every={"rate_per_second": 39.65}) == []


def test_failed_requests_are_done_too() -> None:
    found = verdicts(load=OPEN, every={"rate_per_second": 38.0, "failed": 25, "answered": 475})
    assert [code for code, *_ in found] == ["failures"]


def test_what_is_in_flight_at_the_edges_by_chance_is_not_missing() -> None:
    """With 2 s of latency 80 requests are in flight: 36 of 1,500 may well be missing at the edges."""
    slow = replace(LATENCY, mean_ns=2e9)
    assert verdicts(load=OPEN, every={"rate_per_second": 39.04}, latency=slow) == []
    backwards = replace(LATENCY, mean_ns=-2e9)
    assert len(verdicts(load=OPEN, every={"rate_per_second": 39.04}, latency=backwards)) == 1


def test_a_client_near_its_own_ceiling_measures_itself() -> None:
    """What was achieved in a closed loop, what was offered in an open one."""
    low = replace(CEILING, requests_per_second=159.0)
    assert verdicts(ceiling=replace(CEILING, requests_per_second=160.0)) == []
    assert verdicts(ceiling=low) == [
        ("near ceiling", "point", "80.0/s is above half of the 159/s that this client can send")
    ]
    assert verdicts(load=OPEN, ceiling=replace(CEILING, requests_per_second=79.0)) == [
        ("near ceiling", "point", "40.0/s is above half of the 79.0/s that this client can send")
    ]


def test_a_ramp_is_held_against_the_ceiling_by_its_highest_rate() -> None:
    ramp = Load(RAMP, rate=10.0, rate_end=70.0)
    as_offered = {"rate_per_second": 40.0, "offered_per_second": 40.0}
    low, high = replace(CEILING, requests_per_second=139.0), replace(CEILING, requests_per_second=140.0)
    assert verdicts(load=ramp, every=as_offered, ceiling=high) == []
    assert verdicts(load=ramp, every=as_offered, ceiling=low) == [
        ("near ceiling", "point", "70.0/s is above half of the 139/s that this client can send")
    ]
    falling = Load(RAMP, rate=70.0, rate_end=10.0)
    assert [code for code, *_ in verdicts(load=falling, every=as_offered, ceiling=low)] == ["near ceiling"]


@pytest.mark.parametrize(
    ("drifting", "code", "spoils", "text"),
    [
        ({"rate": -0.1}, "drift", "point", "throughput fell by 10 % within its windows"),
        ({"p50": 0.2}, "drift", "point", "the median latency rose by 20 % within its windows"),
        ({"energy": 0.1}, "energy drift", "energy", "energy per request rose by 10 % within its windows"),
    ],
)
def test_a_drifting_figure_spoils_what_it_tells(
    drifting: dict[str, float], code: str, spoils: str, text: str
) -> None:
    assert verdicts(every={"slices": slices(**drifting)}) == [(code, spoils, text)]


def test_a_drift_below_the_floor_is_nobodys_concern() -> None:
    assert verdicts(every={"slices": slices(rate=0.04, p50=0.04, energy=0.04)}) == []


@pytest.mark.parametrize(
    "load", [Load(RAMP, rate=10.0, rate_end=70.0), Load(RECORDED, rate=40.0, trace="a.txt")]
)
def test_loads_that_change_by_design_may_drift(load: Load) -> None:
    drifting = {
        "slices": slices(rate=1.0, p50=0.5, energy=-0.3),
        "rate_per_second": 40.0,
        "offered_per_second": 40.0,
    }
    assert verdicts(load=load, every=drifting) == []


def test_the_median_of_an_offline_load_may_drift() -> None:
    load = Load(OFFLINE, concurrency=4)
    assert verdicts(load=load, every={"slices": slices(p50=0.5)}) == []
    assert verdicts(load=load, every={"slices": slices(rate=0.5)}) == [
        ("drift", "point", "throughput rose by 50 % within its windows")
    ]


def test_without_slices_there_is_no_verdict_on_drift() -> None:
    assert verdicts(every={"slices": None}) == []


def test_what_spoils_the_point_is_told_first() -> None:
    found = verdicts(
        {"energy": {"gap_count": 1, "foreign_sequences": 1}, "slices": None, "stopped": "interrupted"}
    )
    assert [spoils for _, spoils, _ in found] == ["point", "point", "energy"]


def foreseen_of(
    preset: str = "quick", *, ceilings: Sequence[Ceiling] = (), sensor: float = 0.001, **plan: Any
) -> list[str]:
    return list(
        foreseen(schedule.make_plan(preset, ARMS, **{"loads": [closed(1)], **plan}), sensor, ceilings)
    )


def test_windows_too_short_for_figures_are_known_before_the_first_request() -> None:
    (text,) = foreseen_of(seconds=5.0)
    assert text == (
        "each point gets 15 s of windows, quick needs 30 s: figures will be withheld; give --seconds 11, or"
        " --preset look, which shows them all the same"
    )
    assert foreseen_of(seconds=11.0) == []
    plan = schedule.make_plan("quick", ARMS, loads=[closed(1)], seconds=5.0)
    assert verdicts(every={"window_seconds": 5.0}, plan=plan)[0][0] == "too short"
    assert verdicts(every={"window_seconds": 11.0}, plan=plan) == []


def test_a_look_and_what_a_preset_plans_itself_are_not_warned_of() -> None:
    assert [foreseen_of(preset) for preset in ("look", "quick", "full")] == [[], [], []]
    assert foreseen_of("look", seconds=0.5, blocks=1) == []


def test_a_slow_sensor_is_known_to_need_longer_windows() -> None:
    (text,) = foreseen_of(sensor=1.0)
    assert text.startswith("each point gets 36 s of windows, the energy sensor needs 100 s: figures will be")
    assert "--seconds 34," in text


def test_too_few_blocks_are_known_before() -> None:
    (text,) = foreseen_of(blocks=2, seconds=30.0)
    assert text == "each point gets 2 blocks, quick needs 3: figures will be withheld; give --blocks 3"
    assert verdicts(blocks=2, every={"window_seconds": 30.0})[0][0] == "few blocks"


def test_a_rate_that_the_client_or_the_sample_cannot_carry_is_known_before() -> None:
    loads = [OPEN, Load(POISSON, rate=500.0), Load(POISSON, rate=0.2)]
    assert foreseen_of(loads=loads, ceilings=[CEILING]) == [
        "500/s poisson: its figures will be withheld: above 100/s, half of what this client can send",
        "0.2/s poisson: its figures will be withheld: about 7 requests, too few for a median; give"
        " --seconds 37",
    ]


def test_a_scenario_that_goes_on_until_it_has_its_requests_is_not_called_too_short() -> None:
    assert foreseen_of(seconds=5.0, least_requests=662) == []
