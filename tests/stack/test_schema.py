"""Dashboards against Grafana's own types; and that these catch what they should."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stack.dashboards import NAMES, load
from tests.stack.schema import mistakes

Json = dict[str, Any]


def first(dashboard: Json, kind: str) -> Json:
    found: Json = next(panel for panel in dashboard["panels"] if panel["type"] == kind)
    return found


SPOILED: dict[str, tuple[Callable[[Json], None], str]] = {
    "a_kind_of_panel_that_is_not_known": (lambda made: first(made, "stat").update(type="statt"), "statt"),
    "an_option_of_another_panel": (
        lambda made: first(made, "stat")["options"].update(showHeader=True), "showHeader",
    ),
    "an_option_left_out": (lambda made: first(made, "stat")["options"].pop("textMode"), "textMode"),
    "a_word_for_a_number": (
        lambda made: first(made, "timeseries")["fieldConfig"]["defaults"].update(min="0"), "min",
    ),
    "a_word_that_is_none_of_the_choices": (
        lambda made: first(made, "timeseries")["fieldConfig"]["defaults"]["custom"].update(drawStyle="lin"),
        "lin",
    ),
    "a_number_that_is_none_of_the_choices": (lambda made: made.update(graphTooltip=7), "graphTooltip"),
    "an_unknown_field_of_a_query": (
        lambda made: first(made, "stat")["targets"][0].update(expression="up"), "expression",
    ),
    "an_unknown_kind_of_variable": (
        lambda made: made["templating"]["list"][0].update(type="choice"), "choice",
    ),
    "an_unknown_field_of_the_dashboard": (lambda made: made.update(subtitle=""), "subtitle"),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(schema: Path) -> dict[str, list[str]]:
    """One run of the compiler over all of them: it takes seconds to start."""
    made = {name: load(name) for name in NAMES}
    for name, (spoil, _) in SPOILED.items():
        made[name] = copy.deepcopy(made["service"])
        spoil(made[name])
    return mistakes(schema, made)


@pytest.mark.parametrize("name", NAMES)
def test_grafanas_types_have_nothing_against_a_dashboard(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


@pytest.mark.parametrize("name", SPOILED)
def test_grafanas_types_object_to(found: dict[str, list[str]], name: str) -> None:
    assert SPOILED[name][1] in " ".join(found[name])
