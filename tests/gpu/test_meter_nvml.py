"""The NVML meters on a real board."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from wattserve_server.config import ServerConfig
from wattserve_server.energy.reading import Reading
from wattserve_server.meters.choose import open_meter
from wattserve_server.meters.nvml import NvmlPowerMeter, open_nvml
from wattserve_server.meters.nvml_board import open_board
from wattserve_server.meters.port import Meter

pytestmark = pytest.mark.gpu

# Counters are published every 20 to 100 ms; this many reads 10 ms apart see several steps.
READS = 300


@pytest.fixture
def uuid() -> str:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(torch.cuda.get_device_properties(0).uuid)


@pytest.fixture
def work(uuid: str) -> Callable[[], None]:
    """A few milliseconds of matrix multiplication."""
    matrix = torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)

    def multiply() -> None:
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()

    return multiply


def watts(start: Reading, end: Reading) -> float:
    return (end.energy - start.energy).joules / ((end.at_ns - start.at_ns) / 1e9)


def read_while(meter: Meter, during: Callable[[], None]) -> list[Reading]:
    readings = []
    for _ in range(READS):
        during()
        time.sleep(0.01)
        readings.append(meter.read())
    return readings


def test_the_meter_reads_the_board_that_torch_computes_on(uuid: str) -> None:
    chosen = open_meter(ServerConfig(), device_type="cuda", device_uuid=uuid, busy_ns=lambda: 0)
    assert chosen.meter.source.name == f"nvml:GPU-{uuid.removeprefix('GPU-')}"
    assert torch.cuda.get_device_name(0) in chosen.meter.source.boundary
    chosen.meter.close()


def test_the_counter_only_grows_and_draws_more_at_work_than_at_rest(
    uuid: str, work: Callable[[], None]
) -> None:
    meter = open_nvml(uuid)
    resting = read_while(meter, lambda: None)
    working = read_while(meter, work)
    meter.close()
    energies = [reading.energy for reading in resting + working]
    assert energies == sorted(energies)
    assert 0 < watts(resting[0], resting[-1]) < watts(working[0], working[-1])


def test_the_counter_and_the_integrated_power_speak_of_the_same_watts(
    uuid: str, work: Callable[[], None]
) -> None:
    """Not a calibration: their known disagreement is a few percent. This catches a wrong unit."""
    counter, power = open_nvml(uuid), NvmlPowerMeter(open_board(uuid))
    start_counter, start_power = counter.read(), power.read()
    for _ in range(READS):
        work()
        end_counter, end_power = counter.read(), power.read()
    counter.close()
    power.close()
    assert watts(start_power, end_power) == pytest.approx(watts(start_counter, end_counter), rel=0.5)
