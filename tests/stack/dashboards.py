"""The committed dashboards, and what Grafana would make of their expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
NAMES = ("energy", "service", "sweep")

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
LABEL = re.compile(r"\{\{(\w+)\}\}")

Json = dict[str, Any]

REPLACED = {
    "__rate_interval": "15s",
    "__range": "20s",
    "instance": ".*",
    "variant": ".*",
    "device": ".*",
    "percentile": "0.95",
    "baseline": "fp32",
}
"""Values for a Prometheus that scrapes every second and has done so for 25."""


def load(name: str) -> Json:
    made: Json = json.loads((FOLDER / f"{name}.json").read_text())
    return made


def panels(dashboard: Json) -> Iterator[Json]:
    """Those that show something, out of folded rows too."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def replaced(text: str, values: Mapping[str, str] = REPLACED) -> str:
    """Raises KeyError for a variable that has no value."""
    return VARIABLE.sub(lambda found: values[found[1] or found[2]], text)


@dataclass(frozen=True)
class Expression:
    dashboard: str
    panel: str
    letter: str
    text: str
    legend: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel} ({self.letter})"


def expressions() -> list[Expression]:
    return [
        Expression(name, panel["title"], target["refId"], target["expr"], target["legendFormat"])
        for name in NAMES
        for panel in panels(load(name))
        for target in panel["targets"]
    ]
