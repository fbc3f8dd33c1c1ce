"""The JSON Schema of results is what the dataclasses say, and what is written keeps to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests import ROOT
from tests.fixtures.loadgen_results import ARMS, OPEN, PEER, make_point, make_record, make_results, no_energy
from wattserve_loadgen.model.codec import plain
from wattserve_loadgen.model.results import Results, Search, Trial, Verdict
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.results.folder import ResultsFolder, read_results
from wattserve_loadgen.results.json_schema import PATH, json_schema, schema_text, unit_of

DEMO = ROOT / "docs" / "results" / "2026-11-20-demo-look"
SCHEMA = json.loads(PATH.read_text(encoding="utf-8"))
CHECKED = jsonschema.Draft202012Validator(SCHEMA)


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(plain(value)))


def written(folder: Path, results: Results) -> Any:
    made = ResultsFolder(folder)
    made.start()
    made.write(results)
    return json.loads((folder / "results.json").read_text())


def test_the_committed_schema_is_not_stale() -> None:
    assert PATH.read_text(encoding="utf-8") == schema_text(), (
        "python -m wattserve_loadgen.results.json_schema"
    )


def test_it_is_a_schema_of_its_draft() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_written_results_keep_to_it(tmp_path: Path) -> None:
    search = Search("fp32", "p99<50ms", 90.0, None, [Trial(90.0, None, 2.5, "met", "")], "budget")
    spoilt = make_point(verdicts=[Verdict("too short", "too short to publish")])
    results = make_results(arms=(*ARMS, PEER), loads=(closed(1), OPEN), searches=[search])
    results.points.append(spoilt)
    CHECKED.validate(written(tmp_path / "out", results))


def test_committed_results_keep_to_it() -> None:
    CHECKED.validate(as_json(read_results(DEMO)))


def test_records_keep_to_their_part_of_it() -> None:
    record = jsonschema.Draft202012Validator({"$ref": "#/$defs/Record", "$defs": SCHEMA["$defs"]})
    for one in (make_record(), make_record(tokens=None, predicted=[None], energy_uj=None)):
        assert not list(record.iter_errors(plain(one)))
    assert [error.message for error in record.iter_errors(plain(make_record()) | {"rows": 0})] == [
        "0 is not of type 'array'"
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 1}, "2 was expected"),
        ({"ended": None}, "None is not of type 'string'"),
        ({"cells": [{}]}, "'position' is a required property"),
        ({"accuracy": {"fp32": {"correct": 1}}}, "'rows' is a required property"),
    ],
)
def test_results_of_another_shape_do_not_keep_to_it(changes: dict[str, Any], message: str) -> None:
    value = plain(make_results()) | changes
    assert message in [error.message for error in CHECKED.iter_errors(value)]


def test_joules_that_are_not_known_are_null(tmp_path: Path) -> None:
    results = make_results()
    cell = plain(results.cells[0]) | {"energy": plain(no_energy())}
    assert not list(CHECKED.iter_errors(as_json(results) | {"cells": [cell]}))


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("p99_bound_ns", "nanoseconds"),
        ("active_uj_per_token", "microjoules per token"),
        ("client_cpu_us_per_request", "microseconds per request"),
        ("rate_per_second", "per second"),
        ("window_seconds", "seconds"),
        ("seconds", "seconds"),
        ("blocks", None),
    ],
)
def test_a_unit_is_told_by_the_end_of_the_name(name: str, unit: str | None) -> None:
    assert unit_of(name) == unit


def test_every_field_is_described() -> None:
    for name, one in SCHEMA["$defs"].items():
        for field, about in one["properties"].items():
            assert about["description"], f"{name}.{field}"
