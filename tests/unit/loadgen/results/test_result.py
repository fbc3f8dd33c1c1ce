"""The results folder, and the way of results to JSON and back."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.loadgen_results import ARMS, OPEN, PEER, make_record, make_results
from wattserve_client import Limits, Meter, SensorProbe, ServerInfo, Variant
from wattserve_client.wire import from_message
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.codec import ShapeError, as_stored, build, plain
from wattserve_loadgen.model.results import Results, Search, Trial
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.results.folder import ResultsFolder, read_columns, read_results, replace_file
from wattserve_loadgen.results.records import read_records
from wattserve_proto.v1 import inference_pb2 as pb

ALIKE = "they must be alike, and not empty"


def started(path: Path) -> ResultsFolder:
    folder = ResultsFolder(path)
    folder.start()
    return folder


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(ResultsError) as caught:
        ResultsFolder(path, **options)
    return str(caught.value)


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    results = make_results()
    started(tmp_path / "out").write(results)
    assert read_results(tmp_path / "out") == results


def test_results_without_any_figure_come_back_too(tmp_path: Path) -> None:
    results = make_results(cells=[], points=[], accuracy={}, ended="interrupted by the user")
    started(tmp_path / "out").write(results)
    assert read_results(tmp_path / "out") == results


def test_peers_open_loops_and_searches_come_back_too(tmp_path: Path) -> None:
    search = Search("fp32", "p99<50ms", 90.0, None, [Trial(90.0, None, 2.5, "met", "")], "budget")
    results = make_results(arms=(*ARMS, PEER), loads=(closed(2), OPEN), searches=[search])
    plan = replace(results.plan, own_loads={"int8": [closed(16)]})
    results = replace(results, plan=plan)
    started(tmp_path / "out").write(results)
    assert read_results(tmp_path / "out") == results


def test_every_cell_is_one_line_of_the_file(tmp_path: Path) -> None:
    started(tmp_path / "out").write(make_results())
    lines = (tmp_path / "out" / "results.json").read_text().splitlines()
    assert sum('"position":' in line for line in lines) == 18


def test_records_come_back_as_columns_of_those_that_count(tmp_path: Path) -> None:
    folder = started(tmp_path / "out")
    folder.add_records([make_record(energy_uj=500), make_record(in_window=False)])
    folder.add_records([make_record(ok=False), make_record(energy_uj=None, tokens=3, done_ns=9_000)])
    columns = read_columns(folder.path)[("fp32", "concurrency 4")]
    assert columns.latency_ns.tolist() == [2_000, 8_000]
    assert columns.service_ns.tolist() == [2_000, 8_000]
    assert columns.tokens.tolist() == [10, 3]
    assert columns.padded_tokens.tolist() == [12, 12]
    assert columns.energy_uj[0] == 500
    assert str(columns.energy_uj[1]) == "nan"
    assert [str(one) for one in columns.lag_ns] == ["nan", "nan"]


def test_an_open_loop_has_its_response_time_from_the_schedule(tmp_path: Path) -> None:
    folder = started(tmp_path / "out")
    folder.add_records([make_record(load="100/s poisson", scheduled_ns=400, sent_ns=1_000, done_ns=3_000)])
    columns = read_columns(folder.path)[("fp32", "100/s poisson")]
    assert (columns.latency_ns[0], columns.service_ns[0], columns.lag_ns[0]) == (2_600, 2_000, 600)


def test_images_have_no_tokens_in_the_columns(tmp_path: Path) -> None:
    folder = started(tmp_path / "out")
    folder.add_records([make_record(tokens=None)])
    assert str(read_columns(folder.path)[("fp32", "concurrency 4")].tokens[0]) == "nan"


def test_a_line_of_records_has_every_field_by_name(tmp_path: Path) -> None:
    folder = started(tmp_path / "out")
    folder.add_records([make_record()])
    line = json.loads((folder.path / "records.jsonl").read_text())
    wanted = "cell block arm load rows tokens scheduled_ns sent_ns done_ns in_window ok code message"
    energy = "energy_uj energy_low_uj energy_high_uj energy_state energy_reason"
    rest = "batch_size padded_tokens queue_ns compute_ns generation server"
    assert list(line) == f"{wanted} predicted labels receipt_id {energy} {rest}".split()


def test_records_come_back_in_the_order_in_which_they_were_added(tmp_path: Path) -> None:
    folder = started(tmp_path / "out")
    folder.add_records(
        [make_record(cell=1), make_record(cell=1, rows=[3, 4], predicted=[1, 1], labels=[1, 0])]
    )
    folder.add_records([make_record(cell=2, scheduled_ns=5)])
    assert [one.rows for one in read_records(folder.path)] == [[0], [3, 4], [0]]
    assert list(read_records(tmp_path)) == []


def test_only_files_of_a_results_folder_are_written_into_it(tmp_path: Path) -> None:
    folder = started(tmp_path / "out")
    folder.write_text("plan.toml", "preset = 'look'")
    assert (folder.path / "plan.toml").read_text() == "preset = 'look'"
    with pytest.raises(ValueError, match="does not belong"):
        folder.write_text("../elsewhere", "")


def test_the_environment_stands_alone(tmp_path: Path) -> None:
    folder = started(tmp_path / "out")
    folder.write(make_results())
    found = json.loads((folder.path / "environment.json").read_text())
    assert found["client"]["cpu_model"] == "a CPU"
    assert [target["protocol"] for target in found["targets"]] == ["native unary"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    replace_file(path, "old")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ResultsError, match=r"cannot be written \(No space left on device\)"):
        replace_file(path, "new")
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"results.json": "old"}


def test_a_new_folder_is_taken_and_a_used_one_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    folder = started(out)
    folder.write(make_results())
    folder.add_records([make_record()])
    assert refusal(out) == (
        f"{out}: holds results already; choose another --out, --resume to go on with them, or --force to"
        " replace them"
    )
    ResultsFolder(out, force=True).start()
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "records.jsonl": "",
        "readings.jsonl": "",
    }


def test_what_a_sweep_killed_at_its_start_left_counts_as_results(tmp_path: Path) -> None:
    started(tmp_path / "out")
    assert "holds results already" in refusal(tmp_path / "out")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("content", ["{}", "not json", "[1]", "[" * 100_000])
def test_a_folder_of_something_else_is_never_touched(tmp_path: Path, content: str, force: bool) -> None:
    (tmp_path / "results.json").write_text(content)
    assert refusal(tmp_path, force=force) == f"{tmp_path}: holds other files; choose a new folder for --out"
    assert (tmp_path / "results.json").read_text() == content


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    assert refusal(tmp_path / "out") == f"{tmp_path}/out: is a file; --out takes a folder"


def read_refusal(folder: Path, text: str | None) -> str:
    if text is not None:
        (folder / "results.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ResultsError) as caught:
        read_results(folder)
    return str(caught.value).removeprefix(f"{folder}/results.json: ").removeprefix(f"{folder}: ")


def test_results_that_are_not_there_or_not_ours_are_refused(tmp_path: Path) -> None:
    assert read_refusal(tmp_path, None) == "no results.json in it; give the --out folder of a sweep"
    for text in ("{", '{"\udcff": 1}', "[" * 100_000):
        assert read_refusal(tmp_path, text).startswith("not readable as JSON")
    assert read_refusal(tmp_path, "{}").startswith("not the results of a sweep")


def changed(tmp_path: Path, **changes: Any) -> str:
    started(tmp_path / "out").write(make_results())
    value = json.loads((tmp_path / "out" / "results.json").read_text())
    value.update(changes)
    return json.dumps({name: one for name, one in value.items() if one != "drop"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"boundary": "drop"}, "boundary: missing"),
        ({"accuracy_rows": "ten"}, "accuracy_rows: expected int, got str"),
        ({"accuracy_rows": True}, "accuracy_rows: expected int, got bool"),
        ({"command": "loadgen"}, "command: expected array, got str"),
        ({"accuracy": []}, "accuracy: expected object, got array"),
        ({"plan": 5}, "plan: expected object, got int"),
        ({"cells": [{}]}, "cells[0].position: missing"),
        ({"accuracy": {"fp32": {"correct": 1.5}}}, "accuracy[...].correct: expected int, got float"),
        ({"searches": [{"arm": 3}]}, "searches[0].arm: expected str, got int"),
        ({"accuracy": {"fp32": {"correct": 0, "rows": 0}}}, "accuracy[...].rows: expected int >= 1"),
        ({"client": {"packages": "grpcio"}}, "client.packages: expected object | null, got str"),
        ({"notes": [10**400]}, "notes[0]: no sweep measures more than 1e+30"),
        (
            {"notes": json.loads("[" * 60 + "]" * 60)},
            "notes" + "[0]" * 50 + ": lists or objects in it are too deep",
        ),
    ],
)
def test_a_damaged_field_is_named_by_its_path(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert read_refusal(tmp_path, changed(tmp_path, **changes)) == message


def test_a_figure_that_is_no_number_is_refused(tmp_path: Path) -> None:
    value = plain(make_results())
    value["cells"][1]["mean_tokens"] = float("inf")
    assert read_refusal(tmp_path, json.dumps(value)).startswith("not readable as JSON")


def test_fields_of_a_later_loadgen_are_left_out() -> None:
    value = {**plain(make_results()), "later": 1}
    assert build(Results, value) == make_results()


def test_what_is_no_object_is_named_as_the_file() -> None:
    with pytest.raises(ShapeError, match="the file: expected object, got array"):
        build(Results, [])


@pytest.mark.parametrize("line", ['{"ok": true', '{"later": ' + "[" * 100_000])
def test_a_damaged_record_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    folder = started(tmp_path / "out")
    folder.add_records([make_record()])
    with (folder.path / "records.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ResultsError, match=r"records\.jsonl: line 2: not a record of a sweep"):
        read_columns(folder.path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": [2000]}, "row 2000; the dataset has 2000 rows"),
        ({"rows": [-5]}, "not a record of a sweep (rows[0]: expected int >= 0)"),
        ({"rows": []}, f"rows, predicted, labels: of lengths 0, 1, 1; {ALIKE}"),
        ({"rows": [1, 2]}, f"rows, predicted, labels: of lengths 2, 1, 1; {ALIKE}"),
        ({"labels": []}, f"rows, predicted, labels: of lengths 1, 1, 0; {ALIKE}"),
        ({"labels": [-7]}, "not a record of a sweep (labels[0]: expected int >= 0)"),
        ({"labels": [2**63]}, "not a record of a sweep (labels[0]: expected int <= 4611686018427387904)"),
        ({"done_ns": 2**70}, "not a record of a sweep (done_ns: expected int <= 4611686018427387904)"),
        ({"batch_size": -3}, "not a record of a sweep (batch_size: expected int >= 0)"),
        ({"arm": "\udcff"}, "not a record of a sweep"),
    ],
)
def test_a_record_that_cannot_be_is_named_by_its_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = started(tmp_path / "out")
    folder.add_records([make_record(rows=[1999])])
    line = json.dumps(plain(make_record()) | changes, ensure_ascii=False) + "\n"
    with (folder.path / "records.jsonl").open("ab") as file:
        file.write(line.encode(errors="surrogateescape"))
    with pytest.raises(ResultsError) as caught:
        read_columns(folder.path, dataset_rows=2000)
    assert str(caught.value) == f"{folder.path}/records.jsonl: line 2: {message}"


def test_figures_that_are_no_numbers_never_reach_the_file(tmp_path: Path) -> None:
    folder = started(tmp_path / "out")
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.write(
            replace(make_results(), cells=[replace(make_results().cells[0], mean_tokens=float("nan"))])
        )


def test_what_a_server_says_is_kept_as_plain_values_with_absence_kept() -> None:
    message = pb.ServerInfo(
        labels=["a", "b"],
        versions={"torch": "2", "python": "3"},
        model_parameters=66_955_010,
        meter=pb.MeterInfo(source=pb.EnergySource(quality=pb.ENERGY_QUALITY_SIMULATED), idle_watts=0.0),
        variants=[pb.VariantInfo(name="fp32", native=True)],
    )
    found = as_stored(from_message(ServerInfo, message))
    assert found["labels"] == ["a", "b"]
    assert found["versions"] == {"python": "3", "torch": "2"}
    assert found["model_parameters"] == 66_955_010
    assert found["meter"]["source"]["quality"] == "simulated"
    assert (found["meter"]["idle_watts"], found["meter"]["update_period_seconds"]) == (0.0, None)
    assert (found["variants"][0]["name"], found["variants"][0]["native"]) == ("fp32", True)
    assert (found["meter"]["probe"], found["limits"]["max_sequence_tokens"]) == (None, 0)
    assert found == json.loads(json.dumps(found))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ServerInfo, pb.ServerInfo),
        (Variant, pb.VariantInfo),
        (Limits, pb.Limits),
        (Meter, pb.MeterInfo),
        (SensorProbe, pb.SensorProbe),
    ],
)
def test_results_keep_every_field_that_the_protocol_has_for_a_server(kind: Any, message: Any) -> None:
    assert {field.name for field in fields(kind)} == {field.name for field in message.DESCRIPTOR.fields}
