"""What --device names: one device, or several that share all requests."""

from __future__ import annotations

import pytest
import torch

from wattserve_server.engine import device
from wattserve_server.engine.device import resolve_device, resolve_devices
from wattserve_server.engine.variants.catalogue import choose
from wattserve_server.errors import ConfigError


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "usable_cores", lambda: 2)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_a_cpu_has_a_lane_for_each_core() -> None:
    assert [str(each) for each in resolve_devices("cpu:0, cpu:1")] == ["cpu:0", "cpu:1"]
    assert resolve_devices("cpu") == (torch.device("cpu"),)


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_those_that_torch_sees() -> None:
    assert [str(each) for each in resolve_devices("cuda:1,cuda:0")] == ["cuda:1", "cuda:0"]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("cpu:0,cpu:0", "cpu:0 is listed twice; name each device once"),
        (
            "cpu:0,cpu:1,cpu:2",
            "cpu:2 is not there: this process may use 2 cores, and a CPU has no more lanes",
        ),
        ("cuda:0,cuda:2", "'cuda:2' is not there: torch sees 2 GPU"),
        ("cpu:0,cuda:1", "several devices are of one kind; .* as in --variants fp32,int8@cpu"),
        ("cpu:0,", "'' is not one of several; name each with its number, as in cuda:0,cuda:1"),
        ("auto,cuda:1", "'auto' is not one of several"),
        ("cuda,cuda:1", "'cuda' is not one of several"),
    ],
)
def test_what_cannot_be_says_what_to_do(names: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve_devices(names)


def test_a_command_that_runs_on_one_device_says_so() -> None:
    with pytest.raises(ConfigError, match="this command runs on one device; name one of them"):
        resolve_device("cpu:0,cpu:1")


def test_a_variant_runs_on_all_devices_or_on_one_of_another_kind() -> None:
    first, *others = resolve_devices("cpu:0,cpu:1")
    (fp32,) = choose("fp32", first, others=tuple(others))
    assert [str(each) for each in fp32.devices] == ["cpu:0", "cpu:1"]
    assert [str(fp32.on(each).device) for each in fp32.devices] == ["cpu:0", "cpu:1"]
    assert all(choice.others for choice in choose(None, first, others=tuple(others)))
    with pytest.raises(
        ConfigError, match="--device shares every variant among cpu:0, cpu:1; leave out the @"
    ):
        choose("fp32@cpu", first, others=tuple(others))


def test_a_variant_that_one_of_them_cannot_run_is_refused() -> None:
    first, second = resolve_devices("cpu:0,cpu:1")
    with pytest.raises(ConfigError, match=r"cannot run on cpu:0: .* All of them have fp32"):
        choose("tf32", first, others=(second,))
