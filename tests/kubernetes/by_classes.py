"""Objects of Kubernetes and KServe, a JSON list on stdin, held against published schemas; on stdout a list of
the mistakes of each.

Run by the Python that get_schemas.sh made, which has neither pytest nor Wattserve. argv[1]: the version of
Kubernetes. KServe's classes know names and types of fields, and their constructors what must be there.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import kubernetes.client
import kubernetes_validate

PLAIN: dict[str, Any] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "object": object,
    "datetime": str,
}


def kserve_classes() -> Any:
    """`kserve.models` without the rest of the package, whose `__init__` imports a server."""
    spec = importlib.util.find_spec("kserve")
    assert spec is not None
    package = types.ModuleType("kserve")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["kserve"] = package
    import kserve.models

    return kserve.models


MODELS = kserve_classes()


def named(kind: str) -> Any:
    short = kind.replace("K8sIoApiCoreV1", "V1").replace("K8sIoApiAppsV1", "V1")
    found = getattr(MODELS, kind, None) or getattr(kubernetes.client, short, None)
    if found is None:
        raise LookupError(f"neither kserve nor kubernetes has a class {kind}")
    return found


def mistakes_of(value: Any, kind: str, where: str) -> Iterator[str]:
    """kind: as the generated classes name types: `str`, `list[X]`, `dict(str, X)`, a class."""
    if items := re.fullmatch(r"[Ll]ist\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{where}: a list, not {value!r}"
            return
        for number, item in enumerate(value):
            yield from mistakes_of(item, items[1], f"{where}[{number}]")
    elif entries := re.fullmatch(r"[Dd]ict[(\[]str, (.+)[)\]]", kind):
        if not isinstance(value, dict):
            yield f"{where}: a mapping, not {value!r}"
            return
        for key, item in value.items():
            yield from mistakes_of(item, entries[1], f"{where}.{key}")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]) or (kind == "int" and isinstance(value, bool)):
            yield f"{where}: {kind}, not {value!r}"
    else:
        yield from _of_a_class(value, named(kind), where)


def _of_a_class(value: Any, kind: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: a {kind.__name__}, not {value!r}"
        return
    by_key = {key: name for name, key in kind.attribute_map.items()}
    given = {}
    for key, item in value.items():
        if key not in by_key:
            yield f"{where}.{key}: {kind.__name__} has no such field"
            continue
        given[by_key[key]] = item
        yield from mistakes_of(item, kind.openapi_types[by_key[key]], f"{where}.{key}")
    try:
        kind(**given)
    except ValueError as error:  # of the setter of a field that must be there
        yield f"{where}: {error}"


def mistakes(made: dict[str, Any], version: str) -> list[str]:
    group = made["apiVersion"].rpartition("/")[0]
    if group == "serving.kserve.io":
        number = made["apiVersion"].rpartition("/")[2]
        return list(mistakes_of(made, f"{number.capitalize()}{made['kind']}", made["kind"]))
    try:
        kubernetes_validate.validate(made, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        path = ".".join(map(str, error.path))
        return [f"{made['kind']}.{path}: {error.message}"]
    return []


if __name__ == "__main__":
    json.dump([mistakes(made, sys.argv[1]) for made in json.load(sys.stdin)], sys.stdout)
