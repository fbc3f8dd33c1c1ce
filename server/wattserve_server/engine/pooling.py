"""How a sentence encoder's folder says that a text's tokens become its one embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattserve_common.strict_json import json_of
from wattserve_server.engine.checkpoint import locate, read_json
from wattserve_server.engine.tasks.tokens import FIRST, LAST, MEAN
from wattserve_server.errors import ConfigError

_POOLINGS = (MEAN, FIRST, LAST)
_PREFIX = "pooling_mode_"  # of the older files' switches
_OLD_NAMES = {"cls_token": FIRST, "mean_tokens": MEAN, "max_tokens": "max"}


def note_pooling(place: str, config: Any) -> None:
    """Writes what `modules.json` says into the model's config, which an exported variant keeps. Raises
    ConfigError for what is not offered: it would be another embedding than the model was trained for."""
    path = locate(place, "modules.json")
    if path is None:
        return
    try:
        modules = [
            (str(module["type"]).rpartition(".")[2], str(module["path"]))
            for module in json_of(path.read_text())
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"model {place!r}: its modules.json cannot be read: {error}") from error
    pooling = MEAN
    for kind, folder in modules:
        if kind == "Pooling":
            pooling = _named(read_json(place, f"{folder}/config.json") or {})
        elif kind not in ("Transformer", "Normalize"):
            raise ConfigError(f"model {place!r}: its modules.json names {kind}, which is not offered")
    if pooling not in _POOLINGS:
        raise ConfigError(
            f"model {place!r}: its embedding is made by the pooling {pooling!r}; offered are "
            f"{', '.join(_POOLINGS)}"
        )
    config.embedding_pooling = pooling
    config.embedding_is_normalised = any(kind == "Normalize" for kind, _ in modules)


def _named(settings: Mapping[str, Any]) -> str:
    if "pooling_mode" in settings:
        return str(settings["pooling_mode"])
    chosen = [
        key.removeprefix(_PREFIX) for key, on in settings.items() if key.startswith(_PREFIX) and on is True
    ]
    return "+".join(_OLD_NAMES.get(name, name) for name in chosen) or MEAN
