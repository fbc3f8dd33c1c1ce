"""Which code oneDNN and MKL really ran on a CPU: they say so on the C library's standard output, on demand.

Not the file descriptor but C's `stdout` stream is exchanged meanwhile: what Python, and whoever else, writes
to descriptor 1 goes where it always does. glibc documents `stdout` as a variable that may be set; where the C
library is another, nothing is reported.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import torch

_PREFIXES = ("onednn_verbose", "dnnl_verbose", "MKL_VERBOSE")


@dataclass(frozen=True, slots=True)
class Implementation:
    """What multiplied."""

    library: str  # oneDNN or MKL
    name: str  # the library's for it, e.g. brg_matmul:avx512_core_amx or SGEMM
    operands: str  # e.g. bf16 x bf16; empty where it is not told
    fpmath: str  # the lower precision that fp32 operands were rounded to, if any
    calls: int

    def __str__(self) -> str:
        operands = f" ({self.operands})" if self.operands else ""
        return f"{self.library} {self.name}{operands}"


@dataclass(slots=True)
class CpuReport:
    """What is empty was not reported."""

    implementations: tuple[Implementation, ...] = ()  # of products and convolutions, the most called first
    instructions: str = ""  # the most that oneDNN uses on this CPU, in its words


@dataclass(slots=True)
class _Stream:
    """A C stream into memory, kept for good: another thread may still hold the pointer afterwards."""

    pointer: int = 0
    descriptor: int = -1
    instructions: str = ""  # oneDNN prints them once in a process
    lock: threading.Lock = field(default_factory=threading.Lock)


_STREAM = _Stream()


@contextmanager
def cpu_report() -> Iterator[CpuReport]:
    """Filled in at the end of the block. Not reported where anything is missing for it; never raises.

    The libraries report the products of the whole process, so that another thread's count too; one that is
    running when the block ends may still print its line.
    """
    report = CpuReport()
    with _STREAM.lock:
        libc = _libc()
        if libc is None:
            yield report
            return
        try:
            with _exchanged_stdout(libc), _spoken():
                yield report
        finally:
            lines = _read().splitlines()
            _hand_on(libc, [line for line in lines if not line.startswith(_PREFIXES)])
            parsed = parse(lines)
            _STREAM.instructions = parsed.instructions or _STREAM.instructions
            report.implementations, report.instructions = parsed.implementations, _STREAM.instructions


def _libc() -> ctypes.CDLL | None:
    """Where it is glibc, on Linux, with our stream open."""
    if platform.libc_ver()[0] != "glibc" or not hasattr(os, "memfd_create"):
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.fflush.argtypes = [ctypes.c_void_p]
        if not _STREAM.pointer:
            libc.fdopen.restype, libc.fdopen.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_char_p]
            _STREAM.descriptor = os.memfd_create("wattserve-verbose")
            _STREAM.pointer = libc.fdopen(_STREAM.descriptor, b"a") or 0
    except (OSError, AttributeError):
        return None
    return libc if _STREAM.pointer else None


@contextmanager
def _exchanged_stdout(libc: ctypes.CDLL) -> Iterator[None]:
    stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    before = stdout.value
    os.ftruncate(_STREAM.descriptor, 0)
    stdout.value = _STREAM.pointer
    try:
        yield
    finally:
        stdout.value = before
        libc.fflush(_STREAM.pointer)


@contextmanager
def _spoken() -> Iterator[None]:
    """oneDNN and MKL report, as far as this torch has them."""
    with ExitStack() as quiet:
        for library in (torch.backends.mkldnn, torch.backends.mkl):
            with suppress(AssertionError, AttributeError, RuntimeError):
                if library.is_available():
                    quiet.enter_context(library.verbose(library.VERBOSE_ON))
        yield


def _read() -> str:
    size = os.fstat(_STREAM.descriptor).st_size
    text = os.pread(_STREAM.descriptor, size, 0).decode(errors="replace")
    os.ftruncate(_STREAM.descriptor, 0)
    return text


def _hand_on(libc: ctypes.CDLL, lines: list[str]) -> None:
    """What other C code printed meanwhile, to where it wanted it."""
    if lines:
        libc.printf(b"%s", "".join(f"{line}\n" for line in lines).encode())


_ONEDNN = re.compile(
    r"_verbose,(?:v\d+,)?(?:[\d.]+,)?(?:primitive,)?exec(?::\w+)?,cpu,"
    r"(?P<what>matmul|inner_product|convolution|deconvolution|gemm_api),(?P<name>[^,]*),[^,]*,"
    r"(?P<operands>[^,]*),(?P<attributes>[^,]*)"
)
_OPERAND = re.compile(r"\b(?P<role>src|wei)[_:](?P<type>[a-z]\w*?)(?=[:\s]|$)")
_FPMATH = re.compile(r"attr-fpmath:(?P<mode>\w+)")
_MKL = re.compile(r"MKL_VERBOSE (?P<name>\w*(?:GEMM|GEMV)\w*)\(")
_INSTRUCTIONS = re.compile(r"_verbose,(?:v\d+,)?info,cpu,isa:(?P<isa>.*)")
_MKL_OPERANDS = (
    ("BF16", "bf16"),
    ("F16", "fp16"),
    ("HGEM", "fp16"),
    ("S8", "int8"),
    ("DGEM", "fp64"),
    ("SGEM", "fp32"),
)
_TYPES = {"f32": "fp32", "f16": "fp16", "s8": "int8", "u8": "int8"}


def parse(lines: list[str]) -> CpuReport:
    """Lines that oneDNN and MKL print; others are passed over."""
    counted: Counter[tuple[str, str, str, str]] = Counter()
    instructions = ""
    for line in lines:
        if match := _ONEDNN.search(line):
            types = {role: _TYPES.get(name, name) for role, name in _OPERAND.findall(match["operands"])}
            mode = _FPMATH.search(match["attributes"])
            name = match["name"] or match["what"]
            operands = " x ".join(types[role] for role in ("src", "wei") if role in types)
            counted["oneDNN", name, operands, mode["mode"] if mode else ""] += 1
        elif match := _MKL.match(line):
            counted["MKL", match["name"], _mkl_operands(match["name"]), ""] += 1
        elif match := _INSTRUCTIONS.search(line):
            instructions = match["isa"].strip()
    return CpuReport(tuple(Implementation(*key, count) for key, count in counted.most_common()), instructions)


def _mkl_operands(name: str) -> str:
    precision = next((precision for part, precision in _MKL_OPERANDS if part in name), "")
    return f"{precision} x {precision}" if precision else ""


# What an implementation's name says of the instructions in it; the first that it holds counts.
_UNITS = (
    ("amx", "AMX"),
    ("avx10", "AVX10"),
    ("vnni", "VNNI"),
    ("avx512_core_fp16", "AVX512-FP16"),
    ("avx512_core_bf16", "AVX512-BF16"),
    ("avx512", "AVX512"),
    ("avx2", "AVX2"),
    ("sse41", "SSE4.1"),
    ("ref", "reference code"),
)


def unit(implementation: Implementation) -> str:
    """The instruction set that an implementation is named after; empty where its name has none."""
    return next((name for part, name in _UNITS if part in implementation.name), "")
