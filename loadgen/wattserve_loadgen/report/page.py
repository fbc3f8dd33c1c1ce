"""report.html: one file, no network, no script. A results folder in, a page out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jinja2

from wattserve_loadgen.report import ink
from wattserve_loadgen.report import tables as report_tables
from wattserve_loadgen.report import text as report_text
from wattserve_loadgen.report.pictures import pictures
from wattserve_loadgen.results.folder import REPORT_FILE, Columns, read_columns, read_results, replace_file
from wattserve_loadgen.results.schema import Results
from wattserve_loadgen.results.standing import standing_of


def write_report(folder: Path) -> Path:
    """Make the report of a results folder; ResultsError when the folder cannot be read or written."""
    path = folder / REPORT_FILE
    replace_file(path, render(read_results(folder), read_columns(folder)))
    return path


def render(results: Results, columns: dict[tuple[str, int], Columns]) -> str:
    """The page. Everything that came from outside is escaped; only our own SVG is not."""
    results, columns = marked(results, columns)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wattserve_loadgen.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    concurrencies = sorted({point.concurrency for point in results.points}, reverse=True)
    shown = list(dict.fromkeys(concurrencies[:1] + concurrencies[-1:]))
    looks = ink.looks(results.plan.variants)
    return environment.get_template("report.html.j2").render(
        results=results,
        text=report_text,
        grids=report_tables,
        pictures=pictures(results, columns, looks),
        tables=[(concurrency, report_tables.summary_table(results, concurrency)) for concurrency in shown],
        colours={name: look.colour for name, look in looks.items()},
        source=report_text.source_line(results),
    )


def marked(
    results: Results, columns: dict[tuple[str, int], Columns]
) -> tuple[Results, dict[tuple[str, int], Columns]]:
    """With every variant named as a reader should see it: `int8-simulated (proxy)`."""
    variants = results.server.get("variants", [])
    names = {name: standing_of(variants, name).mark(name) for name in results.plan.variants}
    shown = [one | {"name": names.get(one["name"], one["name"])} for one in variants]
    renamed = replace(
        results,
        plan=replace(results.plan, variants=tuple(names.values())),
        server=results.server | {"variants": shown},
        accuracy={names.get(name, name): one for name, one in results.accuracy.items()},
        points=[replace(one, variant=names.get(one.variant, one.variant)) for one in results.points],
        cells=[replace(one, variant=names.get(one.variant, one.variant)) for one in results.cells],
    )
    return renamed, {(names.get(name, name), load): one for (name, load), one in columns.items()}
