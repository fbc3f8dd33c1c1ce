"""Memory that was freed between what stays goes back to the system."""

from __future__ import annotations

import asyncio
import platform
from pathlib import Path

import pytest

from wattserve_server.engine import heap
from wattserve_server.engine.heap import give_back, keep_small

BLOCKS, BLOCK_BYTES = 1_000, 100_000  # each is less than what the allocator takes from the system by itself


def own_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say what this process has of its own")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can be told to")
def test_holes_between_blocks_that_stay_are_given_back() -> None:
    blocks = [bytearray(b"x") * BLOCK_BYTES for _ in range(BLOCKS)]
    kept = blocks[::20]
    del blocks
    before = own_bytes()
    give_back()
    assert before - own_bytes() > 0.8 * BLOCKS * BLOCK_BYTES
    assert len(kept) == BLOCKS // 20


async def looked(sizes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it slept before each look at a process of these sizes, in MiB; negative: it tidied then."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        if not sizes:
            raise asyncio.CancelledError
        slept.append(seconds)

    def looks() -> tuple[int, int]:
        resident, unused = sizes.pop(0)
        return resident << 20, unused << 20

    def tidy() -> None:
        slept[-1] *= -1

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr(heap, "_sizes", looks)
    monkeypatch.setattr(heap, "_tidy", tidy)
    with pytest.raises(asyncio.CancelledError):
        await keep_small()
    return slept


SMALL, LARGE = (0, 0), (900, 400)
TWICE = [SMALL, LARGE, SMALL, LARGE]


@pytest.mark.parametrize(
    ("sizes", "slept"),
    [
        ([(500, 100), (700, 300), (755, 355), (755, 355)], [10, 10, 10]),  # load makes it grow so far
        ([(500, 100), (756, 100), (510, 100), (765, 100)], [-10, 20]),  # counted from what is left
        ([(500, 100), (400, 60), (500, 315), (500, 316), (400, 60)], [10, 10, -10]),  # from the least
        ([(500, 100), (1500, 300), (1400, 100), (1400, 1100), (500, 100)], [-10, -20]),  # freed later
        ([*TWICE, *TWICE, SMALL, LARGE, SMALL], [-10, -20, -40, -80, -80]),  # what comes back at once
        ([*TWICE, SMALL, SMALL, LARGE, SMALL], [-10, -20, 40, -10]),  # and no more
    ],
)
async def test_when_a_process_has_grown_it_is_tidied(
    sizes: list[tuple[int, int]], slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await looked(sizes, monkeypatch) == slept


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can be told to")
async def test_what_strangers_leave_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "LOOKS_S", 0.01)
    monkeypatch.setattr(heap, "GROWN_BYTES", BLOCKS * BLOCK_BYTES // 2)
    keeping = asyncio.create_task(keep_small())
    await asyncio.sleep(0)
    blocks = [bytearray(b"x") * BLOCK_BYTES for _ in range(BLOCKS)]
    kept, before = blocks[::20], own_bytes()
    del blocks
    for _ in range(6000):
        await asyncio.sleep(0.01)
        if before - own_bytes() > 0.8 * BLOCKS * BLOCK_BYTES:
            break
    keeping.cancel()
    assert before - own_bytes() > 0.8 * BLOCKS * BLOCK_BYTES
    assert len(kept) == BLOCKS // 20
