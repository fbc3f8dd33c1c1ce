"""results.json and records.jsonl as a JSON Schema (draft 2020-12), from the dataclasses of `model`.

`python -m wattserve_loadgen.results.json_schema` writes results.schema.json beside this file; a test
compares. Fields that it does not name are allowed: they may be added without a new version.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from wattserve_loadgen.model import cells, results, server_info
from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.model.results import SCHEMA, SCHEMA_VERSION, Results

PATH = Path(__file__).with_name("results.schema.json")

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
    _, definitions = msgspec.json.schema_components((Results, Record), ref_template="#/$defs/{name}")
    for kind in {**vars(server_info), **vars(cells), **vars(results)}.values():
        if not (isinstance(kind, type) and is_dataclass(kind) and kind.__name__ in definitions):
            continue
        definition = definitions[kind.__name__]
        definition["description"] = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        for name, meaning in meanings_of(kind).items():
            unit = unit_of(name)
            definition["properties"][name] |= {"description": meaning} | ({"unit": unit} if unit else {})
    whole = definitions.pop("Results")
    whole["properties"]["schema"]["const"] = SCHEMA
    whole["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA}:{SCHEMA_VERSION}",
        **(whole | {"title": f"Results of loadgen, version {SCHEMA_VERSION}"}),
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """What results.schema.json holds."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def unit_of(name: str) -> str | None:
    """From the ending of a field's name: `window_seconds` is in seconds."""
    ending = _UNIT.search(name)
    if ending is None:
        return None
    unit, per = _UNITS[ending[1]], ending[2]
    return f"{unit} {per.replace('_', ' ')}" if per else unit


def meanings_of(kind: type) -> dict[str, str]:
    """A sentence for every field of a dataclass: the comment behind it, or the line of comment above it.
    LookupError when one has none. Needs the source.
    """
    source = inspect.getsource(kind)
    lines = source.splitlines()
    meanings = {}
    for node in cast(ast.ClassDef, ast.parse(source).body[0]).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = lines[node.lineno - 2].strip()
            comment = re.search(r"#\s*(.*)", lines[node.lineno - 1]) or re.match(r"#\s*(.*)", above)
            if comment is None:
                raise LookupError(f"{kind.__name__}.{node.target.id}: no comment says what it means")
            meanings[node.target.id] = re.sub(r"\bNone\b", "null", comment[1])
    return meanings


if __name__ == "__main__":
    PATH.write_text(schema_text(), encoding="utf-8")
    print(PATH)
