"""A dashboard's panels drawn by matplotlib from what Prometheus says: for the eye, without Grafana.

Kinds of panels, places, units, colours, stacking and legends are those of the JSON; fonts and spacing not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tests.stack.dashboards import Json, replaced
from tests.stack.prometheus import Prometheus, Series

COLUMN_IN, UNIT_IN = 0.72, 0.42
HEAD_IN = 1.1
NAMED = {"green": "#37872D", "yellow": "#C79A00", "red": "#C4162A", "text": "#22302c"}
OTHERS = plt.get_cmap("tab10").colors
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"))
SUFFIX = {"s": "s", "joule": "J", "watt": "W", "reqps": "req/s", "bytes": "B", "none": "", "short": ""}


@dataclass
class Drawing:
    """start, end: Unix times. values: of the variables. repeats: the values of those that repeat panels."""

    prometheus: Prometheus
    start: float
    end: float
    step: float
    values: Mapping[str, str]
    repeats: Mapping[str, list[str]] = field(default_factory=dict)

    def draw(self, dashboard: Json, note: str, path: Path) -> None:
        placed = [each for panel in dashboard["panels"] for each in self._expanded(panel)]
        height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in placed)
        size = (24 * COLUMN_IN, HEAD_IN + height * UNIT_IN)
        figure = plt.figure(figsize=size, facecolor="white")
        figure.text(0.012, 1 - 0.42 / size[1], dashboard["title"], fontsize=19, weight="bold")
        figure.text(0.012, 1 - 0.85 / size[1], note, fontsize=10.5, color="#66736e")
        for panel, values in placed:
            at = panel["gridPos"]
            top = (HEAD_IN + at["y"] * UNIT_IN) / size[1]
            box = (
                at["x"] / 24,
                1 - top - at["h"] * UNIT_IN / size[1],
                at["w"] / 24,
                at["h"] * UNIT_IN / size[1],
            )
            self._panel(figure, panel, values, box)
        figure.savefig(path, dpi=75)
        plt.close(figure)

    def _expanded(self, panel: Json) -> list[tuple[Json, Mapping[str, str]]]:
        if "repeat" not in panel:
            return [(panel, self.values)]
        chosen, at = self.repeats[panel["repeat"]][: panel["maxPerRow"]], panel["gridPos"]
        width = 24 / min(panel["maxPerRow"], len(chosen))
        return [
            (
                {**panel, "gridPos": {**at, "x": number * width, "w": width}},
                {**self.values, panel["repeat"]: value},
            )
            for number, value in enumerate(chosen)
        ]

    def _panel(
        self, figure: Figure, panel: Json, values: Mapping[str, str], box: tuple[float, float, float, float]
    ) -> None:
        x, y, width, height = box
        wide, high = figure.get_size_inches()
        if panel["type"] == "row":
            folded = f" (folded: {len(panel['panels'])} panels)" if panel["collapsed"] else ""
            figure.text(x + 0.012, y + 0.1 / high, panel["title"] + folded, fontsize=13, weight="bold")
            return
        title = replaced(panel["title"], {**values, "percentile": values["percentile"]})
        figure.text(x + 0.15 / wide, y + height - 0.25 / high, title, fontsize=10.5, weight="bold")
        left, right, foot, head = 0.75 / wide, 0.2 / wide, 0.85 / high, 0.42 / high
        if panel["type"] in ("stat", "table"):
            left, foot = 0.15 / wide, 0.1 / high
        axes = figure.add_axes((x + left, y + foot, width - left - right, height - foot - head))
        axes.spines[["top", "right"]].set_visible(False)
        kinds = {
            "timeseries": self._lines, "stat": self._stat, "heatmap": self._heatmap, "table": self._table,
            "state-timeline": self._timeline,
        }  # fmt: skip
        kinds[panel["type"]](axes, panel, values)

    def _over(self, target: Json, values: Mapping[str, str]) -> list[Series]:
        return self.prometheus.over(replaced(target["expr"], values), self.start, self.end, self.step)

    def _grid(self, found: Series) -> tuple[np.ndarray, np.ndarray]:
        """Seconds since the start and values, with NaN where there is none, so that lines break there."""
        times = np.arange(self.start, self.end + self.step / 2, self.step)
        values = np.full(len(times), np.nan)
        for when, value in found.samples:
            values[round((when - self.start) / self.step)] = value
        return times - self.start, values

    def _lines(self, axes: Axes, panel: Json, values: Mapping[str, str]) -> None:
        defaults = panel["fieldConfig"]["defaults"]
        stacked = defaults["custom"]["stacking"]["mode"] == "normal"
        pile: np.ndarray | float = 0.0
        number = 0
        for target in panel["targets"]:
            for found in self._over(target, values):
                label = found.named(target["legendFormat"])
                changes = properties(panel, label)
                colour = changes.get("color", {}).get("fixedColor") or OTHERS[number % 10]
                number += 1
                times, heights = self._grid(found)
                alone = changes.get("custom.stacking", {"mode": defaults["custom"]["stacking"]["mode"]})
                if stacked and alone["mode"] == "normal":
                    top = pile + np.nan_to_num(heights)
                    axes.fill_between(times, pile, top, color=colour, alpha=0.65, lw=0.6, label=label)
                    pile = top
                else:
                    axes.plot(times, heights, color=colour, lw=1.4, label=label, solid_capstyle="round")
        if number == 0:
            axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="#66736e")
            axes.set_yticks([])
            axes.set_xticks([])
            return
        low, high = axes.get_ylim()
        axes.set_ylim(defaults.get("min", low), defaults.get("max", high))
        soft = defaults["custom"].get("axisSoftMax")
        if soft is not None:
            axes.set_ylim(min(axes.dataLim.y0, -soft), max(axes.dataLim.y1, soft))
        elif defaults.get("min") == 0 and not axes.dataLim.y1 > 0:
            axes.set_ylim(0, 1)
        axes.set_xlim(0, self.end - self.start)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: shown(value, defaults.get("unit", "none")))
        )
        axes.xaxis.set_major_formatter(FuncFormatter(clock))
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", color="#e4e7e2", lw=0.7)
        if number > 0:
            axes.legend(
                loc="upper left", bbox_to_anchor=(-0.12, -0.13), ncols=min(number, 4 if stacked else 3),
                fontsize=8, frameon=False, handlelength=1.2, columnspacing=1.2,
            )  # fmt: skip

    def _stat(self, axes: Axes, panel: Json, values: Mapping[str, str]) -> None:
        axes.axis("off")
        (target,), defaults = panel["targets"], panel["fieldConfig"]["defaults"]
        found = self.prometheus.query(replaced(target["expr"], values), self.end)
        if panel["options"]["textMode"] == "name":
            names = [each.named(target["legendFormat"]) for each in found]
            axes.text(0.0, 0.5, "\n".join(names), fontsize=16, va="center")
            return
        if not found:
            axes.text(0.5, 0.5, "–", fontsize=22, ha="center", va="center")
            return
        value = found[0].value
        steps = defaults["thresholds"]["steps"]
        colour = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
        text = shown(value, defaults["unit"], defaults.get("decimals"))
        axes.text(0.5, 0.5, text, fontsize=24, ha="center", va="center", color=NAMED[colour])

    def _heatmap(self, axes: Axes, panel: Json, values: Mapping[str, str]) -> None:
        (target,) = panel["targets"]
        found = sorted(self._over(target, values), key=lambda each: float(each.labels["le"]))
        grids = [np.nan_to_num(self._grid(each)[1]) for each in found]
        counts = np.diff(np.array([np.zeros_like(grids[0]), *grids]), axis=0)
        kept = np.flatnonzero(counts.sum(axis=1) > 0)
        first, last = kept[0], kept[-1] + 1
        image = np.ma.masked_less_equal(counts[first:last], 0)
        axes.pcolormesh(
            np.arange(image.shape[1] + 1) * self.step, np.arange(last - first + 1), image,
            cmap="Oranges", norm=PowerNorm(0.5),
        )  # fmt: skip
        unit = panel["options"]["yAxis"]["unit"]
        bounds = [float(each.labels["le"]) for each in found[first:last]]
        axes.set_yticks(np.arange(len(bounds)) + 1, [shown(bound, unit) for bound in bounds], fontsize=8)
        axes.xaxis.set_major_formatter(FuncFormatter(clock))
        axes.tick_params(labelsize=8)

    def _timeline(self, axes: Axes, panel: Json, values: Mapping[str, str]) -> None:
        (target,) = panel["targets"]
        words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
        names = []
        for number, found in enumerate(self._over(target, values)):
            names.append(found.named(target["legendFormat"]))
            for word, looks in words.items():
                times, states = self._grid(found)
                spans = [
                    (time, self.step)
                    for time, state in zip(times, states, strict=True)
                    if state == float(word)
                ]
                axes.broken_barh(
                    spans,
                    (number - 0.4, 0.8),
                    color=NAMED[looks["color"]],
                    lw=0,
                    alpha=0.7,
                    label=looks["text"],
                )
        axes.set_yticks(range(len(names)), ["" for _ in names])
        for number, name in enumerate(names):
            axes.text(0.02, number, name, fontsize=9, va="center", transform=axes.get_yaxis_transform())
        axes.set_xlim(0, self.end - self.start)
        axes.xaxis.set_major_formatter(FuncFormatter(clock))
        axes.tick_params(labelsize=8)
        axes.legend(loc="upper left", bbox_to_anchor=(-0.12, -0.13), ncols=2, fontsize=8, frameon=False)

    def _table(self, axes: Axes, panel: Json, values: Mapping[str, str]) -> None:
        axes.axis("off")
        units = [
            change["value"]
            for override in panel["fieldConfig"]["overrides"]
            for change in override["properties"]
        ]
        lines: dict[tuple[str, ...], dict[int, str]] = {}
        labels: list[str] = []
        for column, (target, unit) in enumerate(zip(panel["targets"], units, strict=True)):
            for found in self.prometheus.query(replaced(target["expr"], values), self.end):
                labels = labels or sorted(found.labels)
                key = tuple(found.labels.get(label, "") for label in labels)
                lines.setdefault(key, {})[column] = shown(found.value, unit, 3)
        columns = range(len(units))
        cells = [
            [*key, *(line.get(column, "–") for column in columns)] for key, line in sorted(lines.items())
        ]
        heads = [*labels, *(target["legendFormat"] for target in panel["targets"])]
        made: Any = axes.table(cells, colLabels=heads, loc="upper center", cellLoc="left", edges="horizontal")
        made.auto_set_font_size(False)
        made.set_fontsize(9.5)
        made.auto_set_column_width(range(len(heads)))
        made.scale(1, 1.5)


def properties(panel: Json, label: str) -> Json:
    """What the overrides say of a series of this name."""
    found: Json = {}
    for override in panel["fieldConfig"]["overrides"]:
        kind, wanted = override["matcher"]["id"], override["matcher"]["options"]
        if wanted == label if kind == "byName" else re.search(wanted.strip("/"), label):
            found |= {change["id"]: change["value"] for change in override["properties"]}
    return found


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f} %"
    prefixes = [each for each in PREFIXES if each[0] >= 1] if unit in ("none", "short") else PREFIXES
    scale, prefix = next((each for each in prefixes if abs(value) >= each[0] * 0.9995), (1, ""))
    return f"{value / scale:.4g} {prefix}{SUFFIX[unit]}".strip()


def clock(seconds: float, _: int) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"
