"""Servers that go away in a sweep: the sweep waits, sees who is back, and goes on or ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fixtures.fake_server.memory import MemoryServer
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.loadgen_sweeps import Told, measured
from wattserve_client import ServerInfo
from wattserve_client.wire import from_message
from wattserve_loadgen.errors import PlanError, RefusedError, TargetError
from wattserve_loadgen.model.codec import as_stored
from wattserve_loadgen.model.server_info import difference
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.results.records import read_records
from wattserve_loadgen.sweeping.cells import CellRunner
from wattserve_loadgen.sweeping.servers import Site, SweepOver, check_one_server, see_through
from wattserve_proto.v1 import inference_pb2 as pb


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("data") / "rows")


def at_cell(position: int, action: Callable[[], Any]) -> Told:
    """Does it once, when that cell starts."""
    told, left = Told(), [action]

    def on_cell(cell: Cell) -> None:
        if cell.position == position and left:
            left.pop()()

    told.on_cell = on_cell
    return told


@pytest.mark.parametrize("moment", ["in the heat-up", "between cells", "in a cell"])
def test_a_cell_in_which_the_server_is_lost_runs_again_once_the_same_model_is_back(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    heated: list[int] = []
    heat_up = CellRunner.heat_up

    async def note_heat_up(self: CellRunner, cell: Cell) -> None:
        heated.append(cell.position)
        await heat_up(self, cell)

    monkeypatch.setattr(CellRunner, "heat_up", note_heat_up)
    server = MemoryServer(Metered())
    server.comes_back(Metered())

    def kill_soon() -> None:
        asyncio.get_running_loop().call_later(0.08 if moment == "in a cell" else 0.0, server.kill)

    told = at_cell(1 if moment == "in the heat-up" else 3, kill_soon)
    found = measured(server, data, tmp_path / "out", told, blocks=2, seconds=0.25)
    assert found.ended == "complete"
    assert [(cell.position, cell.stopped) for cell in found.cells] == [(2, ""), (3, "")]
    assert all(cell.failed == 0 for cell in found.cells)
    (note,) = found.interruptions
    where = "the heat-up block" if moment == "in the heat-up" else "block 2"
    assert note.startswith(server.address)
    assert "The same model was there again after" in note
    assert note.endswith(f"fp32 under concurrency 4 in {where} ran again")
    assert len(heated) >= 2
    assert {record.cell for record in read_records(tmp_path / "out")} == {2, 3}


def test_a_server_is_measured_once_it_has_loaded_its_variants(data: Path, tmp_path: Path) -> None:
    told = Told()
    server = MemoryServer(Metered(variants="fp32,int8", coming=20))
    found = measured(server, data, tmp_path / "out", told, blocks=1, seconds=0.25)
    assert found.ended == "complete"
    assert [each["state"] for each in found.targets[0].server["variants"]] == ["ready", "ready"]
    assert told.lines[0] == (
        f"waiting up to 10 min for {server.address} to load its variants: int8 is calibrating"
    )


def test_a_server_that_is_never_done_with_loading_is_not_measured(data: Path, tmp_path: Path) -> None:
    server = MemoryServer(Metered(variants="fp32,int8", coming=1_000_000))
    with pytest.raises(TargetError, match="has not loaded its variants in time: int8 is calibrating"):
        measured(server, data, tmp_path / "out", Told())


def test_a_server_that_comes_back_is_waited_for_until_it_has_loaded_its_variants(
    data: Path, tmp_path: Path
) -> None:
    server = MemoryServer(Metered(variants="fp32,int8"))
    server.comes_back(Metered(variants="fp32,int8", coming=5))
    found = measured(server, data, tmp_path / "out", at_cell(3, server.kill), blocks=2, seconds=0.25)
    assert found.ended == "complete"
    (note,) = found.interruptions
    waited = re.search(r"was there again after (\d+) s", note)
    assert waited is not None
    assert int(waited[1]) >= 2  # five questions, half a second apart


@pytest.mark.parametrize(
    ("other", "change"),
    [
        (Metered(model="other"), "its model_name was 'fake-sentiment' and is 'other' now"),
        (Metered(variants="int8"), "the variant fp32 is missing"),
        (Metered(proxy="fp32"), "fp32: proxy was '' and is 'products in fp32' now"),
    ],
)
def test_another_server_at_the_same_address_ends_the_sweep(
    data: Path, tmp_path: Path, other: Metered, change: str
) -> None:
    server = MemoryServer(Metered())
    server.comes_back(other)
    found = measured(server, data, tmp_path / "out", at_cell(3, server.kill), blocks=2)
    assert found.ended == f"the server changed: {server.address}: {change}"
    assert [cell.position for cell in found.cells] == [2]


def test_ctrl_c_ends_the_waiting_for_a_server(data: Path, tmp_path: Path) -> None:
    server = MemoryServer(Metered())
    told = at_cell(3, server.kill)

    def interrupt_when_waiting(line: str) -> None:
        if "waiting up to 20 s for the same model there" in line:
            os.kill(os.getpid(), signal.SIGINT)

    told.on_line = interrupt_when_waiting
    found = measured(server, data, tmp_path / "out", told, blocks=2)
    assert found.ended == "interrupted by the user"
    assert [cell.position for cell in found.cells] == [2]


class BackAtOnce:
    """A site whose server is always there again."""

    async def wait(self, limit_s: float, stopped: Callable[[], str]) -> bool:
        return True


def seen_through(
    action: Callable[[], Coroutine[Any, Any, None]],
    tell: Callable[[str], None],
    note: Callable[[str], None],
) -> Coroutine[Any, Any, None]:
    async def nothing(site: Site) -> None:
        pass

    return see_through(
        cast(Any, BackAtOnce()),
        "fp32 in block 1",
        action,
        limit_s=1.0,
        stopped=lambda: "",
        heat_up=nothing,
        tell=tell,
        note=note,
    )


def test_a_server_that_dies_of_the_same_cell_again_and_again_is_given_up() -> None:
    async def dies() -> None:
        runs.append(1)
        raise TargetError("h:1 does not answer")

    runs: list[int] = []
    notes: list[str] = []
    with pytest.raises(SweepOver) as caught:
        asyncio.run(seen_through(dies, lambda line: None, notes.append))
    assert str(caught.value) == (
        "the server was lost 3 times in a row (fp32 in block 1): h:1 does not answer"
    )
    assert (len(runs), len(notes)) == (3, 2)


def test_a_key_that_is_refused_is_not_waited_for() -> None:
    async def is_refused() -> None:
        raise RefusedError("h:1", "UNAUTHENTICATED", "")

    told: list[str] = []
    with pytest.raises(SweepOver, match=r"^h:1 refuses: UNAUTHENTICATED$"):
        asyncio.run(seen_through(is_refused, told.append, told.append))
    assert not told


def instance(instance_id: str) -> ServerInfo:
    return from_message(ServerInfo, pb.ServerInfo(instance_id=instance_id))


def test_other_weights_under_the_same_name_are_another_model() -> None:
    def stored(digest: str) -> dict[str, Any]:
        return {**as_stored(from_message(ServerInfo, pb.ServerInfo(weights_digest=digest)))}

    assert difference(stored("a" * 64), stored("b" * 64)).endswith(" now: these are other weights")
    assert difference(stored("a" * 64), stored("a" * 64)) == ""
    assert difference(stored(""), stored("a" * 64)) == ""  # of an older server


class Answers:
    """A target that says who it is."""

    address = "h:1"

    def __init__(self, instance_id: str) -> None:
        self._info = instance(instance_id)

    async def server_info(self, limit_s: float = 1.0) -> ServerInfo:
        return self._info

    async def close(self) -> None:
        pass


def test_two_servers_behind_one_name_are_refused() -> None:
    async def ask(*instances: str) -> None:
        others = iter(instances * 10)
        again: Any = lambda: Answers(next(others))  # noqa: E731
        first: Any = Answers("a")
        await check_one_server(first, again, instance("a"))

    asyncio.run(ask("a"))
    with pytest.raises(PlanError, match="h:1: 2 servers answer to this name in turns"):
        asyncio.run(ask("a", "a", "b"))
