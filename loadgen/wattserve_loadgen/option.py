"""An option is stated once, as a field of a dataclass:

    seed: int = option(0, WHOLE, "of the order of cells and rows", "N", group="time")

gives the flag `--seed N`, the key `seed = 4` of a plan file, the check of both, and the help, from which the
reference is made. The flag's name is the field's, with dashes, and without the `_s` of seconds.
"""

from __future__ import annotations

import argparse
import json
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from wattserve_common.arguments import duration, listed, number, whole


@dataclass(frozen=True)
class OptionKind:
    """What the value of an option may be, in a file and as text."""

    form: str  # in a TOML file, as an error names it
    fits: Callable[[Any], bool]  # whether a value of a TOML file has this form
    read: Callable[[str], Any]  # text to the value; ArgumentTypeError or ValueError when it is none


def _of(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


def _list_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and bool(value) and all(type(item) in types for item in value)


TEXT = OptionKind("text in quotes", _of(str), str)
WHOLE = OptionKind("a whole number", _of(int), whole)
NUMBER = OptionKind("a number", _of(int, float), number)
SWITCH = OptionKind("true or false", _of(bool), str)
TEXTS = OptionKind('a list of texts, like ["a", "b"]', _list_of(str), listed(str))
WHOLES = OptionKind("a list of whole numbers, like [1, 4]", _list_of(int), listed(int))
NUMBERS = OptionKind("a list of numbers, like [1, 2.5]", _list_of(int, float), listed(float))
DURATION = OptionKind('a duration in quotes, like "10m", or seconds', _of(str, int, float), duration)


def option(
    default: Any,  # MISSING: it must be given
    kind: OptionKind,
    help: str,
    metavar: str | None = None,
    *,
    read: Callable[[str], Any] | None = None,  # stricter than the kind's
    group: str = "",  # its heading in the help
    key: str = "",  # where it is not the field's name
    in_file: bool = True,  # False: of the command line alone
    **flag: Any,  # what argparse is told beside
) -> Any:
    if metavar is not None:
        flag["metavar"] = metavar
    told = {"kind": kind, "help": help, "read": read or kind.read, "group": group, "key": key, "flag": flag}
    return field(default=default, metadata={**told, "in_file": in_file})


def options_of(*classes: type[Any]) -> dict[str, Field[Any]]:
    """The fields that are options, by key."""
    items = [item for each in classes for item in fields(each) if "kind" in item.metadata]
    return {item.metadata["key"] or item.name.removesuffix("_s").replace("_", "-"): item for item in items}


def add_options(parser: argparse.ArgumentParser, *classes: type[Any]) -> None:
    """A flag for each option; one that is not given leaves no trace, so that a file may say it."""
    groups: dict[str, Any] = {"": parser}
    for key, item in options_of(*classes).items():
        told = item.metadata
        if told["group"] not in groups:
            groups[told["group"]] = parser.add_argument_group(told["group"])
        more = {"type": told["read"], **told["flag"]}
        if told["kind"] is SWITCH:
            more = {"action": argparse.BooleanOptionalAction if told["in_file"] else "store_true"}
        text = _help(told["help"], item.default)
        groups[told["group"]].add_argument(f"--{key}", dest=item.name, default=SUPPRESS, help=text, **more)


def given(flags: argparse.Namespace, *classes: type[Any]) -> dict[str, Any]:
    """The values of the flags that were given, by field."""
    names = {item.name for item in options_of(*classes).values()}
    values = {name: value for name, value in vars(flags).items() if name in names}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def from_toml(item: Field[Any], value: Any) -> Any:
    """The value of an option, which a file says: what its flag makes of the same; ArgumentTypeError."""
    flag = item.metadata["flag"]
    if not item.metadata["kind"].fits(value):
        raise ArgumentTypeError(f"{value!r} is not {item.metadata['kind'].form}")
    if isinstance(value, bool):
        return flag.get("const", value)
    if isinstance(value, list) and flag.get("action") == "append":
        return tuple(_read(item, str(part)) for part in value)
    return _read(item, ",".join(map(str, value)) if isinstance(value, list) else str(value))


def to_toml(options: Any) -> Iterator[str]:
    """The lines of a file for options: switches that are not as by default, and whatever else has a value."""
    for key, item in options_of(type(options)).items():
        value, kind = getattr(options, item.name), item.metadata["kind"]
        is_said = value != item.default if kind is SWITCH else value not in ("", (), None)
        if is_said and item.metadata["in_file"]:
            yield toml_line(key, value[0] if kind is TEXT and isinstance(value, tuple) else value)


def toml_line(key: str, value: Any) -> str:
    return f"{key} = {_toml(value)}"


def _read(item: Field[Any], text: str) -> Any:
    choices = item.metadata["flag"].get("choices", (text,))
    if text not in choices:
        raise ArgumentTypeError(f"{text!r} is unknown; choose from {', '.join(choices)}")
    try:
        return item.metadata["read"](text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _help(text: str, default: Any) -> str:
    if default is MISSING:
        return f"{text} (needed)"
    return f"{text} (default: {default:g})" if type(default) in (int, float) else text


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    # JSON's escapes are TOML's, except that TOML escapes DEL
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
