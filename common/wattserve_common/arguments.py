"""Command lines: the parser of every command, and values: text in, a value or a clear complaint out, for
argparse's `type=`.

Numbers, lists, addresses and durations of every program; what only one program reads stands there.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import sys
from argparse import Action, ArgumentError, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from wattserve_common.errors import UserError

T = TypeVar("T")

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


class Parser(ArgumentParser):
    """Options by their full names only, so that a new one never changes what an old command means; errors of
    one line, which name the help of the command that was asked. The parsers of its subcommands are made
    alike.

    takes_rest: words beyond its positional arguments are for the caller of `parse_known_args`.
    """

    takes_rest = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        given = sys.argv[1:] if args is None else list(args)
        if self._subparsers is not None:  # else the value of an unknown option passes for the command
            self._check_known(given[:1])
        found, rest = super().parse_known_args(given, namespace)
        self._check_known(rest)
        if rest and not self.takes_rest:
            self.error(f"{rest[0]!r} is one word too many")
        return found, rest

    def _check_known(self, words: Sequence[str]) -> None:
        """UserError for the first of them that looks like an option and is none."""
        names = (word.partition("=")[0] for word in words if word.startswith("-") and word not in ("-", "--"))
        unknown = next((name for name in names if name not in self._option_string_actions), None)
        if unknown is not None:
            behind = "; a command's options stand behind its name" if self._subparsers else ""
            hint = meant(unknown, self._option_string_actions) or behind
            self.error(f"there is no option {unknown} here{hint}")

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            hint = meant(str(value), names) or f"; choose from {', '.join(names)}"
            raise ArgumentError(action, f"{str(value)!r} is unknown{hint}")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see `{self.prog} --help`)")


def check_output() -> None:
    """UserError where standard output is closed (`>&-`): what a command says would be lost without a word."""
    if sys.stdout is None:
        raise UserError("standard output is closed; send what nobody is to read to /dev/null")


def nobody_reads() -> int:
    """The exit code where whoever read the output has left, as `| head` does; what is left in the buffer must
    not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean WORD?` of the known word that begins so or is very like it, or nothing."""
    names = list(known)
    begun = [name for name in names if name.startswith(word)]
    close = begun or get_close_matches(word, names, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def int_of(text: str) -> int:
    """In the digits 0 to 9; ValueError. Python's `int` also takes `1_0`, and the digits of all scripts."""
    return int(_plain(text))


def float_of(text: str) -> float:
    """Likewise."""
    return float(_plain(text))


def _plain(text: str) -> str:
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not in plain digits")
    return text


def whole(text: str) -> int:
    try:
        return int_of(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        return float_of(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None


def count(text: str) -> int:
    """1 or more."""
    value = whole(text)
    if value < 1:
        raise ArgumentTypeError(f"{text} must be at least 1")
    return value


def positive(text: str) -> float:
    """More than 0, and finite."""
    value = number(text)
    if not value > 0:
        raise ArgumentTypeError(f"{text} must be more than 0")
    if value == math.inf:
        raise ArgumentTypeError(f"{text} is not finite")
    return value


def port(text: str) -> int:
    """A TCP port; 0: any free one."""
    value = whole(text)
    if not 0 <= value < 65536:
        raise ArgumentTypeError(f"{text} is not a port: 0 to 65535")
    return value


def address(text: str) -> str:
    """HOST:PORT."""
    try:
        host_and_port(text)
    except ValueError:
        scheme, is_url, rest = text.partition("://")
        instead = f"leave out {scheme}://" if is_url and rest else "like 127.0.0.1:50051"
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT, {instead}") from None
    return text


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of "host:port" or "[address of IPv6]:port"; ValueError."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and bare and port.isascii() and port.isdecimal() and 0 < int(port) < 65536) or (
        ":" in bare and bare == host
    ):
        raise ValueError(f"the address {address!r} is not of the form host:port, as in '127.0.0.1:50051'")
    return bare, int(port)


def is_address(host: str) -> bool:
    """Whether it is an address of IPv4 or IPv6, without a port."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. No name except localhost is looked up."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host == "localhost"


def duration(text: str) -> float:
    """Seconds: `90`, `90s`, `10m`, `1h30m`; more than 0."""
    parts = _DURATION.fullmatch(text.strip())
    units = zip(parts.groups(), (3600, 60, 1), strict=True) if parts else ()
    seconds = sum(float(part or 0) * unit for part, unit in units)
    if seconds <= 0:
        raise ArgumentTypeError(f"{text!r} is not a duration like 90s, 10m or 1h30m")
    return seconds


def listed(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A reader of values between commas."""

    def read_list(text: str) -> tuple[T, ...]:
        if not text.strip(" ,"):
            raise ArgumentTypeError("the list is empty; leave the option out for its default")
        try:
            return tuple(read(part.strip()) for part in text.split(",") if part.strip())
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a list like 1,2,4") from None

    return read_list
