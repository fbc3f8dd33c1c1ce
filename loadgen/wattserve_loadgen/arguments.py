"""What arguments of the command line may look like: text in, a value or a clear complaint out.

The same functions read the values of a plan file. It knows no command.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from wattserve_loadgen.errors import LoadgenError
from wattserve_loadgen.plan.load import RAMP, Load
from wattserve_loadgen.plan.options import Peer

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

T = TypeVar("T")

_METERS = ("auto", "nvml", "rapl", "estimate", "simulated")
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


class UsageError(LoadgenError):
    """The arguments do not fit together."""


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


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


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def positive_int(text: str) -> int:
    """1 or more."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def positive_float(text: str) -> float:
    """More than 0, and finite."""
    value = number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return value


def port(text: str) -> int:
    """A TCP port; 0: any free one."""
    value = whole(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port: 0 to 65535")
    return value


def target(text: str) -> str:
    """HOST:PORT."""
    host, _, digits = text.rpartition(":")
    if not host or not digits.isdecimal() or not 0 < int(digits) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, like 127.0.0.1:50051")
    return text


def duration(text: str) -> float:
    """Seconds: `90`, `90s`, `10m`, `1h30m`; more than 0."""
    parts = _DURATION.fullmatch(text.strip())
    seconds = 0.0
    if parts is not None:
        seconds = sum(
            float(part or 0) * unit for part, unit in zip(parts.groups(), (3600, 60, 1), strict=True)
        )
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration like 90s, 10m or 1h30m")
    return seconds


def patience(text: str) -> float:
    """Seconds, as `duration`, or 0."""
    return 0.0 if text.strip() in ("0", "0s", "0.0") else duration(text)


def ramp(text: str) -> Load:
    """FROM:TO, in requests per second."""
    start, _, end = text.partition(":")
    try:
        return Load(RAMP, rate=float(start), rate_end=float(end))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO, like 10:200") from None


def peer(text: str) -> Peer:
    """NAME=HOST:PORT/MODEL[,MODEL...]"""
    name, _, place = text.partition("=")
    address, _, models = place.partition("/")
    found = tuple(one.strip() for one in models.split(",") if one.strip())
    if not name.strip() or not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=HOST:PORT/MODEL[,MODEL...], like mlserver=127.0.0.1:8081/sst2"
        )
    return Peer(name.strip(), target(address), found)


def meter(text: str) -> str:
    """A meter that can be read on this machine, or a sum such as nvml+rapl."""
    unknown = [part for part in text.split("+") if part not in _METERS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is no meter; choose from {', '.join(_METERS)}, or a sum such as nvml+rapl"
        )
    return text
