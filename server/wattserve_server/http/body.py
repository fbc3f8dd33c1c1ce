"""The body of a request: an object of JSON, and what is read of it. Pure; errors name the key."""

from __future__ import annotations

import json
from typing import Any

from wattserve_server.errors import InvalidRequest
from wattserve_server.service.checks import check_priority, shown
from wattserve_server.service.oip_sampling import kind_of, truth, whole
from wattserve_server.service.oip_sampling import object_of as object_in

ENERGY = "energy"
_MANY = ("n", "best_of")  # answers to one request
_ENERGY = {"provisional": False, "settled": True}


class Body(dict[str, Any]):
    """What it gives as null it does not give."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__({key: value for key, value in given.items() if value is not None})

    def text(self, key: str) -> str:
        """Raises InvalidRequest where it is missing, too."""
        value = self.get(key)
        if value is None:
            raise InvalidRequest("is missing", key)
        if not isinstance(value, str):
            raise InvalidRequest(f"{kind_of(value)} is no text", key)
        return value

    def truth(self, key: str) -> bool:
        """False when it is not given."""
        return truth(key, plain(key, self.get(key, False)))

    def whole(self, key: str) -> int:
        """0 when it is not given."""
        return whole(key, plain(key, self.get(key, 0)))

    def items_of(self, key: str) -> list[Any]:
        """Raises InvalidRequest for what is no list, or an empty one."""
        value = self.get(key)
        if value is None:
            raise InvalidRequest("is missing", key)
        if not isinstance(value, list):
            raise InvalidRequest(f"{kind_of(value)} is no list", key)
        if not value:
            raise InvalidRequest("the list is empty", key)
        return value

    def priority(self) -> int:
        return check_priority(self.whole("priority"), "priority")

    def waits_for_energy(self, header: str | None) -> bool:
        """header: says it where the body does not."""
        wanted = self.text(ENERGY) if ENERGY in self else header or "provisional"
        if wanted not in _ENERGY:
            raise InvalidRequest(f"{shown(wanted)}; either 'provisional' or 'settled'", ENERGY)
        return _ENERGY[wanted]

    def check_keys(self, known: frozenset[str], neutral: dict[str, Any]) -> None:
        """neutral: of what is not offered, the value that asks for nothing; so do empty ones."""
        for key, value in self.items():
            if key in known:
                continue
            if key not in neutral:
                raise InvalidRequest(
                    f"{shown(key)} is unknown here: leave it out; known are {', '.join(sorted(known))}",
                    key[:80],
                )
            asks_nothing = neutral[key]
            if isinstance(value, bool) and type(asks_nothing) in (int, float):
                raise InvalidRequest(f"{value} is no number", key)
            if value != asks_nothing and (value or asks_nothing == 1):
                more = ", and send that many requests: they share the model's steps" if key in _MANY else ""
                raise InvalidRequest(f"{key} is not offered here: leave it out{more}", key)


def plain(key: str, value: Any) -> Any:
    """As it is. Raises InvalidRequest for a text, or a list that holds one, where numbers and truths stand
    as themselves."""
    if any(isinstance(each, str) for each in (value if isinstance(value, list) else (value,))):
        raise InvalidRequest("a text is neither a number nor true or false: leave its quotes out", key)
    return value


def object_of(data: bytes) -> Body:
    """Raises InvalidRequest."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8: {error}", "body") from error
    found = object_in(text, "body")
    if "\\ud" in text.lower():  # half of a character, which no tokenizer takes and no reply can repeat
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError) as error:
            raise InvalidRequest(f"half a surrogate pair: {error}", "body") from error
    return Body(found)
