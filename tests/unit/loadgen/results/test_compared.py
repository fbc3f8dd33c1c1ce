"""One more compared figure is one edit: a field of Ratios."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Annotated

import pytest

from tests.fixtures.loadgen_results import INT8, make_results, with_made_points
from wattserve_common.stats import Interval
from wattserve_loadgen.figures import points
from wattserve_loadgen.model.ratios import COMPARED, Compared, Ratios, compared_figures
from wattserve_loadgen.results.compare import compare
from wattserve_loadgen.results.csv_table import columns, csv_text
from wattserve_loadgen.results.rig_checks import twins


@dataclass(frozen=True)
class MoreRatios(Ratios):
    server_time: Annotated[
        Interval | None, Compared("time on the server", "↓", lambda cell: cell.mean_compute_ns)
    ] = None


def test_one_more_compared_figure_is_a_field_of_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "Ratios", MoreRatios)
    monkeypatch.setitem(COMPARED, "server_time", compared_figures(MoreRatios)["server_time"])
    results = with_made_points(make_results())
    int8 = next(point for point in results.points if point.arm == INT8.name)
    assert isinstance(int8.shown.ratios, MoreRatios)
    assert int8.shown.ratios.server_time == Interval(1.0, 1.0, 1.0, 3)
    rows = csv.DictReader(io.StringIO(csv_text(results)))
    row = next(row for row in rows if row["arm"] == INT8.name)
    assert (row["server_time_ratio"], row["server_time_ratio_high"]) == ("1", "1")
    (changes, *_) = [pair.changes for pair in compare(results, results).pairs if pair.arm == INT8.name]
    assert [change.figure for change in changes][-1] == "server time"
    assert twins(results).text.startswith(
        "in 8 of 8 comparisons of the twins"
    )  # four figures under two loads


def test_every_ratio_has_its_columns() -> None:
    names = {column.name for column in columns()}
    wanted = ("rate_ratio", "p50_ratio", "p95_ratio", "active_energy_ratio", "total_energy_ratio")
    assert all({name, f"{name}_low", f"{name}_high"} <= names for name in wanted)
