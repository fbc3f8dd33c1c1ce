"""Grafana's JSON: dashboards, their variables and the kinds of panels, whose colours always mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from deploy.grafana.making.promql import INSTANCE, VARIANT, buckets
from wattserve_server.telemetry.table import BUILD, METER, VARIANT_READY, MetricSpec

Json = dict[str, Any]

SCHEMA_VERSION = 41  # Grafana 12.0's. Later ones bring an older dashboard up to date when they load it.

WIDTH = 24
SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}


def dashboard(
    name: str, description: str, variables: list[Json], panels: Sequence[Json], since: str, refresh: str,
    annotations: Sequence[Json] = (),
) -> Json:  # fmt: skip
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
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "refresh": 1,
                    "current": {"text": "Prometheus", "value": "wattserve-prometheus"},
                },
                values_of("instance", "Server", BUILD, "Servers to add up."),
                *variables,
            ]
        },
        "annotations": {"list": list(annotations)},
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
        panel = {"id": next(numbers), **panel, "gridPos": {"x": x, "y": y, **size}}
        x, height = x + size["w"], max(height, size["h"])
        if panel["type"] == "row":
            placed.append(panel)
            into = panel["panels"] = []
            into = into if panel["collapsed"] else placed
        else:
            into.append(panel)
    return placed


def marks_of(name: str, expression: str, title: str, text: str) -> Json:
    """Annotations, off until somebody switches them on: where the series of the expression begin."""
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": False,
        "hide": False,
        "iconColor": "purple",
        "expr": expression,
        "step": "5s",
        "titleFormat": title,
        "textFormat": text,
        "useValueForTime": False,
    }


def row(title: str, collapsed: bool = False) -> Json:
    return {
        "type": "row",
        "title": title,
        "collapsed": collapsed,
        "panels": [],
        "gridPos": {"w": WIDTH, "h": 1},
    }


def values_of(name: str, label: str, metric: MetricSpec, description: str, of: str | None = None) -> Json:
    """A variable with the values of a metric's label `of`, mostly its own name; all of them at first."""
    within = metric if name == "instance" else f"{metric}{{{INSTANCE}}}"
    return {
        "name": name,
        "label": label,
        "description": description,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({within}, {of or name})", "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


VARIANT_NOTE = "Precisions of the model. All includes requests that named none that exists."
VARIANT_VALUES = values_of("variant", "Variant", VARIANT_READY, VARIANT_NOTE)
DEVICES = values_of(
    "device", "Device", METER, "Devices that run batches; each has its own meter and accounts."
)


# By name, so that a variant keeps its own on every dashboard, whichever others are shown. `int8@cpu` is int8
# on another device than the server's first.
VARIANTS = {
    "fp32": "#3274D9", "tf32": "#5794F2", "bf16": "#73BF69", "fp16": "#56A64B", "int8": "#FF9830",
    "int8-static": "#FFCB7D", "int8-weight-only": "#C4162A", "int4-weight-only": "#8A1C2B",
    "llm-int8": "#B877D9", "fp8": "#E02F44",
    "int8-simulated": "#8F8F8F", "fp16-as-int8-proxy": "#B8B8B8", "none": "#585858",
}  # fmt: skip
ACCOUNTS = {
    "active": "#FF9830", "warmup": "#F2CC0C", "idle": "#5794F2", "unattributed": "#B877D9", "gap": "#E02F44",
    "measured": "#CCCCDC",
}  # fmt: skip
STAGES = {"tokenize": "#5794F2", "queue": "#FADE2A", "compute": "#FF9830", "output": "#B877D9"}

GREEN, YELLOW, RED = "green", "yellow", "red"


def query(expression: str, legend: str, *, exemplar: bool = False, form: str = "time_series") -> Json:
    """form: heatmap for buckets, table for one instant's values."""
    target: Json = {"datasource": SOURCE, "expr": expression, "legendFormat": legend, "format": form}
    target |= {"instant": form == "table", "range": form != "table"}
    return {**target, "exemplar": True} if exemplar else target


def fixed(colours: Mapping[str, str]) -> list[Json]:
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/^{name}(@|$)/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in colours.items()
    ]


def thresholds(*steps: tuple[float, str], first: str = GREEN) -> Json:
    """steps: from which value on which colour."""
    colours = [{"color": colour, "value": value} for value, colour in ((None, first), *steps)]
    return {"mode": "absolute", "steps": colours}


def lines(
    title: str, description: str, unit: str, *queries: Json,
    colours: Mapping[str, str] | None = None, stacked: bool = False, width: int = 8, height: int = 8,
    lowest: float | None = 0, highest: float | None = None, marks: Json | None = None,
    overrides: Sequence[Json] = (), around_zero: float | None = None,
) -> Json:  # fmt: skip
    """colours: of the series by their names. marks: thresholds, drawn as lines. around_zero: how far up
    and down the axis reaches at the least, so that noise is not blown up to fill the panel."""
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1 if stacked else 2,
        "fillOpacity": 60 if stacked else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if marks else "off"},
    }
    if around_zero is not None:
        custom |= {"axisSoftMin": -around_zero, "axisSoftMax": around_zero}
    defaults: Json = {"unit": unit, "color": {"mode": "palette-classic-by-name"}, "custom": custom}
    limits = {"min": lowest, "max": highest, "thresholds": marks}
    defaults |= {name: limit for name, limit in limits.items() if limit is not None}
    options: Json = {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["mean", "lastNotNull"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    changes = [*fixed(colours or {}), *overrides]
    return _panel("timeseries", title, description, queries, defaults, options, width, height, changes)


def variant_lines(
    title: str, description: str, unit: str, expression: str, *, exemplar: bool = False, **options: Any
) -> Json:
    """A line for each variant, in its colour. options: see `lines`."""
    shown = query(expression, "{{variant}}", exemplar=exemplar)
    return lines(title, description, unit, shown, colours=VARIANTS, **options)


def stat(
    title: str, description: str, unit: str, target: Json, *,
    marks: Json | None = None, decimals: int | None = None, text: str = "auto", width: int = 4,
) -> Json:  # fmt: skip
    defaults: Json = {"unit": unit, "noValue": "–", "thresholds": marks or thresholds(first="text")}
    defaults["color"] = {"mode": "thresholds"}
    defaults |= {} if decimals is None else {"decimals": decimals}
    options: Json = {
        "colorMode": "value",
        "graphMode": "none" if text == "name" else "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": text,
        "wideLayout": True,
    }
    return _panel("stat", title, description, [target], defaults, options, width, 4)


def heatmap(
    title: str, description: str, histogram: MetricSpec, unit: str, exemplar: bool = False, width: int = 8
) -> Json:
    """How many observations of the chosen variants fell into each bucket."""
    shown = query(buckets(histogram, VARIANT), "{{le}}", exemplar=exemplar, form="heatmap")
    options: Json = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme", "scheme": "Oranges", "fill": "dark-orange", "exponent": 0.5, "steps": 64,
            "reverse": False, "scale": "exponential",
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "unit": unit, "reverse": False},
    }  # fmt: skip
    defaults: Json = {"custom": {"scaleDistribution": {"type": "linear"}}}
    return _panel("heatmap", title, description, [shown], defaults, options, width, 8)


def timeline(
    title: str, description: str, target: Json, words: Mapping[str, tuple[str, str]], width: int
) -> Json:
    """words: for each value the text and its colour."""
    mapped = {value: {"text": text, "color": colour} for value, (text, colour) in words.items()}
    defaults: Json = {
        "mappings": [{"type": "value", "options": mapped}],
        "color": {"mode": "fixed"},
        "custom": {"fillOpacity": 70, "lineWidth": 0},
    }
    options: Json = {
        "showValue": "auto",
        "rowHeight": 0.9,
        "mergeValues": True,
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return _panel("state-timeline", title, description, [target], defaults, options, width, 8)


def table(
    title: str, description: str, columns: Sequence[tuple[str, str, str]], labels: Sequence[str],
    height: int = 8, decimals: int = 3,
) -> Json:  # fmt: skip
    """columns: for each its name, its unit and its expression, whose values have these labels."""
    queries = [query(expression, name, form="table") for name, _, expression in columns]
    letters = [chr(ord("A") + number) for number in range(len(columns))]
    values = {f"Value #{letter}": name for letter, (name, _, _) in zip(letters, columns, strict=True)}
    order = {name: place for place, name in enumerate([*labels, *values])}
    defaults: Json = {
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
        "noValue": "–",
        "decimals": decimals,
    }
    overrides: list[Json] = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, unit, _ in columns
    ]
    options: Json = {"showHeader": True, "cellHeight": "sm", "frameIndex": 0, "sortBy": []}
    panel = _panel("table", title, description, queries, defaults, options, 24, height, overrides)
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": values},
        },
    ]
    return panel


def _panel(
    kind: str, title: str, description: str, queries: Sequence[Json], defaults: Json, options: Json,
    width: int, height: int, overrides: Sequence[Json] = (),
) -> Json:  # fmt: skip
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": [{"refId": chr(ord("A") + number), **target} for number, target in enumerate(queries)],
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "options": options,
    }
