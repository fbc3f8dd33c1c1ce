"""What arguments of the command line may look like: text in, a value or a clear complaint out."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def listed(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A parser of comma-separated values."""

    def parse(text: str) -> tuple[T, ...]:
        if not text.strip(" ,"):
            raise argparse.ArgumentTypeError("the list is empty; leave the option out for its default")
        try:
            return tuple(kind(part.strip()) for part in text.split(",") if part.strip())
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list like 1,2,4") from None

    return parse


def pixel_shape(text: str) -> tuple[int, int, int]:
    """C,H,W."""
    try:
        channels, height, width = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not C,H,W, like 3,224,224") from None
    return channels, height, width


def positive_int(text: str) -> int:
    """1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def positive_float(text: str) -> float:
    """More than 0, and finite."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return value


def target(text: str) -> str:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, like 127.0.0.1:50051")
    return text
