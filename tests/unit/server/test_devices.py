"""A metered device, before anything runs on it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from wattserve_server import devices
from wattserve_server.config import ServerConfig
from wattserve_server.devices import MeteredDevice, accounts_of, check_alike, open_devices
from wattserve_server.energy.reading import ZERO, Quality, Reading, Source
from wattserve_server.energy.receipt import HOST
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.errors import ConfigError
from wattserve_server.meters.choose import ChosenMeter
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.port import Meter, NoMeter
from wattserve_server.meters.sampler import Sampler

MODEL: Any = SimpleNamespace(facts=SimpleNamespace(max_tokens=512), task=SimpleNamespace(generates=False))


@pytest.mark.parametrize(("device", "learned"), [("cuda:0", ["GPU-7"]), ("cpu", [])])
def test_a_gpu_is_used_once_so_that_its_driver_names_this_process(
    monkeypatch: pytest.MonkeyPatch, device: str, learned: list[str]
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(devices, "open_meter", lambda *_, **__: ChosenMeter(NoMeter(), ""))
    monkeypatch.setattr(devices, "device_uuid", lambda _: "GPU-7")
    monkeypatch.setattr(devices, "learn_own_pid", lambda uuid, work: told.append(uuid))
    asyncio.run(MeteredDevice(ServerConfig(), torch.device(device), True).get_ready())
    assert told == learned


def test_a_device_that_cannot_be_used_is_left_to_the_loading_of_variants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(devices, "open_meter", lambda *_, **__: ChosenMeter(NoMeter(), ""))
    monkeypatch.setattr(devices, "device_uuid", lambda _: "GPU-7")
    monkeypatch.setattr(devices, "learn_own_pid", lambda uuid, work: work())
    monkeypatch.setattr(torch, "ones", fail)
    asyncio.run(MeteredDevice(ServerConfig(), torch.device("cuda:0"), True).get_ready())


@pytest.mark.parametrize("names", [["cuda:0", "cpu"], ["cpu", "cuda:0"], ["cuda:0", "cuda:1"]])
def test_the_host_is_counted_once_by_the_meter_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """Whichever device comes first; what was opened besides is closed, and the start says what is in use."""
    opened: list[Named] = []

    def open_meter(config: ServerConfig, device_type: str, is_main: bool, **_: object) -> ChosenMeter:
        meters = [Named("nvml:GPU-7"), Named("estimate")] if is_main else [Named("rapl")]
        opened.extend(meters)
        meter: Any = CompositeMeter(cast("list[Meter]", meters)) if len(meters) > 1 else meters[0]
        return ChosenMeter(meter, f"joules are of {meter.source.name}")

    monkeypatch.setattr(devices, "open_meter", open_meter)
    monkeypatch.setattr(devices, "device_uuid", lambda _: "GPU-7")
    monkeypatch.setattr(devices, "boards_of", lambda *_, **__: [])
    found = open_devices(ServerConfig(), [torch.device(name) for name in names], torch.device("cuda"))
    assert [str(each.device) for each in found] == names
    (host,) = {counter for each in found for counter in each.counters if counter.part == HOST}
    assert (host.meter.source.name, sorted(host.devices)) == ("estimate", sorted(names))
    assert [meter.source.name for meter in opened if meter.is_closed] == (
        ["rapl"] if "cpu" in names else ["estimate"]
    )
    assert {each.chosen.notice for each in found if each.device.type == "cpu"} <= {
        "joules are measured by estimate: the boundary of estimate ()"
    }


def test_devices_with_one_counter_between_them_have_one_account_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "open_meter", lambda *_, **__: ChosenMeter(cast("Meter", Named("rapl")), ""))
    lanes = [torch.device("cpu", 0), torch.device("cpu", 1)]
    (account,) = accounts_of(open_devices(ServerConfig(), lanes, lanes[0]))
    (host,) = account.counters
    assert (account.name, host.devices) == ("cpu:0", ["cpu:0", "cpu:1"])


def test_devices_of_one_queue_are_metered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    meters = [Named("rapl"), CompositeMeter(cast("list[Meter]", [Named("nvml:GPU-7"), Named("rapl")]))]
    found = iter(cast("list[Meter]", meters))
    monkeypatch.setattr(devices, "open_meter", lambda *_, **__: ChosenMeter(next(found), ""))
    monkeypatch.setattr(devices, "boards_of", lambda *_, **__: [])
    lanes = [MeteredDevice(ServerConfig(), torch.device("cpu", index), True) for index in range(2)]
    check_alike(lanes[:1], "--device cpu:0")
    with pytest.raises(
        ConfigError, match=r"--device a,b: .* \(cpu:0 by its host, cpu:1 by its accelerator and host"
    ):
        check_alike(lanes, "--device a,b")


def test_trials_outlast_the_mean_that_a_meter_of_the_device_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    board, host = Named("nvml:GPU-7"), Named("rapl")
    board.source = replace(board.source, averages_s=1.0)
    both: Any = CompositeMeter(cast("list[Meter]", [board, host]))
    assert both.source.averages_s == 1.0
    monkeypatch.setattr(devices, "open_meter", lambda *_, **__: ChosenMeter(both, ""))
    monkeypatch.setattr(devices, "device_uuid", lambda _: "GPU-7")
    monkeypatch.setattr(devices, "boards_of", lambda *_, **__: [])
    device = MeteredDevice(ServerConfig(), torch.device("cuda:0"), True)
    for counter in device.counters:
        counter.sampler = cast("Sampler", None)
    trials = device.metering(MODEL, BatchLimits(32, 4096)).trials
    assert trials is not None
    assert min(trials.trial_s, trials.pause_s) > 1.0


@pytest.mark.parametrize(
    ("cpu_watts", "goes_by_cpu"), [((None, 7.5), True), ((None, None), False), ((7.5,), True)]
)
def test_cpu_time_is_taken_where_a_counter_goes_by_it(
    monkeypatch: pytest.MonkeyPatch, cpu_watts: tuple[float | None, ...], goes_by_cpu: bool
) -> None:
    meters = [Named("nvml:GPU-7"), Named("rapl")][-len(cpu_watts) :]
    for meter, watts in zip(meters, cpu_watts, strict=True):
        meter.source = replace(meter.source, cpu_watts=watts)
    all_of_them: Any = CompositeMeter(cast("list[Meter]", meters)) if len(meters) > 1 else meters[0]
    monkeypatch.setattr(devices, "open_meter", lambda *_, **__: ChosenMeter(all_of_them, ""))
    monkeypatch.setattr(devices, "device_uuid", lambda _: "GPU-7")
    monkeypatch.setattr(devices, "boards_of", lambda *_, **__: [])
    device = MeteredDevice(ServerConfig(calibration_seconds=0.0), torch.device("cpu"), True)
    for counter in device.counters:
        counter.sampler = cast("Sampler", None)
    assert device.metering(MODEL, BatchLimits(32, 4096)).goes_by_cpu is goes_by_cpu


class Named:
    """A meter of which only the name matters."""

    poll_period_s = 0.02
    idle_watts: float | None = None
    wraps_at = most_watts = None

    def __init__(self, name: str) -> None:
        self.source = Source(
            name, "apportioned counter", Quality.MEASURED, boundary=f"the boundary of {name}"
        )
        self.is_closed = False

    def read(self) -> Reading:
        return Reading(0, ZERO)

    def close(self) -> None:
        self.is_closed = True
