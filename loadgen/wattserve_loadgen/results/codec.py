"""Dataclasses to plain JSON values and back, and protobuf messages to plain JSON values."""

from __future__ import annotations

import types
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class ShapeError(ValueError):
    """A JSON value does not have the shape of the dataclass; the message names the path."""


def plain(value: Any) -> dict[str, Any]:
    """A dataclass as JSON values."""
    return asdict(value)


def build(kind: type[T], value: Any, path: str = "") -> T:
    """The dataclass `kind` from JSON values; ShapeError when a field is of another type, or missing without
    a default.
    """
    return cast(T, _build(kind, value, path))


def _build(kind: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _build(next(one for one in arguments if one is not type(None)), value, path)
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise ShapeError(f"{path}: a list is wanted")
        return origin(_build(arguments[0], one, f"{path}[{index}]") for index, one in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ShapeError(f"{path}: an object is wanted")
        return {name: _build(arguments[1], one, f"{path}.{name}") for name, one in value.items()}
    if is_dataclass(kind):
        return _build_dataclass(kind, value, path)
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ShapeError(f"{path}: {kind.__name__} is wanted, found {value!r}")
    return value


def _build_dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise ShapeError(f"{path or 'the file'}: an object is wanted")
    hints = get_type_hints(kind)
    found = {}
    for one in fields(kind):
        if one.name not in value:
            if one.default is not MISSING:
                continue
            raise ShapeError(f"{path}.{one.name}".lstrip(".") + ": missing")
        found[one.name] = _build(hints[one.name], value[one.name], f"{path}.{one.name}".lstrip("."))
    return kind(**found)


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
