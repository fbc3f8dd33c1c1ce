"""The table and the file of figures, from lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.speed.figures import Goal, Line, spread

HEAD = ("what", "median (quartiles)", "rounds", "goal", "verdict", "medians of what it is made of")


def markdown(lines: Sequence[Line], machine: Mapping[str, Any], notes: Sequence[str]) -> str:
    rows = [_row(HEAD), _row(["---"] * len(HEAD))]
    for line in lines:
        goals = "; ".join(_written(goal, line) for goal in line.goals)
        verdicts = "; ".join(line.verdict(goal) for goal in line.goals)
        rows.append(_row([line.what, _value(line), str(len(line.values)), goals, verdicts, line.detail]))
    words = [f"- {name}: {described(value)}" for name, value in machine.items()]
    return "\n".join([*rows, "", *notes, "", *words]) + "\n"


def record(
    lines: Sequence[Line], figures: Mapping[str, Sequence[float]], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that was measured, for programs."""
    return {
        "machine": dict(machine),
        "lines": [
            {
                "row": line.row,
                "what": line.what,
                "unit": line.unit,
                "rounds": list(line.values),
                **vars(spread(line.values)),
                "goals": [{**vars(goal), "verdict": line.verdict(goal)} for goal in line.goals],
            }
            for line in lines
        ],
        "figures": {name: list(values) for name, values in figures.items()},
    }


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _value(line: Line) -> str:
    found = spread(line.values)
    low, middle, high = (format(value, line.form) for value in (found.low, found.middle, found.high))
    return f"{middle}{line.unit} ({low} to {high})"


def _written(goal: Goal, line: Line) -> str:
    sign = "≥" if goal.is_floor else "≤"
    limit = format(goal.limit, line.form.lstrip("+"))
    return f"{sign} {limit}{line.unit}{' ' + goal.words if goal.words else ''}"


def described(value: Any) -> str:
    """A fact of the machine, for people."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {described(part)}" for name, part in value.items()) or "none"
    return str(value)
