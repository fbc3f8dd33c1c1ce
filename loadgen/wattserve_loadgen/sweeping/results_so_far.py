"""The results of a sweep while it runs: kept cell by cell, made into points, on disk before the next."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from wattserve_common.dataset import NO_LABEL, Dataset
from wattserve_loadgen.figures.accuracy import measure_accuracy, note_predictions
from wattserve_loadgen.figures.measure import CellSamples, cell_samples
from wattserve_loadgen.figures.points import make_points
from wattserve_loadgen.model.cells import CellResult, Record
from wattserve_loadgen.model.results import Accuracy, Ceiling, Results, TargetSummary
from wattserve_loadgen.plan.schedule import Plan
from wattserve_loadgen.results.folder import ResultsFolder
from wattserve_loadgen.sweeping.readings import Readings


class ResultsSoFar:
    """The results of one sweep, growing."""

    def __init__(
        self,
        results: Results,
        dataset: Dataset,
        folder: ResultsFolder,
        sensor_periods: Mapping[str, float | None],
        ceilings: Mapping[str, Ceiling | None],
    ) -> None:
        """`sensor_periods`, `ceilings`: by the arm's name."""
        self.results = results
        self._folder = folder
        self._labels = {row: one for row, one in enumerate(dataset.labels.tolist()) if one != NO_LABEL}
        self._sensor_periods, self._ceilings = sensor_periods, ceilings
        self._samples: dict[int, CellSamples] = {}
        self._predictions: dict[str, dict[int, list[int | None]]] = {}

    @property
    def plan(self) -> Plan:
        return self.results.plan

    def restore(self, records: Iterable[Record]) -> int:
        """Take in the records of the cells that `results` holds already, cell by cell as they were written.
        Returns the last stamp, in nanoseconds since the start of the sweep.
        """
        loads = {cell.position: self.results.load(cell.load) for cell in self.results.cells}
        last = 0
        for position, group in groupby(records, key=lambda record: record.cell):
            cell = list(group)
            self._samples[position] = cell_samples(loads[position], cell)
            note_predictions(self._predictions, cell)
            last = max(last, *(record.done_ns for record in cell))
        return last

    def keep(
        self,
        result: CellResult | None,
        records: Sequence[Record],
        readings: Iterable[Readings],
        target: TargetSummary,
    ) -> None:
        """A cell that ran: on disk when this returns. One whose window did not open leaves nothing.
        `target`: its server as it describes itself now, when a lazily loaded variant says more than at first.
        """
        if result is None:
            return
        self._folder.add_records(records)
        lines = [json.dumps(line) + "\n" for meter in readings for line in meter.unsaved()]
        self._folder.add_readings(lines)
        load = next(load for _, load in self.plan.pairs() if load.name == result.load)
        self._samples[result.position] = cell_samples(load, records)
        note_predictions(self._predictions, records)
        targets = [target if old.name == target.name else old for old in self.results.targets]
        cells = [*self.results.cells, result]
        self.results = replace(self.results, cells=cells, targets=targets)
        self.refresh()

    def refresh(self) -> None:
        """Make the points anew from the cells, and write everything."""
        cells = self.results.cells
        rows, accuracy = 0, dict[str, Accuracy]()
        if not self.results.accuracy_reason:
            baseline = self.plan.baseline.name
            rows, accuracy = measure_accuracy(self._predictions, self._labels, baseline)
        points = make_points(self.plan, cells, self._samples, self._sensor_periods, self._ceilings)
        reason = _energy_reason(cells)
        self.change(points=points, accuracy_rows=rows, accuracy=accuracy, energy_reason=reason)

    def change(self, **fields: Any) -> None:
        """Other values for these fields of the results: on disk when this returns."""
        self.results = replace(self.results, **fields)
        self._folder.write(self.results)

    def note(self, text: str) -> None:
        """Something that happened between cells."""
        self.change(interruptions=[*self.results.interruptions, text])

    def remark(self, notes: Sequence[str]) -> None:
        """What a reader must know; once."""
        self.results = replace(self.results, notes=list(dict.fromkeys([*self.results.notes, *notes])))


def _energy_reason(cells: Sequence[CellResult]) -> str:
    """Why the whole sweep has no joules, or ""."""
    if any(cell.energy.active_uj_per_request is not None for cell in cells):
        return ""
    return cells[0].energy.reason if cells else "nothing was measured"
