"""Results of another version are refused, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures.loadgen_results import make_results
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.codec import plain
from wattserve_loadgen.results.folder import read_results


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            3,
            "schema_version: version 3 was written by a newer loadgen (9.9); this one reads version 2:"
            " upgrade it",
        ),
        (
            1,
            "schema_version: version 1 was written until 2026-11-21, and a loadgen of that day was"
            " the last to read it; open its report.html, or run the sweep again",
        ),
        (0, "schema_version: 0 is no version of these results"),
        (None, "schema_version: None is no version of these results"),
        ("2", "schema_version: '2' is no version of these results"),
    ],
)
def test_a_version_that_is_not_known_is_refused(tmp_path: Path, version: object, message: str) -> None:
    value = plain(make_results()) | {"schema_version": version, "loadgen_version": "9.9"}
    (tmp_path / "results.json").write_text(json.dumps(value))
    with pytest.raises(ResultsError) as caught:
        read_results(tmp_path)
    assert str(caught.value) == f"{tmp_path}/results.json: {message}"
