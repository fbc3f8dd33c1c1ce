"""Becomes the Python program of its arguments, which ends when the process that started this one ends.

So that a killed loadgen leaves no recorder running. Only Linux offers it; elsewhere the program just runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
