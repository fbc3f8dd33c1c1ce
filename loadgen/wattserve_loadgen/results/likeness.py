"""Whether two sweeps ran in environments that can be compared (rule 12). Pure.

What neither states is no mismatch; what one states and the other does not is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wattserve_loadgen.results.schema import Results

_PACKAGES = ("torch", "grpcio")
Read = Callable[[Results], Any]


def mismatches(first: Results, second: Results) -> list[str]:
    """A text for each thing that differs: `governor: performance, then powersave`."""
    found = []
    for name, read in _LOOKED_AT:
        ours, theirs = read(first), read(second)
        if ours != theirs:
            found.append(f"{name}: {_text(ours)}, then {_text(theirs)}")
    return found


def _text(value: Any) -> str:
    if value is None or value == "":
        return "not stated"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _client(name: str) -> Read:
    return lambda results: results.client.get(name)


def _package(name: str) -> Read:
    return lambda results: (results.client.get("packages") or {}).get(name)


def _server(name: str) -> Read:
    return lambda results: results.server.get(name)


def _server_version(name: str) -> Read:
    return lambda results: (results.server.get("versions") or {}).get(name)


def _source(name: str) -> Read:
    return lambda results: (_meter(results).get("source") or {}).get(name)


def _meter(results: Results) -> dict[str, Any]:
    return results.target_of(results.plan.baseline).meter


_LOOKED_AT: tuple[tuple[str, Read], ...] = (
    ("client CPU", _client("cpu_model")),
    ("client cores", _client("usable_cpus")),
    ("client governor", _client("governor")),
    ("client on the server's machine", _client("same_machine_as_server")),
    *((f"client {name}", _package(name)) for name in _PACKAGES),
    ("server hardware", _server("hardware")),
    *((f"server {name}", _server_version(name)) for name in _PACKAGES),
    ("model", _server("model_name")),
    ("model source", _server("model_source")),
    ("dataset", lambda results: results.dataset.sha256[:12]),
    ("protocol", lambda results: results.target_of(results.plan.baseline).protocol),
    ("energy source", _source("name")),
    ("energy method", _source("method")),
    ("energy quality", _source("quality")),
    ("energy boundary", lambda results: _meter(results).get("boundary")),
    ("preset", lambda results: results.plan.preset),
    ("seconds of a window", lambda results: float(results.plan.seconds)),
)
