"""`python -m deploy.grafana.making` writes deploy/grafana/dashboards/*.json; a test compares."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.grafana.making import energy, service, sweep

FOLDER = Path(__file__).parents[1] / "dashboards"
MAX_LINE = 110


def documents() -> dict[str, str]:
    """The text of each dashboard's file, by its name."""
    dashboards = {"service": service.DASHBOARD, "energy": energy.DASHBOARD, "sweep": sweep.DASHBOARD}
    return {f"{name}.json": text(panels) + "\n" for name, panels in dashboards.items()}


def text(value: object, indent: str = "") -> str:
    """JSON in which what fits on a line stays on it: to be read, and compared line by line."""
    short = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(short) <= MAX_LINE or not isinstance(value, dict | list):
        return short
    inner = indent + "  "
    if isinstance(value, list):
        parts = [inner + text(item, inner) for item in value]
    else:
        parts = [f"{inner}{json.dumps(key)}: {text(item, inner)}" for key, item in value.items()]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return opening + "\n" + ",\n".join(parts) + f"\n{indent}{closing}"


if __name__ == "__main__":
    for name, content in documents().items():
        (FOLDER / name).write_text(content)
