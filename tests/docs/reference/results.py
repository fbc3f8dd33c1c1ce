"""docs/reference/results.md, from the dataclasses that a results folder is written from."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from tests.docs.reference import NOTE, table
from wattserve_common import stats
from wattserve_loadgen.model import cells, ratios, results
from wattserve_loadgen.plan import load, schedule
from wattserve_loadgen.results.csv_table import columns
from wattserve_loadgen.results.json_schema import meanings_of

_HEAD = f"""\
# Results of a sweep

{NOTE}

`loadgen sweep --out DIR` and `loadgen run --out DIR` leave:

- `records.jsonl`: one line of JSON for each request of the counted blocks ([Record](#record)); with
  `--parquet` the same in `records.parquet`.
- `readings.jsonl`: what the energy meters counted meanwhile, a line of JSON for each reading.
- `results.json`: every figure of the report and how it was made ([Results](#results)). It is replaced as a
  whole after every cell, so that what is measured survives an interruption.
- `results.csv`: a row for each point ([columns](#resultscsv)).
- `plan.toml` and `environment.json`: what was asked for, and the client and the servers that did it.
- `report.html`: tables and charts, made from the others; one file, no network. `loadgen report DIR` makes it
  again.

`results.schema.json`, which is installed with `wattserve_loadgen.results`, is a JSON Schema of `results.json`
and of a record.

**Units** are in the names: `_ns` nanoseconds, `_uj` microjoules, `_us` microseconds, `_seconds`, `_watts`.
`share` and `ratio` are of 1, not percent. Times of records count from the start of the sweep, on the client's
clock. **What is not known is `null`**, never 0, and a `reason` beside it says why. `schema_version` (now
{results.SCHEMA_VERSION}) changes when a reader would break; new fields may come without that.

**Words.** An *arm* is what is compared: a variant on a server. The *baseline* is the first arm: ratios are
relative to it. Its *twin* is the same variant once more under a second name: how far the two differ is what
the rig can tell apart (A/A). A *load* is a way of offering requests: a *closed loop* keeps so many in flight,
an *open loop* sends by a schedule whatever is in flight. A *cell* is one arm under one load for some seconds.
A *block* runs every cell once. Its *window* is the part that counts, after a warm-up under load. A *point* is
one arm under one load over all blocks.

**Times.** *Response time* runs from the instant at which a request was due to its answer; *service time* from
its sending; *lag* is what lies between. A closed loop has no schedule, and so only a service time. The
*latency* is the response time where there is one.

**Verdicts.** A *verdict* says why a point, or its joules alone, must not be published. What it spoils is
*withheld*: a point's `figures` are null and stand in `withheld`, to be drawn hollow. The preset `look` shows
its figures in spite of them.

**Energies** are *active* ones, above the device's idle draw, unless the name says idle, total, meter or
measured; whether they are measured, estimated or simulated, `targets[].meter.source.quality` says.
"""
_CLASSES: tuple[tuple[Any, str], ...] = (
    (cells.Record, "A line of `records.jsonl`: one request, those outside the window included."),
    (cells.RecordedGeneration, "`generation` of a record: the tokens of a language model."),
    (results.Results, "`results.json`."),
    (schedule.Plan, "`plan`: what the sweep was to do."),
    (load.Arm, "`plan.arms`: what is compared."),
    (load.Load, "`plan.loads`: a way of offering requests."),
    (results.DatasetSummary, "`dataset`: what was replayed."),
    (results.TargetSummary, "`targets`: a server of the sweep."),
    (results.Ceiling, "`ceilings`: what this client alone can do, against a server that does nothing."),
    (results.Accuracy, "`accuracy`, by arm: rows whose highest logit is at the label. Each counts once."),
    (results.Perplexity, "`perplexity`, by arm: how well it foresees the rows held out."),
    (results.Search, "`searches`: what `--find-max` found for one arm."),
    (results.Trial, "`trials` of a search: one rate that it tried."),
    (results.Check, "`checks`: a line of `loadgen validate`."),
    (results.Point, "`points`: one arm under one load over all its blocks."),
    (
        results.Figures,
        "`figures` or `withheld` of a point. Percentiles pool the blocks.",
    ),
    (ratios.Ratios, "`ratios`: a figure over the baseline's under the same load, paired block by block."),
    (stats.Interval, "Where a type says so: a mean over blocks with its two-sided 95 % interval."),
    (
        cells.Percentiles,
        "`latency`, `service`, `lag`. Null: the sample is too small.",
    ),
    (results.Verdict, "`verdicts` of a point: why it must not be published as it is."),
    (cells.CellResult, "`cells`, as they ran. Latencies: of requests of the window that were answered."),
    (cells.CellEnergy, "`energy` of a cell. Accounts: the ledger's growth over it, settlement included."),
    (cells.MeterWindow, "`meter`: the meter's own count over a window, interpolated at both edges."),
    (cells.GeneratedCell, "`generated` of a cell: when tokens came, and what they cost."),
    (cells.ServerPart, "`servers` of a cell: what each server of a fleet did."),
    (cells.Slices, "`slices`: a window in equal parts; null where one has no answer."),
    (cells.Conditions, "`conditions`: the client's machine when the cell began; null: it does not say."),
)
_NAMES = {cls.__name__ for cls, _ in _CLASSES}


def page() -> str:
    parts = [_HEAD]
    for cls, about in _CLASSES:
        meanings = meanings_of(cls)
        rows = [[f"`{one.name}`", _kind(str(one.type)), meanings[one.name]] for one in fields(cls)]
        parts.append(_section(cls.__name__, about, ["field", "type", "meaning"], rows))
    about = (
        "A row for each point. A figure that is not published is an empty cell. Beside a mean over blocks\n"
        "stand its `_low` and `_high`, the ends of its 95 % interval."
    )
    shown = [[f"`{one.name}`", one.meaning] for one in columns() if not one.name.endswith(("_low", "_high"))]
    parts.append(_section("results.csv", about, ["column", "meaning"], shown))
    return "\n".join(parts)


def _section(name: str, about: str, head: list[str], rows: list[list[str]]) -> str:
    return "\n".join([f"## {name}", "", about, "", *table(head, rows)]) + "\n"


def _kind(text: str) -> str:
    text = re.sub(r"^Annotated\[(.*?), \w+\(.*$", r"\1", text)
    for python, shown in (
        ("dict[str, Any]", "object"), ("str", "text"), ("int", "integer"), ("float", "number"),
        ("Whole", "integer"), ("Count", "integer"), ("bool", "true/false"), ("None", "null"),
    ):  # fmt: skip
        text = re.sub(rf"(?<!\w){re.escape(python)}(?!\w)", shown, text)
    text = text.replace(" | ", " or ")
    text = re.sub(r"list\[([^\[\]]+)\]", r"[\1]", text)
    text = re.sub(r"tuple\[([^\[\]]+), \.\.\.\]", r"[\1]", text)
    text = re.sub(r"dict\[text, (.+)\]$", r"object of \1", text)
    return re.sub(
        r"\w+", lambda found: f"[{found[0]}](#{found[0].lower()})" if found[0] in _NAMES else found[0], text
    )
