"""In which phase a language model computes: rows of tokens that decode, or of prompts.

A kind that has two ways to a product chooses by it, and never by how many rows there are: what a sequence is
answered would depend on its company.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Running(threading.local):
    decoding = 0


_running = _Running()


@contextmanager
def decoding(rows: int) -> Iterator[None]:
    """In the block, of what is computed on this thread the first so many rows decode: each is the newest
    token of a sequence. The others are of prompts, and of whatever is no step."""
    before, _running.decoding = _running.decoding, rows
    try:
        yield
    finally:
        _running.decoding = before


def decoding_rows() -> int:
    return _running.decoding
