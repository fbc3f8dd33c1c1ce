"""The part of `validate` that reads records: do they say what results.json says, and did the clock hold?

Pure. Keeps the window's times of one sweep in memory, and what was predicted of each row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from wattserve_common.stats import nearest_rank
from wattserve_loadgen import words
from wattserve_loadgen.figures.account import RECEIPTS
from wattserve_loadgen.figures.accuracy import note_predictions
from wattserve_loadgen.figures.measure import CellSamples, cell_samples
from wattserve_loadgen.model.cells import PERCENTILES, CellEnergy, CellResult, Percentiles, Record
from wattserve_loadgen.model.results import Check, Results
from wattserve_loadgen.plan.load import Load

CLOCK_TOLERANCE_SECONDS = 2.0  # between the two clocks, for what a cell does ahead of its load


@dataclass
class CellFacts:
    """What the records of one cell say."""

    sent: int = 0  # in the window, as all below but the stamps and `receipts_uj`
    answered: int = 0
    energies: int = 0
    energy_uj: int = 0  # of those
    receipts_uj: int = 0  # of all receipts of the cell, in the window or not
    bad_energies: int = 0  # negative, outside their own interval, or not settled
    latency_ns: list[int] = field(default_factory=list)
    service_ns: list[int] = field(default_factory=list)
    lag_ns: list[int] = field(default_factory=list)
    ttft_ns: list[int] = field(default_factory=list)  # of a language model
    first_sent_ns: int | None = None
    last_sent_ns: int = 0
    backwards: int = 0  # requests done before they were sent


@dataclass
class RecordFacts:
    """What all records say."""

    cells: dict[int, CellFacts] = field(default_factory=dict)
    samples: dict[int, CellSamples] = field(default_factory=dict)  # by cell
    labels: dict[int, int] = field(default_factory=dict)  # by row, of those that have one
    unlike_labels: set[int] = field(default_factory=set)  # rows whose records do not agree on it
    predictions: dict[str, dict[int, list[int | None]]] = field(default_factory=dict)  # by arm and row

    @property
    def commonest_share(self) -> float | None:
        """Of the rows that were answered, how many carry the label that most carry."""
        counts = Counter(self.labels.values())
        return max(counts.values()) / len(self.labels) if counts else None


def gather(records: Iterable[Record], loads: Mapping[str, Load]) -> RecordFacts:
    """One pass over the records, which stand cell by cell. loads: the plan's, by name."""
    facts = RecordFacts()
    for position, group in groupby(records, key=lambda record: record.cell):
        own = list(group)
        cell = facts.cells.setdefault(position, CellFacts())
        for record in own:
            _note_stamps(cell, record)
            if record.in_window:
                _note_request(cell, record)
            if record.ok and record.energy_uj is not None:
                cell.receipts_uj += record.energy_uj
        _note_samples(facts, own, loads)
    return facts


def _note_samples(facts: RecordFacts, own: Sequence[Record], loads: Mapping[str, Load]) -> None:
    load = loads.get(own[0].load)
    if load is not None:
        facts.samples[own[0].cell] = cell_samples(load, own)
    note_predictions(facts.predictions, own)
    for record in own:
        if record.ok and record.in_window:
            for row, label in zip(record.rows, record.labels, strict=True):
                if label is not None and facts.labels.setdefault(row, label) != label:
                    facts.unlike_labels.add(row)


def _note_stamps(cell: CellFacts, record: Record) -> None:
    if cell.first_sent_ns is None or record.sent_ns < cell.first_sent_ns:
        cell.first_sent_ns = record.sent_ns
    cell.last_sent_ns = max(cell.last_sent_ns, record.sent_ns)
    cell.backwards += record.done_ns < record.sent_ns


def _note_request(cell: CellFacts, record: Record) -> None:
    cell.sent += 1
    if record.scheduled_ns is not None:
        cell.lag_ns.append(record.sent_ns - record.scheduled_ns)
    if not record.ok:
        return
    cell.answered += 1
    cell.latency_ns.append(record.latency_ns)
    cell.service_ns.append(record.done_ns - record.sent_ns)
    if record.ttft_ns is not None:
        cell.ttft_ns.append(record.ttft_ns)
    if record.energy_uj is not None:
        cell.energies += 1
        cell.energy_uj += record.energy_uj
        low = record.energy_uj if record.energy_low_uj is None else record.energy_low_uj
        high = record.energy_uj if record.energy_high_uj is None else record.energy_high_uj
        cell.bad_energies += not 0 <= low <= record.energy_uj <= high or record.energy_state != "settled"


def records_agree(results: Results, facts: RecordFacts) -> Check:
    """Counts, means, percentiles and joules of every cell, made again from its records."""
    wrong = []
    for cell in results.cells:
        cell_facts = facts.cells.get(cell.position, CellFacts())
        said = _disagreement(cell, cell_facts)
        if said:
            wrong.append(f"cell {cell.position} ({cell.arm}, {cell.load}): {said}")
    stray = sorted(set(facts.cells) - {cell.position for cell in results.cells})
    if stray:
        wrong.append(f"records of {len(stray)} cells that results.json does not know (cell {stray[0]})")
    count = sum(cell.sent for cell in facts.cells.values())
    text = (
        f"{count:,} requests of {len(results.cells)} windows give the stored counts, percentiles and joules"
    )
    return Check("records agree", not wrong, words.first_of(wrong) or text)


def _disagreement(cell: CellResult, cell_facts: CellFacts) -> str:
    for name, stored, counted in (
        ("sent", cell.sent, cell_facts.sent),
        ("answered", cell.answered, cell_facts.answered),
        ("settled", cell.energy.settled, cell_facts.energies),
    ):
        if stored != counted:
            return f"{stored} {name}, {counted} by its records"
    if cell.energy.method == RECEIPTS:
        said = _joules_differ(cell.energy, cell_facts)
        if said:
            return said
    offline = cell.service is not None and cell.latency.samples == 0
    ttft = None if cell.generated is None or offline else cell.generated.ttft
    for name, percentiles, values in (
        ("latency", None if offline else cell.latency, cell_facts.latency_ns),
        ("service time", cell.service, cell_facts.service_ns),
        ("lag", cell.lag, cell_facts.lag_ns),
        ("TTFT", ttft, cell_facts.ttft_ns),
    ):
        if percentiles is not None:
            said = _differs(percentiles, np.array(sorted(values), dtype=np.int64))
            if said:
                return f"{name}: {said}"
    return ""


def _joules_differ(energy: CellEnergy, cell_facts: CellFacts) -> str:
    pairs: list[tuple[float | None, float, str]] = [
        (energy.receipts_uj, cell_facts.receipts_uj, "microjoules of all receipts")
    ]
    if energy.active_uj_per_request is not None and cell_facts.energies:
        mean_uj = energy.active_uj_per_request - (energy.failed_uj_per_request or 0.0)
        pairs.append((mean_uj, cell_facts.energy_uj / cell_facts.energies, "active microjoules a request"))
    for stored, counted, what in pairs:
        if stored is not None and not math.isclose(stored, counted, rel_tol=1e-9):
            return f"{stored:.6g} {what}, {counted:.6g} by its records"
    return ""


def _differs(stored: Percentiles, values: npt.NDArray[np.int64]) -> str:
    """Of `values` in ascending order. A percentile that is not stored says nothing."""
    if stored.samples != len(values):
        return f"{stored.samples} samples, {len(values)} by its records"
    if not len(values):
        return ""
    pairs: list[tuple[str, float | None, float]] = [
        ("mean_ns", stored.mean_ns, float(np.mean(values))),
        ("max_ns", stored.max_ns, int(values[-1])),
    ]
    for name, percent in PERCENTILES.items():
        pairs.append((name, getattr(stored, name), int(values[nearest_rank(len(values), percent) - 1])))
    for name, one, other in pairs:
        if one is not None and not math.isclose(one, other, rel_tol=1e-9):
            return f"{name} {one:.0f}, {other:.0f} by its records"
    return ""


def record_energies(facts: RecordFacts) -> str:
    """What is wrong with the energies of single receipts, or nothing."""
    bad = sum(cell.bad_energies for cell in facts.cells.values())
    return (
        f"{bad} receipts are negative, outside their own interval, or have joules and are not settled"
        if bad
        else ""
    )


def clock_held(results: Results, facts: RecordFacts) -> Check:
    """Stamps run forwards from cell to cell; and between cells the wall clock moved as far as they did.

    A sweep that was resumed counts from another start, and is held against the wall clock no more.
    """
    wrong = []
    backwards = sum(cell.backwards for cell in facts.cells.values())
    if backwards:
        wrong.append(f"{backwards} requests were answered before they were sent")
    largest, before, offset = 0.0, -1, None
    for cell in sorted(results.cells, key=lambda one: one.position):
        cell_facts = facts.cells.get(cell.position)
        if cell_facts is None or cell_facts.first_sent_ns is None:
            continue
        if cell_facts.first_sent_ns < before and not results.interruptions:
            wrong.append(f"cell {cell.position} began before the one ahead of it ended")
        before = cell_facts.last_sent_ns
        if cell.conditions is not None:
            now = cell.conditions.started_unix_seconds - cell_facts.first_sent_ns / 1e9
            largest = largest if offset is None else max(largest, abs(now - offset))
            offset = now
    if results.interruptions:
        text = "stamps run forwards; the sweep was interrupted, so it is held against no other clock"
        return Check("clock", not wrong, words.first_of(wrong) or text)
    if largest > CLOCK_TOLERANCE_SECONDS:
        wrong.append(f"the wall clock stepped by {largest:.1f} s against the monotonic one between two cells")
    text = (
        f"stamps run forwards; wall clock and monotonic clock agree within {largest:.2f} s from cell to cell"
    )
    return Check("clock", not wrong, words.first_of(wrong) or text)
