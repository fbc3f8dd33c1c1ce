"""`loadgen validate`: is a result worth showing? The checklist of a sweep, each line with its figures.

The list is the one that the project began with (after a run, verify: enough power samples for the time, every
variant on its declared device, valid energy, steady power), and more. Whether
single points may be published is another matter: their verdicts say. Reads records one by one; runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.model.results import Check, Results
from wattserve_loadgen.results import checks, rig_checks
from wattserve_loadgen.results.folder import read_results
from wattserve_loadgen.results.made_again import accuracy_agrees, points_agree
from wattserve_loadgen.results.readings import read_meters, readings_agree
from wattserve_loadgen.results.record_checks import RecordFacts, clock_held, gather, records_agree
from wattserve_loadgen.results.records import PARQUET_FILE, RECORDS_FILE, read_records

_NO_RECORDS = "without records.jsonl this cannot be seen"

_OF_RESULTS: tuple[Callable[[Results], Check], ...] = (
    checks.every_cell,
    rig_checks.sensor_samples,
    rig_checks.no_gaps,
    rig_checks.steady_power,
    checks.steady_state,
    checks.declared_devices,
    checks.labelled,
    rig_checks.closed_accounts,
    rig_checks.client_ceiling,
    rig_checks.twins,
)
_OF_RECORDS: tuple[tuple[str, Callable[[Results, RecordFacts], Check]], ...] = (
    ("records agree", records_agree),
    ("points agree", points_agree),
    ("accuracy agrees", accuracy_agrees),
    ("clock", clock_held),
)


def validate(results: Results, records: Iterable[Record] | None = None) -> list[Check]:
    """Every check. Without `records` those that need them do not apply."""
    loads = {load.name: load for _, load in results.plan.pairs()}
    facts = None if records is None else gather(records, loads)
    judged = [check(results) for check in _OF_RESULTS]
    judged += [checks.finite_figures(results, facts), checks.plausible_accuracy(results, facts)]
    for name, check in _OF_RECORDS:
        judged.append(Check(name, None, _NO_RECORDS) if facts is None else check(results, facts))
    return judged


def validate_folder(folder: Path) -> list[Check]:
    """Of a results folder; ResultsError when it cannot be read."""
    results = read_results(folder)
    there = any((folder / name).is_file() for name in (RECORDS_FILE, PARQUET_FILE))
    judged = validate(results, read_records(folder, results.dataset.rows) if there else None)
    return [*judged, readings_agree(results, read_meters(folder))]


def failed(judged: Iterable[Check]) -> bool:
    return any(check.passed is False for check in judged)
