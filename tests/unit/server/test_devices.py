"""A metered device, before anything runs on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from wattserve_server import devices
from wattserve_server.config import ServerConfig
from wattserve_server.devices import MeteredDevice
from wattserve_server.meters.choose import ChosenMeter
from wattserve_server.meters.port import NoMeter


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
