"""Which meter a server gets, and how loudly it says what the joules are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.fixtures.meter_fakes import H200_UUID, SECOND_UUID, FakeBoard, FakeNvml, PowercapTree
from wattserve_server.config import ServerConfig
from wattserve_server.energy.reading import Quality
from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.meters.choose import ChosenMeter, device_type_of, open_meter


@pytest.fixture
def tree(tmp_path: Path) -> PowercapTree:
    return PowercapTree(tmp_path / "powercap")


def chosen(
    choice: str,
    device_type: str,
    tree: PowercapTree,
    nvml: FakeNvml | None = None,
    device_uuid: str | None = None,
) -> ChosenMeter:
    no_driver = FakeNvml(init_fault=pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    return open_meter(
        ServerConfig(meter=choice, powercap_root=str(tree.root)),
        device_type=device_type,
        device_uuid=device_uuid,
        busy_ns=lambda: 0,
        load=lambda: nvml or no_driver,
    )


def test_auto_takes_the_board_that_the_model_runs_on(tree: PowercapTree) -> None:
    nvml = FakeNvml([FakeBoard(), FakeBoard(uuid=SECOND_UUID)])
    got = chosen("auto", "cuda", tree, nvml, SECOND_UUID.removeprefix("GPU-"))
    assert got.meter.source.name == f"nvml:{SECOND_UUID}"
    assert got.notice == (
        f"joules are measured by nvml:{SECOND_UUID}: GPU board (NVIDIA H200), as metered by its driver; "
        "board only: the host is not metered (energy counted by the board since its driver loaded; "
        "includes what other processes on the board draw)"
    )


def test_auto_on_a_gpu_without_nvml_gives_no_figures_rather_than_the_cpus(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0")
    got = chosen("auto", "cuda", tree)
    assert got.meter.source.quality is Quality.NONE
    assert got.notice == (
        "NO ENERGY METER: NVML: it cannot be started: the driver's library libnvidia-ml.so.1 is not on this "
        "machine: install the NVIDIA driver, or give the container its GPUs (docker run --gpus all); "
        "every receipt says ENERGY UNKNOWN"
    )
    with pytest.raises(MeterError, match=r"^no GPU energy meter: NVML: it cannot be started"):
        got.meter.read()


def test_auto_on_a_cpu_takes_rapl_where_it_can_be_read(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0")
    got = chosen("auto", "cpu", tree)
    assert got.meter.source.name == "rapl"
    assert got.notice.startswith("joules are measured by rapl: CPU packages of this host (package-0)")


def test_auto_on_a_cpu_without_rapl_estimates_and_says_so_loudly(tree: PowercapTree) -> None:
    got = chosen("auto", "cpu", tree)
    assert got.meter.source.quality is Quality.ESTIMATED
    assert got.notice == (
        f"NO ENERGY SENSOR: RAPL: {tree.root} has no intel-rapl zones: virtual machines usually have none; "
        "on real hardware load the kernel module (sudo modprobe intel_rapl_msr); joules are ESTIMATED from "
        "CPU time (7.5 W per busy core + 5 W idle, configured, not measured)"
    )


def test_auto_refuses_a_device_type_that_no_meter_covers(tree: PowercapTree) -> None:
    with pytest.raises(MeterError) as caught:
        chosen("auto", "mps", tree)
    assert str(caught.value) == "no meter covers the device type 'mps': use --meter simulated or none"


@pytest.mark.parametrize(
    ("choice", "device_type", "covered"),
    [("rapl", "cuda", "cpu"), ("estimate", "cuda", "cpu"), ("nvml", "cpu", "cuda")],
)
def test_a_meter_that_would_miss_the_devices_joules_is_refused(
    tree: PowercapTree, choice: str, device_type: str, covered: str
) -> None:
    tree.add("intel-rapl:0", "package-0")
    with pytest.raises(MeterError) as caught:
        chosen(choice, device_type, tree, FakeNvml())
    assert str(caught.value) == (
        f"--meter {choice} covers {covered} only, and the model runs on {device_type}, "
        "whose joules it would miss: use --meter auto"
    )


@pytest.mark.parametrize(("choice", "device_type"), [("nvml", "cuda"), ("rapl", "cpu")])
def test_a_meter_that_was_asked_for_and_is_not_there_is_an_error(
    tree: PowercapTree, choice: str, device_type: str
) -> None:
    with pytest.raises(MeterError):
        chosen(choice, device_type, tree)


def only(tree: PowercapTree, nvml: FakeNvml, choice: str = "auto", **given: Any) -> ChosenMeter:
    """For a GPU."""
    return open_meter(
        ServerConfig(meter=choice, powercap_root=str(tree.root), **given),
        device_type="cuda",
        device_uuid=None,
        busy_ns=lambda: 0,
        load=lambda: nvml,
    )


def test_auto_adds_the_host_of_a_gpu(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0")
    source = only(tree, FakeNvml()).meter.source
    assert source.name == f"nvml:{H200_UUID}+rapl"
    assert "board only" not in source.boundary
    assert source.quality is Quality.MEASURED


def test_auto_without_rapl_is_quietly_the_board_only(tree: PowercapTree) -> None:
    nvml = FakeNvml()
    got = only(tree, nvml)
    assert got.meter.source.name == f"nvml:{H200_UUID}"
    assert got.meter.source.boundary.endswith("; board only: the host is not metered")
    assert "RAPL" not in got.notice
    assert nvml.users == 1


def test_auto_says_how_a_host_that_counts_is_made_readable(tree: PowercapTree) -> None:
    (tree.add("intel-rapl:0", "package-0") / "energy_uj").unlink()  # as containers hide it
    got = only(tree, FakeNvml())
    assert got.meter.source.boundary.endswith("; board only: the host is not metered")
    assert "; the host's CPU is not in it: RAPL: " in got.notice
    assert "mount the host's /sys/devices/virtual/powercap read-only" in got.notice


def test_a_gpu_without_a_meter_is_not_replaced_by_its_host(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0")
    no_driver = FakeNvml(init_fault=pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert only(tree, no_driver).meter.source.quality is Quality.NONE


def test_a_superchips_host_is_in_its_counter_already(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0")
    nvml = FakeNvml([FakeBoard(name="NVIDIA GH200 480GB")])
    assert only(tree, nvml).meter.source.name == f"nvml:{H200_UUID}"
    assert nvml.users == 1
    with pytest.raises(MeterError) as caught:
        only(tree, nvml, "nvml+rapl")
    assert str(caught.value) == (
        "--meter nvml+rapl: this GPU's counter is its whole module's, CPU and memory in it, which would be "
        "counted twice: use --meter nvml"
    )
    assert nvml.users == 1


def test_a_board_in_slices_is_allowed_by_a_setting(tree: PowercapTree) -> None:
    nvml = FakeNvml([FakeBoard(mig=True)])
    refused = only(tree, nvml)
    assert refused.meter.source.quality is Quality.NONE
    assert "--allow-mig takes that, as an estimate" in refused.notice
    assert only(tree, nvml, allow_mig=True).notice.startswith(f"joules are ESTIMATED by nvml:{H200_UUID}")


def test_asking_for_nvml_gives_the_named_board(tree: PowercapTree) -> None:
    assert chosen("nvml", "cuda", tree, FakeNvml(), H200_UUID).meter.source.name == f"nvml:{H200_UUID}"


def test_asking_for_an_estimate_gives_one_although_rapl_could_be_read(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0")
    got = chosen("estimate", "cpu", tree)
    assert got.notice == (
        "joules are ESTIMATED from CPU time: only the CPU time of this process on this host; no other "
        "process and no accelerator (7.5 W per busy core + 5 W idle, configured, not measured)"
    )


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_simulated_meter_serves_any_device_and_says_that_it_is_simulated(
    tree: PowercapTree, device_type: str
) -> None:
    got = chosen("simulated", device_type, tree)
    assert got.meter.source.quality is Quality.SIMULATED
    assert got.notice.startswith("joules are SIMULATED: an imagined device")


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_asking_for_no_meter_gives_none_on_any_device(tree: PowercapTree, device_type: str) -> None:
    got = chosen("none", device_type, tree, FakeNvml())
    assert got.meter.source.quality is Quality.NONE
    assert got.notice == "every receipt says ENERGY UNKNOWN: no meter was asked for (--meter none)"


def test_an_unknown_meter_is_an_error_that_lists_the_known_ones(tree: PowercapTree) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen("wattmeter", "cpu", tree)
    assert str(caught.value) == (
        "unknown meter 'wattmeter'; known: auto, nvml, rapl, estimate, simulated, replay, none, "
        "and sums such as nvml+rapl"
    )


def test_a_gpu_and_its_host_are_added_up_and_both_are_named(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0")
    got = chosen("nvml+rapl", "cuda", tree, FakeNvml(), H200_UUID)
    assert got.meter.source.name == f"nvml:{H200_UUID}+rapl"
    assert got.meter.source.boundary == (
        "GPU board (NVIDIA H200), as metered by its driver + "
        "CPU packages of this host (package-0), without DRAM"
    )
    assert got.notice.startswith(f"joules are measured by nvml:{H200_UUID}+rapl: GPU board")


def test_a_sum_with_an_estimate_in_it_is_an_estimate(tree: PowercapTree) -> None:
    got = chosen("nvml+estimate", "cuda", tree, FakeNvml(), H200_UUID)
    assert got.notice.startswith(f"joules are ESTIMATED by nvml:{H200_UUID}+estimate")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("nvml+auto", "'auto' cannot be added up; only nvml, rapl, estimate, simulated can"),
        ("rapl+none", "'none' cannot be added up; only nvml, rapl, estimate, simulated can"),
        ("replay+rapl", "'replay' cannot be added up; only nvml, rapl, estimate, simulated can"),
        ("rapl+rapl", "'rapl' is there twice, and would count its joules twice"),
        ("rapl+estimate", "estimate and rapl cannot be added up: both count this process's CPU time"),
        (
            "simulated+nvml",
            "nvml and simulated cannot be added up: both stand for the device that runs the model",
        ),
    ],
)
def test_a_sum_that_would_not_be_honest_is_refused(tree: PowercapTree, choice: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(choice, "cuda", tree, FakeNvml())
    assert str(caught.value) == f"--meter {choice}: {message}"


def test_a_gpu_that_the_model_does_not_run_on_is_not_added(tree: PowercapTree) -> None:
    with pytest.raises(MeterError) as caught:
        chosen("nvml+rapl", "cpu", tree, FakeNvml())
    assert str(caught.value) == (
        "--meter nvml+rapl would add the joules of a GPU, and the model runs on cpu: leave nvml out"
    )


def test_a_part_that_is_not_there_closes_what_was_opened_before_it(tree: PowercapTree) -> None:
    nvml = FakeNvml()
    with pytest.raises(MeterError, match=r"^RAPL: "):
        chosen("nvml+rapl", "cuda", tree, nvml, H200_UUID)
    assert nvml.users == 0


def test_an_empty_name_in_a_sum_is_unknown(tree: PowercapTree) -> None:
    with pytest.raises(ConfigError, match=r"^unknown meter ''; known: "):
        chosen("nvml+", "cuda", tree, FakeNvml())


@pytest.mark.parametrize(
    ("choice", "device_type"),
    [("nvml+rapl", "cuda"), ("nvml", "cuda"), ("rapl", "cpu"), ("simulated", None), ("auto", None)],
)
def test_a_choice_tells_the_device_type_that_it_is_for(choice: str, device_type: str | None) -> None:
    assert device_type_of(choice) == device_type


def test_the_configured_watts_reach_the_meters(tree: PowercapTree) -> None:
    config = ServerConfig(
        estimate_watts_per_core=4,
        estimate_idle_watts=1,
        simulated_idle_watts=70,
        simulated_busy_watts=630,
        powercap_root=str(tree.root),
    )
    notes = {
        choice: open_meter(
            replace(config, meter=choice), device_type="cpu", device_uuid=None, busy_ns=lambda: 0
        ).meter.source.note
        for choice in ("auto", "estimate", "simulated")
    }
    assert notes["auto"] == notes["estimate"] == "4 W per busy core + 1 W idle, configured, not measured"
    assert notes["simulated"].startswith("70 W idle + 630 W while a batch runs")


@pytest.mark.parametrize("watts", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "field",
    ["estimate_watts_per_core", "estimate_idle_watts", "simulated_idle_watts", "simulated_busy_watts"],
)
def test_watts_that_cannot_be_are_refused_by_the_name_of_their_flag(field: str, watts: float) -> None:
    given: dict[str, Any] = {field: watts}
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**given)
    assert str(caught.value) == f"--{field.replace('_', '-')} {watts}: must be a number, 0 or more"


def test_zero_watts_are_allowed() -> None:
    assert ServerConfig(estimate_idle_watts=0).estimate_idle_watts == 0
