"""Finding the board, choosing what to read from it, and what is said when that fails."""

from __future__ import annotations

import sys

import pynvml
import pytest

from tests.fixtures.meter_fakes import H200_UUID, SECOND_UUID, SLICE_UUID, FakeBoard, FakeNvml
from wattserve_server.energy.reading import Quality
from wattserve_server.errors import MeterError
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.nvml_board import _SENTENCES, load_nvml
from wattserve_server.meters.port import Meter


def opened(nvml: FakeNvml, device: str | None = None, **environ: str) -> Meter:
    return open_nvml(device, load=lambda: nvml, environ=environ)


def two_boards() -> FakeNvml:
    return FakeNvml([FakeBoard(), FakeBoard(uuid=SECOND_UUID, pci_bus_id="00000000:86:00.0")])


@pytest.mark.parametrize(
    "device",
    [
        SECOND_UUID,
        SECOND_UUID.removeprefix("GPU-"),
        "00000000:86:00.0",
        "86:00.0",
    ],
)
def test_a_board_is_found_by_its_uuid_as_nvml_or_torch_writes_it_and_by_its_bus_id(device: str) -> None:
    assert opened(two_boards(), device).source.name == f"nvml:{SECOND_UUID}"


@pytest.mark.parametrize("energy_mj", [1_000_000, None], ids=["counter", "power"])
def test_the_most_that_a_board_can_draw_is_its_highest_power_limit(energy_mj: int | None) -> None:
    assert opened(FakeNvml([FakeBoard(energy_mj=energy_mj, most_power_mw=350_000)])).most_watts == 350.0


@pytest.mark.parametrize(
    "board",
    [FakeBoard(most_power_mw=None), FakeBoard(most_power_mw=0), FakeBoard(name="NVIDIA GH200 480GB")],
    ids=["not offered", "nonsense", "a module, which is more than its board"],
)
def test_a_board_that_does_not_tell_its_power_limit_has_none(board: FakeBoard) -> None:
    assert opened(FakeNvml([board])).most_watts is None


def test_an_upper_case_bare_uuid_finds_the_board() -> None:
    device = H200_UUID.removeprefix("GPU-").upper()
    assert opened(two_boards(), device).source.name == f"nvml:{H200_UUID}"


def test_no_device_means_the_only_board() -> None:
    assert opened(FakeNvml()).source.name == f"nvml:{H200_UUID}"


def test_the_only_board_is_cuda_index_0_whatever_cuda_was_told_to_show() -> None:
    assert opened(FakeNvml(), "0", CUDA_VISIBLE_DEVICES="3").source.name == f"nvml:{H200_UUID}"


def test_an_index_among_several_boards_is_taken_where_cuda_counts_like_nvml() -> None:
    assert opened(two_boards(), "1", CUDA_DEVICE_ORDER="PCI_BUS_ID").source.name == f"nvml:{SECOND_UUID}"


@pytest.mark.parametrize(
    "environ",
    [{}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,0"}],
    ids=["order", "visible"],
)
def test_an_index_is_refused_where_cuda_may_count_otherwise_than_nvml(environ: dict[str, str]) -> None:
    with pytest.raises(MeterError) as caught:
        opened(two_boards(), None, **environ)
    assert str(caught.value) == (
        "NVML: there are 2 GPUs here, and CUDA may number them otherwise than NVML does: "
        "name the GPU by its UUID (`nvidia-smi -L` lists them)"
    )


def test_an_index_beyond_the_last_board_is_refused() -> None:
    with pytest.raises(MeterError, match="there is no GPU 1 here; GPUs found: 1"):
        opened(FakeNvml(), "1")


@pytest.mark.parametrize(
    "device", ["GPU-no-such", "ffffffff-ffff-ffff-ffff-ffffffffffff", "ff:00.0", "banana"]
)
def test_a_device_that_is_not_there_is_refused_by_name(device: str) -> None:
    with pytest.raises(MeterError) as caught:
        opened(FakeNvml(), device)
    assert str(caught.value) == (
        f"NVML: GPU {device} cannot be opened: there is no such GPU here; "
        "`nvidia-smi -L` lists the GPUs and their UUIDs"
    )


def in_slices() -> FakeNvml:
    board = FakeBoard(mig=True)
    return FakeNvml([board], slices={SLICE_UUID: board})


@pytest.mark.parametrize("device", [SLICE_UUID, SLICE_UUID.removeprefix("MIG-"), H200_UUID])
def test_what_a_whole_board_draws_is_not_said_to_be_one_slices(device: str) -> None:
    nvml = in_slices()
    with pytest.raises(MeterError) as caught:
        opened(nvml, device)
    assert str(caught.value) == (
        f"NVML: {H200_UUID} is cut into MIG slices, and no slice has a meter: requests would be "
        "billed what the whole board draws; --allow-mig takes that, as an estimate"
    )
    assert nvml.users == 0


@pytest.mark.parametrize("device", [SLICE_UUID, SLICE_UUID.removeprefix("MIG-")])
def test_a_slice_for_which_that_is_allowed_is_estimated_by_its_whole_board(device: str) -> None:
    source = open_nvml(device, allow_mig=True, load=in_slices, environ={}).source
    assert source.name == f"nvml:{H200_UUID}"
    assert source.quality is Quality.ESTIMATED
    assert source.boundary == (
        "GPU board (NVIDIA H200) with all of its MIG slices, as metered by its driver; "
        "board only: the host is not metered"
    )
    assert source.note.endswith("MIG is on, and no slice has a meter of its own: this is the whole board")


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB300"])
def test_a_superchips_counter_is_of_the_module_and_holds_the_server(name: str) -> None:
    source = opened(FakeNvml([FakeBoard(name=name)])).source
    assert source.boundary == f"module: GPU, CPU and memory ({name}), as metered by its driver"
    assert source.counts_server
    assert not opened(FakeNvml()).source.counts_server


def test_without_a_counter_a_superchip_is_metered_by_the_modules_power_or_not_at_all() -> None:
    board = FakeBoard(name="NVIDIA GH200 480GB", energy_mj=None)
    assert opened(FakeNvml([board])).source.boundary.startswith("module: ")
    board.instant_power = None
    with pytest.raises(MeterError, match=r"the instant power of .* cannot be read"):
        opened(FakeNvml([board]))


def test_the_counter_is_preferred_and_its_source_says_what_it_is() -> None:
    source = opened(FakeNvml()).source
    assert source.method == "apportioned counter"
    assert source.quality is Quality.MEASURED
    assert source.boundary == (
        "GPU board (NVIDIA H200), as metered by its driver; board only: the host is not metered"
    )
    assert source.note == (
        "energy counted by the board since its driver loaded; includes what other processes on the board draw"
    )


def test_a_board_that_knows_nothing_of_mig_is_metered_as_one_without_it() -> None:
    assert "MIG" not in opened(FakeNvml([FakeBoard(mig=None)])).source.note


def test_without_a_counter_the_instant_power_is_integrated() -> None:
    meter = opened(FakeNvml([FakeBoard(energy_mj=None)]))
    assert meter.source.method == "apportioned integrated power"
    assert meter.source.note.startswith("instant power, integrated between readings")
    assert meter.poll_period_s == 0.02


@pytest.mark.parametrize("capability", [(8, 6), (8, 9), (9, 0), (10, 0), None])
def test_without_instant_power_the_average_is_integrated_and_called_an_estimate(
    capability: tuple[int, int] | None,
) -> None:
    meter = opened(FakeNvml([FakeBoard(energy_mj=None, instant_power=None, capability=capability)]))
    assert meter.source.method == "apportioned integrated power"
    assert meter.source.note.startswith("1 s trailing average power, integrated between readings")
    assert meter.source.quality is Quality.ESTIMATED
    assert meter.poll_period_s == 0.1


@pytest.mark.parametrize("capability", [(6, 0), (7, 0), (7, 5), (8, 0)])
def test_up_to_ga100_what_would_be_the_average_is_the_power_of_now(capability: tuple[int, int]) -> None:
    meter = opened(FakeNvml([FakeBoard(energy_mj=None, instant_power=None, capability=capability)]))
    assert meter.source.note.startswith("instant power, integrated between readings")
    assert meter.source.quality is Quality.MEASURED
    assert meter.poll_period_s == 0.02


def test_a_board_with_neither_counter_nor_power_has_no_meter_and_nvml_is_let_go() -> None:
    nvml = FakeNvml([FakeBoard(energy_mj=None, instant_power=None, average_power_mw=None)])
    with pytest.raises(MeterError) as caught:
        opened(nvml)
    assert str(caught.value) == (
        f"NVML: the average power of {H200_UUID} cannot be read: this GPU or its driver does not offer it"
    )
    assert isinstance(caught.value.__cause__, pynvml.NVMLError)
    assert nvml.users == 0


def test_a_fault_of_the_counter_is_reported_and_not_worked_around() -> None:
    nvml = FakeNvml()
    meter = opened(nvml)
    nvml.boards[0].fault = pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(MeterError, match="this user may not ask for it"):
        meter.read()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            "NVML: it cannot be started: the driver's library libnvidia-ml.so.1 is not on this machine: "
            "install the NVIDIA driver, or give the container its GPUs (docker run --gpus all)",
        ),
        (
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            "NVML: it cannot be started: the NVIDIA driver is not loaded: "
            "load it (sudo modprobe nvidia) or reboot",
        ),
        (
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            "NVML: it cannot be started: the driver's library and its kernel module have different versions: "
            "reboot to load the new module",
        ),
        (pynvml.NVML_ERROR_MEMORY, "NVML: it cannot be started: the driver answered 'Insufficient Memory'"),
    ],
)
def test_nvml_that_does_not_start_says_why_and_what_to_do(code: int, sentence: str) -> None:
    with pytest.raises(MeterError) as caught:
        opened(FakeNvml(init_fault=pynvml.NVMLError(code)))
    assert str(caught.value) == sentence
    assert isinstance(caught.value.__cause__, pynvml.NVMLError)


def test_every_error_that_has_a_sentence_is_one_that_the_binding_can_raise() -> None:
    assert [kind for kind in _SENTENCES if not hasattr(pynvml, kind)] == []


def test_a_machine_without_the_binding_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MeterError) as caught:
        open_nvml(load=load_nvml)
    assert str(caught.value) == (
        "NVML: the Python package nvidia-ml-py is not installed: pip install nvidia-ml-py"
    )


def test_nvml_is_let_go_when_the_board_is_not_found_and_when_the_meter_closes() -> None:
    nvml = FakeNvml()
    with pytest.raises(MeterError):
        opened(nvml, "banana")
    assert nvml.users == 0
    meter = opened(nvml)
    assert nvml.users == 1
    meter.close()
    meter.close()
    assert nvml.users == 0
