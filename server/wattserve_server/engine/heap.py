"""What the C library's allocator keeps of memory that was freed."""

from __future__ import annotations

import ctypes

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other libraries have none


def give_back() -> None:
    """Return to the system what is free, as far as the allocator can. It would keep a checkpoint's worth of
    holes for the next who asks. Takes about 10 ms for 200 MB, in which no other thread may allocate; while
    batches run it would only come back, page by page."""
    if _TRIM is not None:
        _TRIM(0)
