"""What a process takes, and what it is made of."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class _Mallinfo2(ctypes.Structure):
    """glibc's, in its order."""

    arena: int
    hblkhd: int
    uordblks: int
    fordblks: int
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocated() -> dict[str, int]:
    """Bytes of this process that glibc's malloc has given out, and that it keeps for the next who asks."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return {"allocated": found.uordblks + found.hblkhd, "kept": found.fordblks}


@dataclass(frozen=True)
class Parts:
    """Bytes. They add up to `resident`."""

    resident: int
    files: int  # of programs and libraries, which other processes may share
    weights: int  # of all variants, those that they share once, as they are laid out to be multiplied
    receipts: int  # as the server counts them: small objects, which Python does not take from malloc
    other_allocated: int  # by malloc: what is imported, what oneDNN keeps of the shapes that it met, ...
    rest: int  # kept by malloc for the next batch, Python's other small objects, generated code, stacks


def parts_of(pid: int, told: Mapping[str, int]) -> Parts:
    """told: what the process has said of itself just now (`tests.bench.memory.told`)."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, kilobytes, *_ = line.split()
        sizes[name.rstrip(":")] = int(kilobytes) * 1024
    resident, own = sizes["Rss"], sizes["Anonymous"]
    return Parts(
        resident,
        resident - own,
        told["weights"],
        told["receipts"],
        told["allocated"] - told["weights"],
        own - told["allocated"] - told["receipts"],
    )
