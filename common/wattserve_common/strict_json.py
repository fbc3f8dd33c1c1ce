"""JSON that people write, read so that nothing in it is lost or guessed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


class RepeatedKey(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} stands there twice")
        self.key = key


def json_of(text: str | bytes) -> Any:
    """Raises ValueError for what is no JSON, names a key twice, or is nested beyond what is read here."""
    try:
        return json.loads(text, object_pairs_hook=object_of_pairs)
    except RecursionError:
        raise ValueError("lists or objects in it are too deep") from None


def object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`, which takes the last value of a key and says nothing of the others. Raises
    RepeatedKey."""
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(key for key, _ in pairs)
        raise RepeatedKey(next(key for key in times if times[key] > 1))
    return found


def check_characters(text: str) -> None:
    """Raises ValueError for half a character, which JSON can spell and no encoding can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f"{half} in it is half a character: a surrogate without its other half") from None
