"""wattserve_variant.json: what an exported variant says of itself, beside its weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wattserve_server.errors import ConfigError

FILE = "wattserve_variant.json"
WEIGHTS = "model.safetensors"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """made_from: the model that it was converted from, without the path to it. device: where it was made;
    rest_dtype: of everything but the quantised layers. detail, converted, kept: see Built. calibration:
    where static activation scales came from. sha256: of the weights file. torch, wattserve: versions."""

    kind: str
    task: str
    made_from: str
    device: str
    rest_dtype: str
    detail: str
    converted: tuple[str, ...]
    kept: tuple[str, ...]
    calibration: str
    random_weights: bool
    sha256: str
    torch: str
    wattserve: str
    format: int = FORMAT

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def parse_manifest(source: str, path: Path) -> Manifest:
    """Raises ConfigError for what this version cannot read."""
    where = f"model {source!r}: its {FILE}"
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{where} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where} is damaged: it holds no object")
    if found.get("format") != FORMAT:
        raise ConfigError(
            f"{where} has the format {found.get('format')!r}, this version reads {FORMAT}: export it again"
        )
    values: dict[str, Any] = {}
    for item in fields(Manifest):
        value = found.get(item.name)
        if item.name in ("converted", "kept"):
            is_right = isinstance(value, list) and all(isinstance(path, str) for path in value)
            values[item.name] = tuple(value) if isinstance(value, list) else ()
        else:
            is_right = type(value).__name__ == item.type
            values[item.name] = value
        if not is_right:
            raise ConfigError(f"{where} is damaged: {item.name!r} is missing or not what it must be")
    return Manifest(**values)


def sha256_of(path: Path) -> str:
    """Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
