"""A sweep that shows an API key: the key is nowhere in what it leaves, and is never sent in clear."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fixtures.fake_server.memory import MemoryServer, rpc_error
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.loadgen_sweeps import Told, arguments, measured, sweep
from wattserve_loadgen import cli
from wattserve_loadgen.plan.schedule import Cell

KEY = "wattserve_0123456789ab_planted"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_labelled(tmp_path / "rows")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.key"
    path.write_text(f"{KEY}\n")
    return path


def test_the_key_is_nowhere_in_the_results(
    tmp_path: Path, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    found = sweep(MemoryServer(Metered()), data, out, "--variants", "fp32", "--api-key-file", str(file))
    assert found.code == 0
    assert tomllib.loads((out / "plan.toml").read_text())["api-key-file"] == str(file)
    told = capsys.readouterr()
    files = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert len(files) > 4
    for content in (*files, told.out.encode(), told.err.encode()):
        assert b"planted" not in content


@pytest.mark.parametrize(
    ("target", "content", "why"),
    [
        ("192.0.2.1:1", KEY, "an API key would be sent in clear to 192.0.2.1:1: pass --tls, or no key"),
        ("127.0.0.1:1", "", "a.key: holds no API key"),
        ("127.0.0.1:1", None, "a.key: cannot be read (No such file or directory)"),
    ],
)
def test_a_key_that_is_of_no_use_is_told_before_anything_is_sent(
    tmp_path: Path,
    data: Path,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    target: str,
    content: str | None,
    why: str,
) -> None:
    file.unlink() if content is None else file.write_text(content)
    server = MemoryServer(Metered())
    server.address = target
    asked = arguments(server, data, tmp_path / "out", "--api-key-file", str(file))
    assert cli.main(asked) == 2
    told = capsys.readouterr().err
    assert (why in told, told.count("\n"), "planted" in told) == (True, 1, False)


class Refusing(MemoryServer):
    """refuses: the calls of these names; "all" of any."""

    refuses = ""
    code = grpc.StatusCode.UNAUTHENTICATED

    def handler(self, method: str) -> Any:
        if self.refuses in ("all", method.rpartition("/")[2]):
            raise rpc_error(self.code, "no such key")
        return super().handler(method)


@pytest.mark.parametrize("after_s", [0.0, 0.05])  # between two cells, and in one
def test_a_key_that_is_revoked_ends_the_sweep_at_once(data: Path, tmp_path: Path, after_s: float) -> None:
    server, told = Refusing(Metered()), Told()

    def revoke() -> None:
        server.refuses = "all"

    def on_cell(cell: Cell) -> None:
        if cell.position == 3:
            asyncio.get_running_loop().call_later(after_s, revoke) if after_s else revoke()

    told.on_cell = on_cell
    found = measured(server, data, tmp_path / "out", told, blocks=2)
    assert found.ended == f"{server.address} refuses: UNAUTHENTICATED no such key"
    assert not [line for line in told.lines if "waiting up to" in line]
    assert [cell.position for cell in found.cells if not cell.stopped] == [2]


def test_a_key_that_may_not_predict_ends_the_sweep_in_its_heat_up(data: Path, tmp_path: Path) -> None:
    server = Refusing(Metered())
    server.refuses, server.code = "Predict", grpc.StatusCode.PERMISSION_DENIED
    found = measured(server, data, tmp_path / "out", blocks=2)
    assert found.ended == f"{server.address} refuses: PERMISSION_DENIED no such key"
    assert not found.cells
