"""Shows something again and again until Ctrl-C: in place on a terminal, one after another elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

pause = time.sleep
"""Between two looks; for a test to replace."""


def width() -> int:
    """Of the terminal, in characters; 0, without limit, where the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def watch(look: Callable[[], str], seconds: float) -> None:
    """Print what `look` returns, every `seconds`. Ctrl-C ends it, and is no error."""
    shown = ""
    try:
        while True:
            told = look()
            if sys.stdout.isatty():
                sys.stdout.write(f"{back_over(shown, shutil.get_terminal_size().lines)}{told}\n")
            else:
                sys.stdout.write(f"{told}\n")
            sys.stdout.flush()
            shown = told
            pause(seconds)
    except KeyboardInterrupt:
        return


def back_over(shown: str, lines: int) -> str:
    """The control sequence that takes back what was shown on a terminal with so many lines."""
    if not shown:
        return ""
    taken = shown.count("\n") + 1
    return f"\033[{taken}F\033[J" if taken < lines else "\033[2J\033[H"
