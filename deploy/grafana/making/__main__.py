"""Writes the dashboards."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.grafana.making import energy, service, sweep

FOLDER = Path(__file__).parents[1] / "dashboards"
MAX_LINE = 110


def documents() -> dict[str, str]:
    """The text of each dashboard's file, by its name."""
    made = {"service": service.DASHBOARD, "energy": energy.DASHBOARD, "sweep": sweep.DASHBOARD}
    return {f"{name}.json": text(each) + "\n" for name, each in made.items()}


def text(value: object, indent: str = "") -> str:
    """JSON in which what fits on a line stays on it: to be read, and compared line by line."""
    short = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(short) <= MAX_LINE or not isinstance(value, dict | list):
        return short
    inner = indent + "  "
    if isinstance(value, list):
        parts = [inner + text(each, inner) for each in value]
    else:
        parts = [f"{inner}{json.dumps(key)}: {text(each, inner)}" for key, each in value.items()]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return opening + "\n" + ",\n".join(parts) + f"\n{indent}{closing}"


if __name__ == "__main__":
    for name, content in documents().items():
        (FOLDER / name).write_text(content)
