"""report.html: one file, no network, no script. A results folder in, a page out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jinja2

from wattserve_loadgen.report import comparison, evidence, facts, headline, ink, scene, tables
from wattserve_loadgen.report import sources as report_sources
from wattserve_loadgen.report import text as report_text
from wattserve_loadgen.report.pictures import Sheet, pictures
from wattserve_loadgen.report.readings import Meter, read_meters
from wattserve_loadgen.results.folder import REPORT_FILE, Columns, read_columns, read_results, replace_file
from wattserve_loadgen.results.schema import Results
from wattserve_loadgen.results.standing import standing_of

Records = Mapping[tuple[str, str], Columns]


def write_report(folder: Path) -> Path:
    """Make the report of a results folder; ResultsError when the folder cannot be read or written."""
    path = folder / REPORT_FILE
    replace_file(path, render(read_results(folder), read_columns(folder), read_meters(folder)))
    return path


def render(results: Results, records: Records, meters: Sequence[Meter] = ()) -> str:
    """The page. Everything that came from outside is escaped; only our own SVG is not."""
    results, records = marked(results, records)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wattserve_loadgen.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["capitalize_first"] = report_text.capitalised
    twins = [arm.name for arm in results.plan.arms if arm.twin_of]
    looks = ink.looks([arm.name for arm in results.main_arms], twins)
    first = scene.table_loads(results) if results.points else []
    return environment.get_template("report.html.j2").render(
        results=results,
        headline=headline.headline(results),
        text=report_text,
        tables=tables,
        evidence=evidence,
        facts=facts.facts(results),
        twins=comparison.twin_sentences(results),
        at=scene.at,
        mains=scene.main_loads(results) if results.points else [],
        first_loads=first,
        other_loads=[load for load in scene.loads_of(results) if load not in first],
        pictures=pictures(Sheet(results, records, meters, looks)),
        colours={name: look.colour for name, look in looks.items()},
        source=report_sources.source_line(results),
    )


def marked(results: Results, records: Records) -> tuple[Results, Records]:
    """With every arm named as a reader should see it: `int8-simulated (proxy)`."""
    names: dict[str, str] = {}
    for arm in results.plan.arms:
        variants = results.target_of(arm).server.get("variants", [])
        names[arm.name] = standing_of(variants, arm.variant).mark(arm.name)
    plan = replace(
        results.plan,
        arms=tuple(
            replace(arm, name=names[arm.name], twin_of=names.get(arm.twin_of, arm.twin_of))
            for arm in results.plan.arms
        ),
        own_loads={names.get(name, name): loads for name, loads in results.plan.own_loads.items()},
    )
    renamed = replace(
        results,
        plan=plan,
        accuracy={names.get(name, name): one for name, one in results.accuracy.items()},
        points=[replace(one, arm=names.get(one.arm, one.arm)) for one in results.points],
        cells=[replace(one, arm=names.get(one.arm, one.arm)) for one in results.cells],
        searches=[replace(one, arm=names.get(one.arm, one.arm)) for one in results.searches],
    )
    return renamed, {(names.get(name, name), load): one for (name, load), one in records.items()}
