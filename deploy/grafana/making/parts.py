"""Grafana's JSON: dashboards, their variables and where their panels stand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

Json = dict[str, Any]

SCHEMA_VERSION = 41
"""Grafana 12.0's. Later ones bring an older dashboard up to date when they load it."""

WIDTH = 24
SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}


def dashboard(
    name: str, description: str, variables: list[Json], panels: Sequence[Json], since: str, refresh: str
) -> Json:
    """panels: a row starts a new line, others stand side by side as long as there is room."""
    return {
        "uid": f"wattserve-{name.lower()}",
        "title": f"Wattserve: {name}",
        "description": description,
        "tags": ["wattserve"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": refresh,
        "time": {"from": since, "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "title": "Wattserve",
                "type": "dashboards",
                "tags": ["wattserve"],
                "asDropdown": False,
                "icon": "external link",
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": [_datasource(), _instance(), *variables]},
        "annotations": {"list": []},
        "panels": _placed(panels),
    }


def _placed(panels: Sequence[Json]) -> list[Json]:
    """With their places, and numbers that stay the same while no panel is put before them."""
    numbers, placed, x, y, height = count(1), list[Json](), 0, 0, 0
    into = placed
    for panel in panels:
        size = panel["gridPos"]
        if panel["type"] == "row" or x + size["w"] > WIDTH:
            x, y, height = 0, y + height, 0
        made = {"id": next(numbers), **panel, "gridPos": {"x": x, "y": y, **size}}
        x, height = x + size["w"], max(height, size["h"])
        if panel["type"] == "row":
            placed.append(made)
            into = made["panels"] = []
            into = into if panel["collapsed"] else placed
        else:
            into.append(made)
    return placed


def row(title: str, collapsed: bool = False) -> Json:
    return {
        "type": "row",
        "title": title,
        "collapsed": collapsed,
        "panels": [],
        "gridPos": {"w": WIDTH, "h": 1},
    }


def values_of(name: str, label: str, query: str, description: str) -> Json:
    """A variable with the values of a metric's label, all of them at first."""
    return {
        "name": name,
        "label": label,
        "description": description,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


VARIANTS = values_of(
    "variant",
    "Variant",
    'label_values(wattserve_variant_ready{instance=~"$instance"}, variant)',
    "Precisions of the model. All includes requests that named none that exists.",
)
DEVICES = values_of(
    "device",
    "Device",
    'label_values(wattserve_meter_info{instance=~"$instance"}, device)',
    "Devices that run batches; each has its own meter and accounts.",
)


def choice(name: str, label: str, values: Sequence[str], first: str, description: str) -> Json:
    return {
        "name": name,
        "label": label,
        "description": description,
        "type": "custom",
        "query": ",".join(values),
        "multi": False,
        "includeAll": False,
        "current": {"text": first, "value": first},
        "options": [{"text": each, "value": each, "selected": each == first} for each in values],
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "current": {"text": "Prometheus", "value": "wattserve-prometheus"},
    }


def _instance() -> Json:
    return values_of(
        "instance", "Server", "label_values(wattserve_build_info, instance)", "Servers to add up."
    )
