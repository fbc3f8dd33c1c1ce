"""JSON that people write, read so that nothing in it is lost or guessed."""

from __future__ import annotations

import json
from typing import Any


def json_of(text: str | bytes) -> Any:
    """Raises ValueError for what is no JSON, names a key twice, or is nested beyond what is read here."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("lists or objects in it are too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands there twice")
    return found


def check_characters(text: str) -> None:
    """Raises ValueError for half a character, which JSON can spell and no encoding can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f"{half} in it is half a character: a surrogate without its other half") from None
