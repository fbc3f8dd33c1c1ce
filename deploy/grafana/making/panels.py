"""The kinds of panels, with the colours that mean the same on every dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.grafana.making.parts import SOURCE, Json

# By name, so that a variant keeps its own on every dashboard, whichever others are shown. `int8@cpu` is int8
# on another device than the server's first.
VARIANTS = {
    "fp32": "#3274D9", "tf32": "#5794F2", "bf16": "#73BF69", "fp16": "#56A64B", "int8": "#FF9830",
    "int8-static": "#FFCB7D", "int8-weight-only": "#C4162A", "llm-int8": "#B877D9", "fp8": "#E02F44",
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
    made: Json = {"datasource": SOURCE, "expr": expression, "legendFormat": legend, "format": form}
    made |= {"instant": True, "range": False} if form == "table" else {"instant": False, "range": True}
    return {**made, "exemplar": True} if exemplar else made


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
    made = [{"color": colour, "value": value} for value, colour in steps]
    return {"mode": "absolute", "steps": [{"color": first, "value": None}, *made]}


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
    defaults: Json = {
        "unit": unit,
        "color": {"mode": "palette-classic-by-name"},
        "custom": custom,
    }
    defaults |= {} if lowest is None else {"min": lowest}
    defaults |= {} if highest is None else {"max": highest}
    defaults |= {} if marks is None else {"thresholds": marks}
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


def stat(
    title: str, description: str, unit: str, one: Json, *,
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
    return _panel("stat", title, description, [one], defaults, options, width, 4)


def heatmap(title: str, description: str, unit: str, one: Json, width: int = 8) -> Json:
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
    return _panel("heatmap", title, description, [one], defaults, options, width, 8)


def timeline(
    title: str, description: str, one: Json, words: Mapping[str, tuple[str, str]], width: int = 8
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
    return _panel("state-timeline", title, description, [one], defaults, options, width, 8)


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
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "unit", "value": unit}],
        }
        for name, unit, _ in columns
    ]
    options: Json = {"showHeader": True, "cellHeight": "sm", "frameIndex": 0, "sortBy": []}
    made = _panel("table", title, description, queries, defaults, options, 24, height, overrides)
    made["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": values},
        },
    ]
    return made


def repeated(panel: Json, variable: str, per_line: int) -> Json:
    """The panel once for each value of a variable."""
    return {**panel, "repeat": variable, "repeatDirection": "h", "maxPerRow": per_line}


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
        "targets": [{"refId": chr(ord("A") + number), **each} for number, each in enumerate(queries)],
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "options": options,
    }
