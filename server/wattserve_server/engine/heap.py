"""What the C library's allocator keeps of memory that was freed."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from pathlib import Path

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other libraries have none
_MALLINFO2 = getattr(ctypes.CDLL(None), "mallinfo2", None)  # since glibc 2.33
_STATM = Path("/proc/self/statm")

GROWN_BYTES = 256 * 1024 * 1024  # more than load alone makes of a server: docs/reliability.md, Memory
LOOKS_S, LOOKS_LATER_S = 10.0, 80.0  # between two looks at the size; later where it comes back at once


class _Mallinfo2(ctypes.Structure):
    """Bytes, of all arenas: `hblkhd` by mmap, `uordblks` of all else that is allocated."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


if _MALLINFO2 is not None:
    _MALLINFO2.restype = _Mallinfo2


def give_back() -> None:
    """Return to the system what is free, as far as the allocator can. It would keep a checkpoint's worth of
    holes for the next who asks. Takes about 10 ms for 200 MB, in which no other thread may allocate; while
    batches run it would only come back, page by page."""
    if _TRIM is not None:
        _TRIM(0)


async def keep_small() -> None:
    """Whenever the process, or what it holds without using it, has grown, look for garbage and give back what
    is free, until cancelled. Connections that strangers open and drop leave hundreds of megabytes, nearly all
    of them holes. On Linux with glibc 2.33 alone."""
    looks_s, before = LOOKS_S, _sizes()
    while True:
        await asyncio.sleep(looks_s)
        now = await asyncio.to_thread(_sizes)
        if all(size - least < GROWN_BYTES for size, least in zip(now, before, strict=True)):
            looks_s = LOOKS_S
            before = min(now[0], before[0]), min(now[1], before[1])
        else:
            await asyncio.to_thread(_tidy)
            looks_s, before = min(2 * looks_s, LOOKS_LATER_S), _sizes()


def _tidy() -> None:
    gc.collect()  # what failed handshakes by HTTPS leave, Python looks for seldom
    give_back()


def _sizes() -> tuple[int, int]:
    """Bytes that are resident, and of these what is not allocated: holes, and what is no allocator's. 0 where
    nobody tells."""
    if _MALLINFO2 is None or not _STATM.exists():
        return 0, 0
    resident = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    told = _MALLINFO2()
    return resident, resident - told.hblkhd - told.uordblks
