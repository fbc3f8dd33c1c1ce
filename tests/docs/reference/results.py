"""docs/reference/results.md, from the dataclasses that a results folder is written from."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields

from tests.docs.reference import NOTE, table
from tests.docs.reference.meanings import MEANINGS
from wattserve_loadgen.figures import stats
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.results import schema

_HEAD = f"""\
# Results of a sweep

{NOTE}

`loadgen sweep --out DIR` leaves three files:

- `records.jsonl`: one line of JSON for each request of the counted blocks ([Record](#record)).
- `results.json`: every figure of the report and how it was made ([Results](#results)). It is replaced as a
  whole after every cell, so that what is measured survives an interruption.
- `report.html`: tables and charts, made from the two others; one file, no network. `loadgen report DIR` makes
  it again.

**Units** are in the names: `_ns` nanoseconds, `_uj` microjoules, `_seconds`, `_watts`. `share` and `ratio`
are of 1, not percent. Times of records count from the start of the sweep, on the client's clock. **What is
not known is `null`**, never 0, and a `reason` beside it says why. `schema_version` (now
{schema.SCHEMA_VERSION}) changes when a reader would break; new fields may come without that.

**Words.** A *cell* is one variant at one concurrency for some seconds. A *block* runs every cell once. Its
*window* is the part that counts, after a warm-up under load. A *point* is one variant at one concurrency over
all blocks. The *baseline* is the first variant of the plan: ratios are relative to it. Energies are *active*
ones, above the device's idle draw, unless the name says idle or measured; whether they are measured,
estimated or simulated, `server.meter.source.quality` says.
"""
_CLASSES = (
    (schema.Record, "A line of `records.jsonl`: one request, those outside the window included."),
    (schema.Results, "`results.json`."),
    (schedule.Plan, "`plan`: what the sweep was to do."),
    (schema.DatasetSummary, "`dataset`: what was replayed."),
    (schema.Accuracy, "`accuracy`, by variant: rows whose highest logit is at the label. Each counts once."),
    (schema.Point, "`points`. Percentiles pool the blocks; intervals are over blocks, which are the sample."),
    (stats.Interval, "Where a type says so: a mean over blocks with its two-sided 95 % interval."),
    (schema.Verdict, "`verdicts` of a point: why it must not be published as it is."),
    (schema.CellResult, "`cells`, as they ran. Latencies: of requests sent and answered within the window."),
    (schema.CellEnergy, "`energy` of a cell. Accounts: the ledger's growth over it, settlement included."),
)


def page() -> str:
    parts = [_HEAD]
    for cls, about in _CLASSES:
        name = cls.__name__
        comments = _comments(cls)
        rows = []
        for item in fields(cls):
            meaning = (
                comments.get(item.name) or MEANINGS.get(f"{name}.{item.name}") or MEANINGS.get(item.name)
            )
            if not meaning:
                raise LookupError(f"{name}.{item.name}: no comment in the code and no entry in meanings.py")
            rows.append([f"`{item.name}`", _kind(str(item.type)), meaning.replace("None for", "null for")])
        parts.append(
            "\n".join([f"## {name}", "", about, "", *table(["field", "type", "meaning"], rows)]) + "\n"
        )
    return "\n".join(parts)


def _comments(cls: type) -> dict[str, str]:
    """Field to the comment behind it, joined where it runs over several lines."""
    source = inspect.getsource(cls)
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = re.search(r"#\s*(.*)", lines[node.lineno - 1])
            if comment:
                found[node.target.id] = comment[1]
    return found


def _kind(text: str) -> str:
    for python, shown in (
        ("dict[str, Any]", "object"), ("tuple[str, ...]", "[text]"), ("tuple[int, ...]", "[integer]"),
        ("list[str]", "[text]"), ("str", "text"), ("int", "integer"), ("float", "number"),
        ("bool", "true/false"), ("None", "null"),
    ):  # fmt: skip
        text = re.sub(rf"(?<!\w){re.escape(python)}(?!\w)", shown, text)
    text = re.sub(r"dict\[text, (\w+)\]", r"object of \1", re.sub(r"list\[(\w+)\]", r"[\1]", text))
    return re.sub(
        r"\b(Record|Plan|DatasetSummary|Accuracy|Point|Interval|Verdict|CellResult|CellEnergy)\b",
        lambda found: f"[{found[1]}](#{found[1].lower()})",
        text.replace(" | ", " or "),
    )
