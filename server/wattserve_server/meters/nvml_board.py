"""One NVIDIA board as NVML shows it: found by UUID, PCI bus id or CUDA index, and asked for its figures.

Knows NVML's functions, units and errors, and turns each error into what to do about it. Knows nothing
about counting energy over time (`nvml` does) or about torch.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from wattserve_server.errors import MeterError

T = TypeVar("T")

# NVML_FI_DEV_POWER_INSTANT. By number, because older releases of the binding lack the name.
_POWER_INSTANT_FIELD = 186
_MODULE_SCOPE = 1  # NVML_POWER_SCOPE_MODULE

# Superchips, whose energy counter is of the module: GPU, CPU and memory.
_MODULES = re.compile(r"\bG[HB][0-9]00\b")
# GA100, the last GPU whose `nvmlDeviceGetPowerUsage` is the power of now.
_LAST_WITHOUT_AVERAGE = (8, 0)
# The member of nvmlValue_t that is valid for each nvmlValueType_t: the type differs between drivers.
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

_BARE_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PCI_BUS_ID = re.compile(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")

_NOT_OFFERED = {
    "NVMLError_NotSupported": "this GPU or its driver does not offer it",
    "NVMLError_FunctionNotFound": "the installed driver is too old to offer it: update the NVIDIA driver",
}
_NO_SUCH_DEVICE = {
    "NVMLError_NotFound": "there is no such GPU here; `nvidia-smi -L` lists the GPUs and their UUIDs",
    "NVMLError_InvalidArgument": "that names no GPU; `nvidia-smi -L` lists the GPUs and their UUIDs",
}
_SENTENCES = {
    **_NOT_OFFERED,
    **_NO_SUCH_DEVICE,
    "NVMLError_LibraryNotFound": (
        "the driver's library libnvidia-ml.so.1 is not on this machine: install the NVIDIA driver, "
        "or give the container its GPUs (docker run --gpus all)"
    ),
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded: load it (sudo modprobe nvidia) or reboot",
    "NVMLError_LibRmVersionMismatch": (
        "the driver's library and its kernel module have different versions: reboot to load the new module"
    ),
    "NVMLError_NoPermission": "this user may not ask for it: run as a user that may use /dev/nvidia*",
    "NVMLError_GpuIsLost": "the GPU has fallen off the bus: see `dmesg`, then reset it or reboot",
    "NVMLError_ResetRequired": "the GPU must be reset first (sudo nvidia-smi --gpu-reset)",
    "NVMLError_Timeout": "the driver did not answer in time; it is asked again at the next reading",
}


class Nvml(Protocol):
    """What is used of the module `pynvml` (nvidia-ml-py)."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...
    def nvmlDeviceGetHandleByPciBusId(self, pciBusId: str) -> Any: ...
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: Any) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetIndex(self, handle: Any) -> int: ...
    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]: ...
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int: ...
    def nvmlDeviceGetFieldValues(self, handle: Any, fieldIds: list[Any]) -> Any: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]: ...
    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int: ...
    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Any) -> Sequence[int]: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]: ...
    def nvmlDeviceGetProcessUtilization(self, handle: Any, timeStamp: int) -> list[Any]: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetClockInfo(self, handle: Any, type: int) -> int: ...
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int: ...


# By which ids the driver may name this process; `learn_own_pid` finds it where a container has another.
OWN_PIDS = {os.getpid()}

_PID_NAMESPACE = Path("/proc/self/ns/pid")
_PID_NAMESPACE_OF_THE_HOST = 0xEFFFFFFC  # its inode, fixed by Linux


_SM_CLOCK = 1  # NVML_CLOCK_SM
_GPU_IDLE = 1  # nvmlClocksEventReasonGpuIdle: nothing runs, and clocks drop for that


class NotOfferedError(MeterError):
    """This board or driver has no such figure; another may do."""


class Board:
    """An opened board. Every question raises MeterError when NVML does not answer it."""

    def __init__(self, nvml: Nvml, handle: Any, own_pids: set[int] = OWN_PIDS) -> None:
        self._nvml = nvml
        self._handle: Any | None = handle
        self._closed = False
        self._own_pids = own_pids
        self._sampled_us: int | None = (
            None  # of the newest sample of a process's utilization; the driver's clock
        )
        self.uuid = nvml.nvmlDeviceGetUUID(handle)  # of the whole board, also where a MIG slice was asked for
        self.name = nvml.nvmlDeviceGetName(handle)
        self.is_module = _MODULES.search(self.name) is not None
        self.most_watts = self._most_watts()
        self.mig = self._mig_is_on()  # the board is cut into slices, of which NVML meters none

    def energy_mj(self) -> int:
        """Millijoules since the driver was loaded."""
        return self._ask("energy counter", self._nvml.nvmlDeviceGetTotalEnergyConsumption)

    def instant_power_mw(self) -> int:
        """The power now of what the energy counter counts: the board, or the module. In milliwatts."""
        return self._ask("instant power", self._read_instant_power_mw)

    def average_power_mw(self) -> int:
        """The board's power in milliwatts: the mean of the last second where `averages_power`, else now."""
        return self._ask("average power", self._nvml.nvmlDeviceGetPowerUsage)

    def averages_power(self) -> bool:
        """Whether `average_power_mw` is a mean: since Ampere it is, except on GA100. Never raises."""
        try:
            capability = self._nvml.nvmlDeviceGetCudaComputeCapability(self._handle)
        except Exception:  # not NVMLError alone: of a driver older than itself the binding says otherwise
            return True
        return tuple(capability) > _LAST_WITHOUT_AVERAGE

    def utilization_percent(self) -> int:
        """Of the last moments (a sixth of a second to a second), in how many anything computed."""
        return int(self._ask("utilization", self._nvml.nvmlDeviceGetUtilizationRates).gpu)

    def index(self) -> int:
        """Its number among the boards of this machine, as nvidia-smi and DCGM count them; CUDA may not."""
        return self._ask("index", self._nvml.nvmlDeviceGetIndex)

    def memory_bytes(self) -> tuple[int, int]:
        """What is in use, and what there is."""
        memory = self._ask("memory", self._nvml.nvmlDeviceGetMemoryInfo)
        return int(memory.used), int(memory.total)

    def neighbours(self) -> int | None:
        """How many processes beside this one compute on the board; None where the driver does not tell.

        One of the processes that the driver names is taken to be this one, whatever its id: in a container
        the driver gives the host's ids, or names nobody. So a lone stranger is not seen until this process
        uses the board too, and no process is ever taken for its own neighbour. Processes that only draw
        pictures are left out: a display server's steady draw is in the idle power. Never raises.
        """
        pids = self.pids()
        return len(pids) - 1 if pids else None

    def pids(self) -> set[int]:
        """Of the processes that compute on the board, as far as the driver names them. Never raises."""
        if self._closed or self._handle is None:
            return set()
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except Exception:  # not NVMLError alone: of a driver older than itself the binding says otherwise
            return set()
        return {process.pid for process in processes}

    def others_at_work(self) -> float | None:
        """Which share of the board's multiprocessors other processes used since this was last asked, 0 to 1.

        The driver samples each process, over a sixth of a second to a second, and gives its newest sample.
        None where it does not, at first, and where this process is not to be told from the others: it is
        never taken for one of them. In a container that sees its own processes only, that nobody else worked
        is not known either. Never raises.
        """
        if self.mig or not self._own_pids & self.pids():
            return None
        since_us = self._sampled_us
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, since_us or 0)
        except Exception as error:
            if type(error).__name__ != "NVMLError_NotFound":
                return None
            samples = []  # nobody has worked
        self._sampled_us = max([since_us or 0, *(sample.timeStamp for sample in samples)])
        percents = {sample.pid: sample.smUtil for sample in samples if sample.pid not in self._own_pids}
        if since_us is None or max(percents.values(), default=0) > 100:
            return None
        share = min(sum(percents.values()) / 100, 1.0)
        return share if share or self._sees_everybody() else None

    def clock_mhz(self) -> int | None:
        """The clock of the multiprocessors; None where the driver does not tell, and while it says that the
        board idles: that clock is not the one at which batches run. Never raises."""
        if self._closed or self._handle is None:
            return None
        try:
            if self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle) & _GPU_IDLE:
                return None
            return self._nvml.nvmlDeviceGetClockInfo(self._handle, _SM_CLOCK)
        except Exception:  # not NVMLError alone: of a driver older than itself the binding says otherwise
            return None

    def _sees_everybody(self) -> bool:
        try:
            is_on_host = _PID_NAMESPACE.stat().st_ino == _PID_NAMESPACE_OF_THE_HOST
        except OSError:
            is_on_host = False
        return is_on_host or self._own_pids != {os.getpid()}  # named by the host's id, as all others are then

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            _shut_down(self._nvml)

    def _ask(self, what: str, question: Callable[[Any], T]) -> T:
        if self._closed:
            raise MeterError(f"the NVML meter of {self.uuid} is closed")
        try:
            if self._handle is None:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self.uuid)
            return question(self._handle)
        except self._nvml.NVMLError as error:
            if type(error).__name__ not in _NOT_OFFERED:
                self._handle = None  # a board that was lost and came back needs a fresh one
            raise _meter_error(f"the {what} of {self.uuid} cannot be read", error) from error

    def _read_instant_power_mw(self, handle: Any) -> int:
        field_id = (_POWER_INSTANT_FIELD, _MODULE_SCOPE) if self.is_module else _POWER_INSTANT_FIELD
        field = self._nvml.nvmlDeviceGetFieldValues(handle, [field_id])[0]
        if field.nvmlReturn != 0:
            raise self._nvml.NVMLError(field.nvmlReturn)
        if not 0 <= field.valueType < len(_VALUE_MEMBERS):
            raise MeterError(
                f"NVML: the instant power of {self.uuid} has the unknown value type {field.valueType}"
            )
        power_mw: float = getattr(field.value, _VALUE_MEMBERS[field.valueType])
        if not math.isfinite(power_mw) or power_mw < 0:
            raise MeterError(f"NVML: the instant power of {self.uuid} is said to be {power_mw} mW")
        return round(power_mw)

    def _most_watts(self) -> float | None:
        """The highest power limit that can be set; None where the driver does not tell, and on a module, of
        which the board is only a part."""
        if self.is_module:
            return None
        try:
            _least, most_mw = self._nvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
        except Exception:  # not NVMLError alone: of a driver older than itself the binding says otherwise
            return None
        return most_mw / 1000 or None

    def _mig_is_on(self) -> bool:
        try:
            current, _pending = self._nvml.nvmlDeviceGetMigMode(self._handle)
        except self._nvml.NVMLError as error:
            if type(error).__name__ in _NOT_OFFERED:
                return False
            raise
        return current == 1


def load_nvml() -> Nvml:
    """The binding, imported only here, so that machines without it can do everything else."""
    try:
        binding: Nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise MeterError(
            "NVML: the Python package nvidia-ml-py is not installed: pip install nvidia-ml-py"
        ) from error
    return binding


def open_board(
    device: str | None = None,
    *,
    load: Callable[[], Nvml] = load_nvml,
    environ: Mapping[str, str] = os.environ,
) -> Board:
    """Opens the board that `device` names; raises MeterError with what is missing and what to do.

    device: a UUID (``GPU-…``, ``MIG-…``, or bare as torch prints it), a PCI bus id, or a CUDA index in
    digits; None means CUDA index 0. An index is refused where CUDA may count otherwise than NVML does.
    """
    nvml = load()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise _meter_error("it cannot be started", error) from error
    with contextlib.ExitStack() as undo:
        undo.callback(_shut_down, nvml)
        try:
            board = Board(nvml, _find(nvml, device or "0", environ))
        except nvml.NVMLError as error:
            raise _meter_error(f"GPU {device or '0'} cannot be opened", error) from error
        undo.pop_all()
    return board


def learn_own_pid(
    device: str | None,
    work: Callable[[], object],
    *,
    load: Callable[[], Nvml] = load_nvml,
    own_pids: set[int] = OWN_PIDS,
) -> None:
    """Finds out by which id the driver names this process, which in a container may be the host's.

    work: uses the board of `device`, so that this process is on it. Where several processes come to the board
    meanwhile, or where there is no such board, nothing is learned. Raises only what `work` raises.
    """
    try:
        board = open_board(device, load=load)
    except MeterError:
        work()
        return
    try:
        before = board.pids()
        work()
        after = board.pids()
    finally:
        board.close()
    candidates = after - before or after
    if len(candidates) == 1 and not own_pids & after:
        own_pids |= candidates


def _shut_down(nvml: Nvml) -> None:
    with contextlib.suppress(nvml.NVMLError):  # nothing is left to do about a driver that is gone
        nvml.nvmlShutdown()


def _find(nvml: Nvml, device: str, environ: Mapping[str, str]) -> Any:
    if device.isdecimal():
        return _find_by_cuda_index(nvml, int(device), environ)
    if _PCI_BUS_ID.fullmatch(device.lower()):
        return nvml.nvmlDeviceGetHandleByPciBusId(device)
    if not _BARE_UUID.fullmatch(device.lower()):
        return _find_by_uuid(nvml, device)
    # CUDA prints the same kind of UUID for a board and for a MIG slice, without saying which it is.
    try:
        return _find_by_uuid(nvml, f"GPU-{device.lower()}")
    except nvml.NVMLError as error:
        if type(error).__name__ not in _NO_SUCH_DEVICE:
            raise
    return _find_by_uuid(nvml, f"MIG-{device.lower()}")


def _find_by_uuid(nvml: Nvml, uuid: str) -> Any:
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG-") else handle


def _find_by_cuda_index(nvml: Nvml, index: int, environ: Mapping[str, str]) -> Any:
    count = nvml.nvmlDeviceGetCount()
    counted_alike = (
        environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" and environ.get("CUDA_VISIBLE_DEVICES") is None
    )
    if count > 1 and not counted_alike:
        raise MeterError(
            f"NVML: there are {count} GPUs here, and CUDA may number them otherwise than NVML does: "
            "name the GPU by its UUID (`nvidia-smi -L` lists them)"
        )
    if index >= count:
        raise MeterError(f"NVML: there is no GPU {index} here; GPUs found: {count}")
    return nvml.nvmlDeviceGetHandleByIndex(index)


def _meter_error(what: str, error: Exception) -> MeterError:
    kind = type(error).__name__
    sentence = _SENTENCES.get(kind, f"the driver answered '{error}'")
    error_class = NotOfferedError if kind in _NOT_OFFERED else MeterError
    return error_class(f"NVML: {what}: {sentence}")
