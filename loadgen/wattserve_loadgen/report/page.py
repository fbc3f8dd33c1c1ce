"""report.html: one file, no network, no script. A results folder in, a page out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from wattserve_loadgen.model.results import Results
from wattserve_loadgen.model.server_info import standing_of
from wattserve_loadgen.report import charts, facts, ink, scene, tables, text, token_tables
from wattserve_loadgen.report.scene import Records, Sheet
from wattserve_loadgen.results.folder import REPORT_FILE, read_columns, read_results, replace_file
from wattserve_loadgen.results.readings import MeterReadings, read_meters


def write_report(folder: Path) -> Path:
    """Make the report of a results folder; ResultsError when the folder cannot be read or written."""
    path = folder / REPORT_FILE
    results = read_results(folder)
    records = read_columns(folder, results.dataset.rows)
    replace_file(path, render(results, records, read_meters(folder)))
    return path


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wattserve_loadgen.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2")


def render(results: Results, records: Records, meters: Sequence[MeterReadings] = ()) -> str:
    """The page. Everything that came from outside is escaped; only our own SVG is not."""
    results, records = marked(results, records)
    twins = [arm.name for arm in results.plan.arms if arm.twin_of]
    looks = ink.looks([arm.name for arm in results.main_arms], twins)
    first, loads = scene.table_loads(results), scene.loads_of(results)
    sheet = Sheet(results, records, meters, looks)
    return _template().render(
        results=results,
        text=text,
        tables=tables,
        token_tables=token_tables,
        facts=facts,
        mains=scene.main_loads(results),
        first_loads=first,
        other_loads=[load for load in loads if load not in first],
        loads=loads,
        opening=charts.opening(sheet),
        pictures=charts.pictures(sheet),
        colours={name: look.colour for name, look in looks.items()},
        source=facts.source_line(results),
    )


def marked(results: Results, records: Records) -> tuple[Results, Records]:
    """With every arm named as a reader should see it: `int8-simulated (proxy)`."""
    names: dict[str, str] = {}
    for arm in results.plan.arms:
        names[arm.name] = standing_of(results.about(arm)).mark(arm.name)

    def renamed(parts: Sequence[Any]) -> list[Any]:
        return [replace(part, arm=names.get(part.arm, part.arm)) for part in parts]

    plan = replace(
        results.plan,
        arms=tuple(
            replace(arm, name=names[arm.name], twin_of=names.get(arm.twin_of, arm.twin_of))
            for arm in results.plan.arms
        ),
        own_loads={names.get(name, name): loads for name, loads in results.plan.own_loads.items()},
    )
    results = replace(
        results,
        plan=plan,
        accuracy={names.get(name, name): share for name, share in results.accuracy.items()},
        perplexity={names.get(name, name): one for name, one in results.perplexity.items()},
        points=renamed(results.points),
        cells=renamed(results.cells),
        searches=renamed(results.searches),
    )
    return results, {(names.get(name, name), load): columns for (name, load), columns in records.items()}
