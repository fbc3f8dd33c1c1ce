"""What several counters say as one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from wattserve_server.energy.reading import MeterStatus, Quality, Source
from wattserve_server.meters.together import Together

BOARD = Source("nvml:GPU-5", "apportioned counter", Quality.MEASURED)
RAPL = Source("rapl", "apportioned counter", Quality.MEASURED)
STATUS = MeterStatus(
    BOARD, 0.01, None, 0.1, 70.0, "measured", "", 7, 1, lag_s=0.02, edges=40, covered_edges=38
)
HOST = replace(STATUS, source=RAPL, idle_watts=20.0, lag_s=0.0, unresolved="nothing explains it", edges=10)


def together(*statuses: MeterStatus) -> MeterStatus:
    samplers: Any = [SimpleNamespace(status=status, source=status.source) for status in statuses]
    return Together(samplers).status


def test_amounts_add_up_and_a_counter_that_is_not_understood_is_named() -> None:
    found = together(STATUS, HOST)
    assert (found.source.name, found.idle_watts, found.reads, found.failed_reads) == (
        "nvml:GPU-5+rapl",
        90.0,
        14,
        2,
    )
    assert (found.edges, found.covered_edges, found.lag_s) == (50, 76, 0.02)
    assert found.unresolved == "rapl: nothing explains it"


def test_what_one_of_them_does_not_know_is_not_known_of_the_sum() -> None:
    found = together(STATUS, replace(HOST, idle_watts=None, idle_origin="unknown"))
    assert (found.idle_watts, found.idle_origin) == (None, "unknown")


def test_one_alone_speaks_for_itself() -> None:
    assert together(HOST) is HOST
