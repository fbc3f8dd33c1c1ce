"""The two formats of a scrape, exemplars, and the four gauges that perf_analyzer reads."""

import re
import socket
import threading
from collections.abc import Iterable

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.fixtures.meter_fakes import FakeBoard, FakeNvml
from tests.unit.server.telemetry.test_metrics import bare_state, metrics, server_state
from wattserve_server.devices import boards_of
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.laws import SimulatedMeter
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.port import NoMeter
from wattserve_server.telemetry import scrape
from wattserve_server.telemetry.observer import Observer, Times
from wattserve_server.telemetry.scrape import OPENMETRICS, TEXT, BoardGauges, wants_openmetrics
from wattserve_server.telemetry.state import BoardFigures

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "wants"),
    [
        ("", False),
        ("*/*", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=nonsense.\u00e9", True),
        ("text/plain;version=0.0.4;q=0.6,application/openmetrics-text;q=0.1", False),
        ("application/openmetrics-text;q=0,*/*", False),
        (";;;,,,=", False),
    ],
)
def test_the_accept_header_decides(accept: str, wants: bool) -> None:
    assert wants_openmetrics(accept) is wants


def answered(request_id: str, energy_uj: int | None = 2000) -> Observer:
    made = Observer("1.2.3")
    receipt = Receipt("0123456789ab-1f", request_id, "fp32", "cpu", 0)
    receipt.lines.append(Line(receipt, 5, batch_size=1, windows=1))
    receipt.end(Outcome.COMPLETED)
    receipt.charge(
        Charge(receipt.lines[0], energy_uj, 0.0, 0, "" if energy_uj is not None else "lost"), ACCELERATOR
    )
    made.answered("fp32", 1, Times(0, 0, 0, 0, 1_200_000), receipt)
    made.receipt_final(receipt)
    return made


def exemplars(made: Observer) -> dict[str, list[tuple[dict[str, str], float]]]:
    kind, page = made.page(PROMETHEUS)
    assert kind == OPENMETRICS
    return {
        family.name: [(each.exemplar.labels, each.exemplar.value) for each in family.samples if each.exemplar]
        for family in parse_openmetrics(page.decode())
        if any(each.exemplar for each in family.samples)
    }


def test_an_exemplar_leads_to_the_receipt() -> None:
    labels = {"receipt_id": "0123456789ab-1f", "request_id": "order-17/a"}
    assert exemplars(answered("order-17/a")) == {
        "wattserve_request_duration_seconds": [(labels, 0.0012)],
        "wattserve_request_energy_joules": [(labels, 0.002)],
    }


@pytest.mark.parametrize("request_id", ["", "x" * 65, 'a"b', "a\nb", "a b", "é", "\x00"])
def test_a_request_id_that_is_long_or_odd_is_left_out(request_id: str) -> None:
    for found in exemplars(answered(request_id)).values():
        assert found[0][0] == {"receipt_id": "0123456789ab-1f"}


def test_the_longest_exemplar_is_within_openmetrics_limit() -> None:
    made = answered("x" * 64)
    ((labels, _),) = exemplars(made)["wattserve_request_duration_seconds"]
    longest = {**labels, "receipt_id": f"{'f' * 12}-{2**48:x}"}
    assert sum(len(name) + len(value) for name, value in longest.items()) <= 128


def test_an_unknown_energy_has_no_exemplar() -> None:
    assert list(exemplars(answered("a", None))) == ["wattserve_request_duration_seconds"]


def test_a_bucket_shows_its_last_request() -> None:
    made = answered("first")
    receipt = Receipt("0123456789ab-20", "second", "fp32", "cpu", 0)
    made.answered("fp32", 1, Times(0, 0, 0, 0, 1_300_000), receipt)
    made.answered("fp32", 1, Times(0, 0, 0, 0, 1_400_000))  # nobody knows which
    ((labels, value),) = exemplars(made)["wattserve_request_duration_seconds"]
    assert (labels["request_id"], value) == ("second", 0.0013)


def test_plain_text_has_no_exemplars_and_the_same_figures() -> None:
    made = metrics()
    kind, text = made.page("text/plain")
    assert kind == TEXT
    assert b" # {" not in text
    assert not text.endswith(b"# EOF\n")
    openmetrics = made.page(PROMETHEUS)[1]
    assert openmetrics.endswith(b"# EOF\n")
    assert openmetrics.count(b"# EOF\n") == 1

    def samples(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
        return {
            (each.name.removesuffix("_total"), *sorted(each.labels.values())): each.value
            for family in families
            for each in family.samples
            if not each.name.startswith("process_") and "timestamp" not in each.name
        }

    assert samples(parse_text(text.decode())) == samples(parse_openmetrics(openmetrics.decode()))


def perf_analyzer_reads(page: str, metric: str) -> dict[str, float]:
    """With its own pattern, of triton_client_backend.cc."""
    return {
        uuid: float(digits)
        for uuid, digits in re.findall(r"\n" + metric + r"\{gpu_uuid=\"([^\"]+)\"\} (\d+\.?\d*)", page)
    }


@pytest.mark.parametrize("accept", ["*/*", PROMETHEUS])
def test_perf_analyzer_reads_the_boards_figures_whole(accept: str) -> None:
    page = metrics().page(accept)[1].decode()
    assert perf_analyzer_reads(page, "nv_gpu_utilization") == {"GPU-5": 0.41}
    assert perf_analyzer_reads(page, "nv_gpu_power_usage") == {"GPU-5": 81.619}
    assert perf_analyzer_reads(page, "nv_gpu_memory_used_bytes") == {"GPU-5": 50_000_000}
    assert perf_analyzer_reads(page, "nv_gpu_memory_total_bytes") == {"GPU-5": 150_119_383_040}


@pytest.mark.parametrize(("accept", "kind"), [("*/*", "counter"), (PROMETHEUS, "unknown")])
def test_a_board_is_told_as_dcgms_exporter_tells_it(accept: str, kind: str) -> None:
    page = metrics().page(accept)[1].decode()
    energy, power = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_POWER_USAGE"
    host = f'Hostname="{socket.gethostname()}"'
    labels = rf'{{gpu="0",UUID="GPU-5",modelName="NVIDIA \"H200\"",{host}}}'
    assert f"# TYPE {energy} {kind}\n{energy}{labels} 12345678901\n" in page
    assert f"# TYPE {power} gauge\n{power}{labels} 81.619\n" in page


def page_of(*boards: BoardGauges) -> str:
    made = Observer("1.2.3")
    made.serve_state(server_state([bare_state("cuda:0")]), boards)
    return made.page("")[1].decode()


def test_a_figure_that_the_board_does_not_offer_is_absent_and_not_zero() -> None:
    assert "nv_gpu" not in page_of()
    assert "nv_gpu" not in page_of(BoardGauges("GPU-5", BoardFigures))
    only_power = page_of(BoardGauges("GPU-5", lambda: BoardFigures(power_watts=0.0)))
    assert perf_analyzer_reads(only_power, "nv_gpu_power_usage") == {"GPU-5": 0.0}
    assert "nv_gpu_memory" not in only_power


def test_a_driver_that_hangs_costs_a_scrape_its_figures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "LONGEST_READ_S", 0.02)
    hangs = threading.Event()
    calls = []

    def read() -> BoardFigures:
        calls.append(1)
        hangs.wait(60)
        return BoardFigures(power_watts=80.0)

    gauges = BoardGauges("GPU-5", read)
    for _ in range(3):
        page = page_of(gauges)  # which is there though nothing lets the driver go
        assert "nv_gpu" not in page
        assert "wattserve_meter_up" in page
    assert len(calls) == 1  # they do not pile up
    hangs.set()
    while gauges.figures().power_watts is None:
        pass


def test_a_gpus_meter_has_its_boards_gauges() -> None:
    nvml = FakeNvml([FakeBoard()])
    (gauges,) = boards_of(open_nvml("0", load=lambda: nvml, environ={}), lambda: nvml)
    assert gauges.uuid == FakeBoard().uuid
    assert gauges.figures() == BoardFigures(0.41, 82.0, 1_500_000_000, 150_119_383_040)


def test_dcgms_figures_of_a_board_are_its_own_count_and_its_number_here() -> None:
    nvml = FakeNvml([FakeBoard("GPU-4"), FakeBoard()])
    meter = open_nvml(FakeBoard().uuid, load=lambda: nvml, environ={})
    (gauges,) = boards_of(meter, lambda: nvml, has_dcgm=True)
    told = gauges.figures()
    assert (told.index, told.name, told.energy_mj) == (1, "NVIDIA H200", 1_000_000)
    nvml.boards[1].energy_mj = None  # it tells its power only
    assert "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" not in page_of(gauges)
    assert "DCGM_FI_DEV_POWER_USAGE" in page_of(gauges)


def test_a_board_in_a_sum_has_them_too_and_other_meters_have_none() -> None:
    nvml = FakeNvml([FakeBoard()])
    simulated = SimulatedMeter(lambda: 0, idle_watts=1, busy_watts=2)
    both = CompositeMeter([open_nvml("0", load=lambda: nvml, environ={}), simulated])
    assert [gauges.uuid for gauges in boards_of(both, lambda: nvml)] == [FakeBoard().uuid]
    assert boards_of(simulated, lambda: nvml) == []
    assert boards_of(NoMeter(), lambda: nvml) == []


def test_each_figure_of_a_board_fails_alone() -> None:
    fake = FakeBoard(utilization_percent=None, average_power_mw=None)  # as with MIG
    nvml = FakeNvml([fake])
    meter = open_nvml("0", load=lambda: nvml, environ={})
    (gauges,) = boards_of(meter, lambda: nvml)
    assert gauges.figures() == BoardFigures(None, None, 1_500_000_000, 150_119_383_040)
    fake.fault = RuntimeError("the binding is newer than its driver")
    assert gauges.figures() == BoardFigures()


def test_a_board_that_cannot_be_opened_again_has_none() -> None:
    nvml = FakeNvml([FakeBoard()])
    meter = open_nvml("0", load=lambda: nvml, environ={})
    nvml.boards.clear()
    assert boards_of(meter, lambda: nvml) == []
