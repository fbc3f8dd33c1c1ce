"""The client's ceiling: measuring it, and the file that remembers it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.fake_server.answers import Raw
from tests.fixtures.fake_server.memory import MemoryServer, memory_servers
from wattserve_loadgen.drive import calibration
from wattserve_loadgen.drive.calibration import (
    CalibrationError,
    ClientCeiling,
    cache_file,
    ensure_ceiling,
    measure_ceiling,
    null_server,
    size_class,
    store_ceiling,
    stored_ceiling,
)
from wattserve_loadgen.drive.job import Job
from wattserve_loadgen.drive.null_server import KINDS, canned_answer
from wattserve_loadgen.drive.processes import JobRun
from wattserve_loadgen.plan.load import OFFLINE, Load
from wattserve_loadgen.target.wire import Connection
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb

KNOWN = ClientCeiling(
    kind="unary",
    processes=1,
    request_bytes=256,
    concurrency=64,
    requests_per_second=10_000.0,
    cpu_seconds_per_request=85e-6,
    cpu_share=0.85,
    half_rate_lag_p50_ns=40_000,
    half_rate_lag_p99_ns=400_000,
    half_rate_lag_max_ns=900_000,
    measured_unix_seconds=1_700_000_000,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "below" / "ceilings.json"


@pytest.mark.parametrize(
    ("request_bytes", "expected"), [(0, 64), (64, 64), (65, 128), (128, 128), (129, 256), (600_000, 1 << 20)]
)
def test_sizes_are_classed_by_the_next_power_of_two(request_bytes: int, expected: int) -> None:
    assert size_class(request_bytes) == expected


def test_a_stored_ceiling_is_found_for_every_size_of_its_class(file: Path) -> None:
    assert store_ceiling(KNOWN, file=file) == ""
    assert stored_ceiling("unary", 129, file=file) == (KNOWN, "")
    assert stored_ceiling("unary", 256, file=file) == (KNOWN, "")


@pytest.mark.parametrize(
    "asked", [("unary", 128, 1), ("unary", 257, 1), ("stream", 256, 1), ("unary", 256, 2)]
)
def test_another_kind_size_or_number_of_processes_has_another_ceiling(
    file: Path, asked: tuple[str, int, int]
) -> None:
    store_ceiling(KNOWN, file=file)
    assert stored_ceiling(*asked, file=file) == (None, "")


def test_another_machine_or_version_has_another_ceiling(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_ceiling(KNOWN, file=file)
    for name in calibration.this_client():
        other = calibration.this_client() | {name: "another"}
        with monkeypatch.context() as patch:
            patch.setattr(calibration, "this_client", lambda other=other: other)
            assert stored_ceiling("unary", 256, file=file) == (None, "")
    assert stored_ceiling("unary", 256, file=file) == (KNOWN, "")


def test_ceilings_are_kept_beside_each_other_and_replaced_by_newer_ones(file: Path) -> None:
    newer, stream = replace(KNOWN, requests_per_second=9_000.0), replace(KNOWN, kind="stream")
    for one in (KNOWN, stream, newer):
        store_ceiling(one, file=file)
    assert stored_ceiling("unary", 256, file=file) == (newer, "")
    assert stored_ceiling("stream", 256, file=file) == (stream, "")
    assert [path.name for path in file.parent.iterdir()] == ["ceilings.json"]  # no temporary file is left


FOREIGN = [
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[1, 2]",
    b"[" * 100_000,
    b'{"later": ' + b"[" * 100_000,
    b'{"format": 2}',
    b'{"format": 99, "ceilings": {}}',
    b'{"format": 1, "ceilings": {}}',
    b'{"format": 2, "ceilings": {"a": 5}}',
    json.dumps({"format": 2, "ceilings": {"a": {**KNOWN.__dict__, "requests_per_second": "fast"}}}).encode(),
    json.dumps({"format": 2, "ceilings": {"a": {**KNOWN.__dict__, "requests_per_second": 0}}}).encode(),
    json.dumps({"format": 2, "ceilings": {"a": {**KNOWN.__dict__, "cpu_share": float("nan")}}}).encode(),
]


@pytest.mark.parametrize("content", FOREIGN)
def test_a_foreign_file_is_noted_not_used_and_replaced(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    found, note = stored_ceiling("unary", 256, file=file)
    assert found is None
    assert note == f"{file} is no calibration of this loadgen and is not used"
    assert store_ceiling(KNOWN, file=file) == ""
    assert stored_ceiling("unary", 256, file=file) == (KNOWN, "")


def test_a_cache_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    note = store_ceiling(KNOWN, file=tmp_path / "a file" / "ceilings.json")
    assert note.startswith("the client's ceiling is not kept: ")
    assert "cannot be written (" in note


def test_the_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_file() == tmp_path / "wattserve" / "loadgen-calibration.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not allowed by the specification
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_file() == tmp_path / ".cache" / "wattserve" / "loadgen-calibration.json"


def test_it_is_described_in_one_line() -> None:
    assert KNOWN.describe() == (
        "this client reaches 10,000 unary requests/s of up to 256 bytes (1 process, 64 in flight, 85 µs of"
        " client CPU each); at half that rate requests leave 0.40 ms late at p99"
    )


async def test_it_is_measured_once_and_remembered(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    async def measure(kind: str, request_bytes: int, processes: int) -> ClientCeiling:
        measured.append((kind, request_bytes, processes))
        return KNOWN

    monkeypatch.setattr(calibration, "measure_ceiling", measure)
    told: list[str] = []
    for _ in range(2):
        assert await ensure_ceiling("unary", 200, tell=told.append, file=file) == (KNOWN, [])
    assert measured == [("unary", 200, 1)]
    assert told == [
        "measuring first what this client can send at most, which takes 3 s",
        f"{KNOWN.describe()}; kept in {file} for the next time",
    ]


async def test_what_is_wrong_with_the_cache_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(*asked: Any) -> ClientCeiling:
        return KNOWN

    monkeypatch.setattr(calibration, "measure_ceiling", measure)
    (tmp_path / "a file").write_text("")
    told: list[str] = []
    cache = tmp_path / "a file" / "ceilings.json"
    found, notes = await ensure_ceiling("unary", 200, tell=told.append, file=cache)
    assert found == KNOWN
    assert [note.partition(":")[0] for note in notes][-1] == "the client's ceiling is not kept"
    assert told[-1] == f"{KNOWN.describe()}; {notes[-1]}"


def ceiling_of(server_seconds: float, monkeypatch: pytest.MonkeyPatch) -> ClientCeiling:
    """In virtual time, by a server that answers after so long."""

    async def reply(request: bytes, context: object) -> bytes:
        await asyncio.sleep(server_seconds)
        return b""

    server = MemoryServer(Raw(Predict=reply))

    @asynccontextmanager
    async def null_server(kind: str) -> AsyncIterator[Connection]:
        yield Connection(server.address)

    monkeypatch.setattr(calibration, "null_server", null_server)
    monkeypatch.setattr(calibration, "CONCURRENCIES", (4, 8))
    with memory_servers():
        return asyncio.run(measure_ceiling("unary", 100, whole_s=0.8))


def test_the_ceiling_is_the_highest_rate_of_those_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ceiling_of(0.002, monkeypatch)
    assert (found.kind, found.processes, found.request_bytes, found.concurrency) == ("unary", 1, 128, 8)
    assert found.requests_per_second == pytest.approx(8 / 0.002, rel=0.02)
    assert 0 < found.cpu_seconds_per_request < 20e-6
    assert found.cpu_share == pytest.approx(
        found.cpu_seconds_per_request * found.requests_per_second, rel=0.01
    )
    assert (
        0 <= found.half_rate_lag_p50_ns <= found.half_rate_lag_p99_ns <= found.half_rate_lag_max_ns < 50_000
    )


def test_a_machine_too_slow_for_the_time_given_is_measured_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second answer of each of the 8 slots comes after 10 s, of which 0.2 s are the warm-up."""
    assert ceiling_of(5.0, monkeypatch).requests_per_second == pytest.approx(16 / 9.8, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_null_server_answers_every_kind(kind: str) -> None:
    async with null_server(kind) as connection:
        job = Job(connection, [b"x"] * 20, Load(OFFLINE, concurrency=4), 60.0, most_requests=20)
        found = await JobRun(job).run()
    assert [type(outcome) for outcome in found.outcomes] == [bytes] * 20


async def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(CalibrationError, match=r"'smoke'; choose from unary, stream, oip"):
        await measure_ceiling("smoke", 100)


def test_the_canned_answers_are_answers() -> None:
    native = pb.PredictResponse.FromString(canned_answer("unary"))
    assert native.receipt.receipt_id
    assert native.output.name == "logits"
    peer = oip.ModelInferResponse.FromString(canned_answer("oip"))
    assert peer.outputs[0].name == "logits"
