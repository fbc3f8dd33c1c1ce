"""The benchmark of the metrics' cost measures what it says. How much it is, is for the benchmark to say."""

import pytest

from tests.bench import metrics_cost


def test_every_part_of_a_request_is_measured_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_cost, "REQUESTS", 200)
    figures = metrics_cost.measure(3)
    assert set(figures) == {
        "gRPC call",
        "answered request",
        "batch of one",
        "settled receipt",
        "refused request, instead",
        "all of a request",
        "scrape as text, ms",
        "scrape as OpenMetrics, ms",
    }
    assert min(figures.values()) > 0


def test_its_requests_reach_every_family_of_the_way_of_a_request() -> None:
    work = metrics_cost.Work()
    for request in work.requests:
        for part in (work.grpc, work.answer, work.batch, work.receipt):
            part(*request)
    page = work.observer.page("")[1].decode()
    for family in (
        "grpc_server_handling_seconds_count{",
        "wattserve_stage_duration_seconds_count{",
        "wattserve_request_energy_joules_count{",
        "wattserve_provisional_error_ratio_count{",
        "wattserve_batch_sequences_count{",
    ):
        lines = [line for line in page.splitlines() if line.startswith(family)]
        assert sum(float(line.rpartition(" ")[2]) for line in lines) % 512 == 0
        assert lines
    assert b"request-511" in work.observer.page(metrics_cost.OPENMETRICS)[1]
