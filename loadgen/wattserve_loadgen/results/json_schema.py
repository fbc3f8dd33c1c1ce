"""results.json and records.jsonl as a JSON Schema (draft 2020-12), from the dataclasses that write them.

`python -m wattserve_loadgen.results.json_schema` writes results.schema.json beside this file; a test
compares. Fields that it does not name are allowed: they may be added without a new version.
"""

from __future__ import annotations

import json
import re
import types
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from wattserve_loadgen.results.meanings import meanings_of
from wattserve_loadgen.results.schema import SCHEMA, SCHEMA_VERSION, Record, Results

PATH = Path(__file__).with_name("results.schema.json")

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}
_UNITS = {
    "ns": "nanoseconds",
    "uj": "microjoules",
    "us": "microseconds",
    "seconds": "seconds",
    "watts": "watts",
    "per_second": "per second",
    "celsius": "degrees Celsius",
    "mhz": "megahertz",
    "share": "of 1",
    "bytes": "bytes",
}
_UNIT = re.compile(rf"(?:^|_)({'|'.join(_UNITS)})(?:_(per_\w+))?$")


def json_schema() -> dict[str, Any]:
    """The schema of results.json; a line of records.jsonl is `#/$defs/Record`."""
    found: dict[str, Any] = {}
    _define(Results, found)
    _define(Record, found)
    whole = found.pop("Results")
    whole["properties"]["schema"]["const"] = SCHEMA
    whole["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA}:{SCHEMA_VERSION}",
        "title": f"Results of loadgen, version {SCHEMA_VERSION}",
        **{name: value for name, value in whole.items() if name != "title"},
        "$defs": dict(sorted(found.items())),
    }


def schema_text() -> str:
    """What results.schema.json holds."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def unit_of(name: str) -> str | None:
    """From the ending of a field's name: `window_seconds` is in seconds."""
    found = _UNIT.search(name)
    if found is None:
        return None
    unit, per = _UNITS[found[1]], found[2]
    return f"{unit} {per.replace('_', ' ')}" if per else unit


def _define(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    """A reference to the class; its own schema goes into `found`."""
    name = kind.__name__
    if name not in found:
        found[name] = {}
        hints, meanings = get_type_hints(kind), meanings_of(kind)
        properties = {}
        for one in fields(kind):
            about = {"description": meanings[one.name]}
            unit = unit_of(one.name)
            properties[one.name] = _kind(hints[one.name], found) | about | ({"unit": unit} if unit else {})
        optional = [one.default is not MISSING or one.default_factory is not MISSING for one in fields(kind)]
        found[name] = {
            "title": name,
            "description": " ".join((kind.__doc__ or "").split("\n\n")[0].split()),
            "type": "object",
            "properties": properties,
            "required": [
                one.name for one, left_out in zip(fields(kind), optional, strict=True) if not left_out
            ],
        }
    return {"$ref": f"#/$defs/{name}"}


def _kind(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if origin in (Union, types.UnionType):
        inner = _kind(next(one for one in arguments if one is not types.NoneType), found)
        if "$ref" in inner:
            return {"anyOf": [inner, {"type": "null"}]}
        return inner | {"type": [inner["type"], "null"]}
    if origin in (list, tuple):
        return {"type": "array", "items": _kind(arguments[0], found)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _kind(arguments[1], found)}
    return _define(kind, found) if is_dataclass(kind) else {"type": _SCALARS[cast(type, kind)]}


if __name__ == "__main__":
    PATH.write_text(schema_text(), encoding="utf-8")
    print(PATH)
