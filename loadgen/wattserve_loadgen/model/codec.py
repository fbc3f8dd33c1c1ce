"""The model, and what a server says, as JSON values and back. Knows no file and no version."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_SAID = re.compile(r"(?P<text>.*?)(?: - at `\$\.?(?P<path>.*)`)?")  # an error of msgspec
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")


class ShapeError(ValueError):
    """JSON values do not have the shape of the model; the message names the path."""


def plain(value: Any) -> Any:
    """A dataclass, or a list or dictionary of them, as values that `json` writes; tuples stay tuples."""
    return msgspec.to_builtins(value)


def as_stored(value: Any) -> Any:
    """As `plain`, and as it is read back from a file: lists for tuples, a mapping's keys in order."""
    return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))


def build(kind: type[T], value: Any) -> T:
    """The dataclass `kind` from JSON values; ShapeError when a field is of another type, or missing without
    a default. A field that `kind` does not have is left out.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise shape_error(error) from None


def shape_error(error: msgspec.ValidationError) -> ShapeError:
    """`cells[0].sent: expected int, got str`."""
    said = _SAID.fullmatch(str(error))
    text, path = (said["text"], said["path"] or "") if said else (str(error), "")
    missing = _MISSING.fullmatch(text)
    if missing:
        return ShapeError(f"{path}.{missing['name']}: missing".removeprefix("."))
    text = text.replace("`", "")
    return ShapeError(f"{path or 'the file'}: {text[0].lower()}{text[1:]}")
