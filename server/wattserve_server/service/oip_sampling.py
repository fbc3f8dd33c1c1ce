"""Sampling parameters as vLLM names them and as Triton's backend for it takes them: an object of JSON, whose
numbers may stand as texts. Pure; errors name the key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from wattserve_common.arguments import float_of
from wattserve_common.strict_json import RepeatedKey, object_of_pairs
from wattserve_server.errors import InvalidRequest
from wattserve_server.service.checks import MAX_SHOWN, shown
from wattserve_server.service.wishes import MOST_STOP_IDS, Given, Places

TENSOR = "sampling_parameters"

# What vLLM takes where nothing is said.
DEFAULT_NEW_TOKENS = 16
DEFAULT_TEMPERATURE = 1.0

# What vLLM knows and this server does not do, with the value that asks for nothing.
NEUTRAL: dict[str, Any] = {
    "n": 1, "best_of": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0, "min_tokens": 0,
    "use_beam_search": False, "skip_special_tokens": True, "include_stop_str_in_output": False,
}  # fmt: skip

# What reading JSON takes here for each mark of it, also for those within texts.
_PRICES_NS = {",": 150, ":": 800, "[": 600, "{": 600}
_LIMIT_NS = 50_000_000

_TRUTHS = {"true": True, "false": False}


def place(key: str) -> str:
    return f"{TENSOR}[{key[:MAX_SHOWN].encode(errors='replace').decode()}]"


PLACES = Places(
    max_new_tokens=place("max_tokens"),
    temperature=place("temperature"),
    top_k=place("top_k"),
    top_p=place("top_p"),
    repetition_penalty=place("repetition_penalty"),
    seed=place("seed"),
    stop_ids=place("stop_token_ids"),
    stop_strings=place("stop"),
    best=place("logprobs"),
    max_energy_uj=place("max_energy_uj"),
)


def object_of(text: str, field: str) -> dict[str, Any]:
    """Raises InvalidRequest for what is no object of JSON, or keeps the event loop for too long."""
    if sum(text.count(mark) * price_ns for mark, price_ns in _PRICES_NS.items()) > _LIMIT_NS:
        raise InvalidRequest(
            f"has too many parts to be read at once: up to {_LIMIT_NS // _PRICES_NS[',']} numbers or texts, "
            f"or {_LIMIT_NS // _PRICES_NS[':']} keys; send fewer",
            field,
        )
    try:
        found = json.loads(text, object_pairs_hook=object_of_pairs)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"not JSON: {error}", field) from error
    except RepeatedKey as error:
        raise InvalidRequest(f"has the key {shown(error.key)} more than once: leave one", field) from error
    except ValueError as error:
        most = sys.get_int_max_str_digits()
        raise InvalidRequest(f"not JSON that is read here: a number of over {most} digits", field) from error
    except RecursionError as error:
        raise InvalidRequest("not JSON that is read here: lists or objects too deep", field) from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"{kind_of(found)} is no object of JSON", field)
    return found


def given_by(keys: Mapping[str, Any], place: Callable[[str], str] = place) -> Given:
    """place: of a key in the request. Raises InvalidRequest for a key that is not known, or whose value is of
    the wrong kind."""
    try:
        return _given_by(keys)
    except InvalidRequest as error:
        error.field = place(error.field)
        raise


def _given_by(keys: Mapping[str, Any]) -> Given:
    fields: dict[str, Any] = {"max_new_tokens": DEFAULT_NEW_TOKENS, "temperature": DEFAULT_TEMPERATURE}
    for key, value in keys.items():
        if key in NEUTRAL:
            _check_neutral(key, value)
        elif key not in KEYS:
            raise InvalidRequest(f"unknown sampling parameter {shown(key)}; known: {', '.join(KEYS)}", key)
        elif value is not None:
            name, read = _READ[key]
            fields[name] = read(key, value)
    if fields["max_new_tokens"] < 1:  # where 0 would mean the server's own default
        raise InvalidRequest(f"{fields['max_new_tokens']} tokens; at least 1", "max_tokens")
    return Given(**fields)


def _check_neutral(key: str, value: Any) -> None:
    neutral = NEUTRAL[key]
    if value is not None and _read_as(type(neutral), key, value) != neutral:
        raise InvalidRequest(f"{key} is not offered here; leave it out, or give {neutral}", key)


def _read_as(kind: type, key: str, value: Any) -> Any:
    if kind is bool:
        return truth(key, value)
    return whole(key, value) if kind is int else _number(key, value)


def whole(key: str, value: Any) -> int:
    number = _number(key, value)
    if not number.is_integer():
        raise InvalidRequest(f"{told(value)} is no whole number", key)
    return int(value) if isinstance(value, int | str) and _is_digits(str(value)) else int(number)


def _of_all_or(key: str, value: Any) -> int:
    """vLLM writes -1, too, where there is no bound."""
    number = whole(key, value)
    return 0 if number == -1 else number


def _is_digits(text: str) -> bool:
    return text.strip().lstrip("+-").isdecimal()


def _number(key: str, value: Any) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float_of(value) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{told(value)} is no number", key) from None


def truth(key: str, value: Any) -> bool:
    truth = _TRUTHS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(truth, bool):
        raise InvalidRequest(f"{told(value)} is neither true nor false", key)
    return truth


def _texts(key: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{told(value)} is neither a text nor a list of texts", key)
    return texts


def _ids(key: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{told(value)} is no list of token ids", key)
    if len(value) > MOST_STOP_IDS:  # before each is looked at
        raise InvalidRequest(f"{len(value)} stop tokens; at most {MOST_STOP_IDS} are looked for", key)
    return [whole(key, token) for token in value]


def told(value: Any) -> str:
    """What was given in place of a number or a name; in lists and objects may be texts of the user's."""
    return shown(value) if isinstance(value, str) else kind_of(value)


def kind_of(value: Any) -> str:
    """A value whose texts nobody but its user may read."""
    if isinstance(value, str):
        return "a text"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else shown(repr(value))[1:-1]


_READ: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "max_tokens": ("max_new_tokens", whole),
    "temperature": ("temperature", _number),
    "top_k": ("top_k", _of_all_or),
    "top_p": ("top_p", _number),
    "repetition_penalty": ("repetition_penalty", _number),
    "seed": ("seed", whole),
    "stop": ("stop_strings", _texts),
    "stop_token_ids": ("stop_ids", _ids),
    "ignore_eos": ("ignores_end", truth),
    "max_energy_uj": ("max_energy_uj", whole),
}
KEYS = tuple(_READ)
