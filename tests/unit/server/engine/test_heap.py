"""Memory that was freed between what stays goes back to the system."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from wattserve_server.engine.heap import give_back

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
