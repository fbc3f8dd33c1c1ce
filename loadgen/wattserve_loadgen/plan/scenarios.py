"""MLPerf Inference's four scenarios as loads, with their least counts and durations. Pure.

Sources: the table of scenarios in the MLPerf Inference rules (mlcommons/inference_policies,
inference_rules.adoc), mlperf.conf and test_settings.h of its LoadGen (mlcommons/inference, loadgen/), and
OFFLINE_MIN_SPQ and TEST_DURATION_MS of its submission checker. What runs here is after them and no MLPerf
result: `remark` says what differs.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import CLOSED, OFFLINE, Load

IN_FLIGHT = 256  # of an offline load, where no other number is asked for: a quarter of a server's usual queue
PRESET = "full"  # five blocks of 125 s: more than LEAST_SECONDS
LEAST_SECONDS = 600.0  # min_duration of every scenario (mlperf.conf)

_COMMON = (
    "no MLPerf result: the requests come from this loadgen and not from MLCommons', in blocks that add up to"
    " the duration instead of one run, with a model, rows and accuracy of your own and without MLPerf's"
    " compliance tests"
)


@dataclass(frozen=True)
class Scenario:
    """What a scenario asks for. `load` None: Poisson rates that a search tries within an objective."""

    title: str
    load: Load | None
    least_requests: int  # in the windows of a point
    metric: str
    differs: str  # beside what differs in every scenario


SCENARIOS = {
    "singlestream": Scenario(
        "SingleStream",
        Load(CLOSED, concurrency=1),
        least_requests=100,  # LoadGen's min_query_count; its early stopping needs 64 for p90
        metric="p90 of the latency, by its bound (p90_bound_ns)",
        differs="",
    ),
    "multistream": Scenario(
        "MultiStream",
        Load(CLOSED, concurrency=1, sequences=8),
        least_requests=662,  # MultiStream.min_query_count: what early stopping needs for p99
        metric="p99 of the latency of a request of 8 sequences, by its bound (p99_bound_ns)",
        differs="",
    ),
    "server": Scenario(
        "Server",
        None,
        least_requests=662,  # what early stopping needs for p99
        metric="the highest Poisson rate within the objective",
        differs="the objective is yours, MLPerf's is the benchmark's p99",
    ),
    "offline": Scenario(
        "Offline",
        Load(OFFLINE, concurrency=IN_FLIGHT),
        least_requests=24_576,  # OFFLINE_MIN_SPQ: samples, and here a request is a sample
        metric="answers per second",
        differs="samples are sent as requests of their own, a bounded number in flight, not as one query",
    ),
}


def named(name: str) -> Scenario:
    """PlanError for a name that is none."""
    if name not in SCENARIOS:
        raise PlanError(f"scenario {name!r} is unknown; choose from {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def remark(name: str) -> str:
    """One sentence for screen and results: what is measured, and what is not as MLPerf does it."""
    scenario = named(name)
    differs = f"{_COMMON}; {scenario.differs}" if scenario.differs else _COMMON
    return f"After MLPerf's {scenario.title} scenario ({scenario.metric}), but {differs}."
