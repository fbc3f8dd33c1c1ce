"""The results of a sweep that goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from tests.fixtures.loadgen_results import make_cell, make_record, make_results
from wattserve_common.dataset import Dataset
from wattserve_loadgen.results.folder import ResultsFolder
from wattserve_loadgen.sweeping.results_so_far import ResultsSoFar


def test_a_record_is_taken_in_under_its_cells_load_whatever_it_names(tmp_path: Path) -> None:
    dataset = cast(Dataset, SimpleNamespace(labels=np.array([1, -1])))
    results = make_results(cells=[make_cell(position=9)])
    kept = ResultsSoFar(results, dataset, ResultsFolder(tmp_path), {}, {})
    records = [make_record(cell=9), make_record(cell=9, load="edited", done_ns=4_000)]
    assert kept.restore(records) == 4_000
    assert kept.restore(reversed(records)) == 4_000
