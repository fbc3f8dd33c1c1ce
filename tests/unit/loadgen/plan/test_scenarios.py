"""MLPerf's scenarios as loads: the numbers of its rules, and the sentence that says what differs."""

from __future__ import annotations

import pytest

from wattserve_common.stats import SAMPLE_FLOORS
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan import scenarios
from wattserve_loadgen.plan.schedule import PRESETS


def test_each_scenario_has_the_load_and_the_least_count_of_the_rules() -> None:
    found = {
        name: (one.load.name if one.load else None, one.least_requests)
        for name, one in scenarios.SCENARIOS.items()
    }
    assert found == {
        "singlestream": ("concurrency 1", 100),
        "multistream": ("concurrency 1, 8 sequences each", 662),
        "server": (None, 662),
        "offline": ("offline, 256 in flight", 24_576),
    }


def test_the_least_counts_carry_the_percentile_of_the_metric() -> None:
    assert scenarios.SCENARIOS["singlestream"].least_requests >= SAMPLE_FLOORS[90.0]
    assert scenarios.SCENARIOS["multistream"].least_requests >= SAMPLE_FLOORS[99.0]
    assert scenarios.SCENARIOS["server"].least_requests >= SAMPLE_FLOORS[99.0]


def test_the_preset_of_a_scenario_lasts_as_long_as_the_rules_ask() -> None:
    plan = PRESETS[scenarios.PRESET]
    assert plan.blocks * plan.seconds >= scenarios.LEAST_SECONDS == 600


@pytest.mark.parametrize("name", list(scenarios.SCENARIOS))
def test_every_scenario_says_that_it_is_no_official_result(name: str) -> None:
    text = scenarios.remark(name)
    assert "no MLPerf result" in text
    assert "\n" not in text
    assert text.count(". ") == 0


def test_offline_says_that_it_does_not_send_one_query() -> None:
    assert "not as one query" in scenarios.remark("offline")


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(PlanError, match="scenario 'batch' is unknown; choose from singlestream, multistream"):
        scenarios.remark("batch")
