"""Dataclasses to plain JSON values and back, and protobuf messages to plain JSON values.

Knows no file and no schema version. A class is looked at once; after that building costs about what parsing
the JSON does.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Builder = Callable[[Any], Any]

_SCALARS = (str, int, float, bool, types.NoneType)


class ShapeError(ValueError):
    """A JSON value does not have the shape of the dataclass; the message names the path."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(f"{path or 'the file'}: {text}")
        self._text = text
        self._path = path

    def within(self, part: str) -> ShapeError:
        """The same error, seen from one level up: `part` is a field or `[index]`."""
        joined = f"{part}{self._path}" if self._path.startswith("[") else f"{part}.{self._path}".rstrip(".")
        return ShapeError(self._text, joined)


def plain(value: Any) -> Any:
    """A dataclass, or a list or dictionary of them, as JSON values."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return {name: plain(getattr(value, name)) for name in field_names(cast(Any, type(value)))}


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Of a dataclass, in the order in which they are written."""
    return tuple(one.name for one in fields(cast(Any, kind)))


def build(kind: type[T], value: Any) -> T:
    """The dataclass `kind` from JSON values; ShapeError when a field is of another type, or missing without
    a default. A field that `kind` does not have is left out.
    """
    return cast(T, _builder(cast(Any, kind))(value))


@cache
def _builder(kind: Any) -> Builder:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in (Union, types.UnionType):
        inner = _builder(next(one for one in arguments if one is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    if origin in (list, tuple):
        return _sequence_builder(origin, _builder(arguments[0]))
    if origin is dict:
        return _mapping_builder(_builder(arguments[1]))
    return _dataclass_builder(kind) if is_dataclass(kind) else _scalar_builder(kind)


def _scalar_builder(kind: type) -> Builder:
    accepted = (float, int) if kind is float else (kind,)

    def from_value(value: Any) -> Any:
        if type(value) not in accepted:
            raise ShapeError(f"{kind.__name__} is wanted, found {value!r}")
        if kind is float and not math.isfinite(value):
            raise ShapeError(f"a finite number is wanted, found {value!r}")
        return value

    return from_value


def _sequence_builder(kind: type, inner: Builder) -> Builder:
    def from_value(value: Any) -> Any:
        if not isinstance(value, list):
            raise ShapeError("a list is wanted")
        found: list[Any] = []
        try:
            found.extend(map(inner, value))
        except ShapeError as error:
            raise error.within(f"[{_first_refused(inner, value)}]") from None
        return found if kind is list else tuple(found)

    return from_value


def _first_refused(inner: Builder, values: list[Any]) -> int:
    for index, one in enumerate(values):
        try:
            inner(one)
        except ShapeError:
            return index
    raise AssertionError("a value was refused")


def _mapping_builder(inner: Builder) -> Builder:
    def from_value(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ShapeError("an object is wanted")
        found = {}
        for name, one in value.items():
            try:
                found[name] = inner(one)
            except ShapeError as error:
                raise error.within(name) from None
        return found

    return from_value


def _dataclass_builder(kind: Any) -> Builder:
    # Looked at on first use: a class may hold itself, or one that is defined below it.
    parts: list[tuple[str, Builder, bool]] = []

    def from_value(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ShapeError("an object is wanted")
        if not parts:
            hints = get_type_hints(kind)
            for one in fields(kind):
                optional = one.default is not MISSING or one.default_factory is not MISSING
                parts.append((one.name, _builder(hints[one.name]), optional))
        found = {}
        for name, inner, optional in parts:
            if name not in value:
                if optional:
                    continue
                raise ShapeError("missing", name)
            try:
                found[name] = inner(value[name])
            except ShapeError as error:
                raise error.within(name) from None
        return kind(**found)

    return from_value


def message_to_plain(message: Any) -> dict[str, Any]:
    """Every field of a protobuf message by its own name; an absent optional is None."""
    return {one.name: _field_to_plain(message, one) for one in message.DESCRIPTOR.fields}


def _field_to_plain(message: Any, one: Any) -> Any:
    if one.has_presence and not message.HasField(one.name):
        return None
    value = getattr(message, one.name)
    if one.message_type is not None and one.message_type.GetOptions().map_entry:
        return {str(key): value[key] for key in sorted(value)}
    if hasattr(value, "DESCRIPTOR"):
        return message_to_plain(value)
    if one.enum_type is not None:
        return enum_name(one.enum_type, value)
    if isinstance(value, str | bytes | int | float):
        return value
    return [message_to_plain(each) if hasattr(each, "DESCRIPTOR") else each for each in value]


def enum_name(enum: Any, number: int) -> str:
    """`ENERGY_QUALITY_MEASURED` as `measured`: the part behind the enum's own name."""
    found = enum.values_by_number.get(number)
    if found is None:
        return str(number)
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return str(found.name).removeprefix(prefix).lower()
