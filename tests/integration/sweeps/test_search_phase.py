"""`loadgen sweep --find-max` in virtual time: the server does one request after another, each in 5 ms."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.fake_server.memory import MemoryServer, memory_servers
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.law_search import fixed_service_rate
from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.loadgen_sweeps import Outcome, Told, arguments, measured, sweep
from wattserve_loadgen import cli
from wattserve_loadgen.figures.search import RateSearch
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.sweeping import searches

CAPACITY = 200.0  # per second
ONE_AT_A_TIME = Metered(batch_seconds=1 / CAPACITY, max_batch=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("data") / "rows")


@pytest.fixture(scope="module")
def server() -> MemoryServer:
    return MemoryServer(ONE_AT_A_TIME)


@pytest.fixture(scope="module", autouse=True)
def quick_first_look() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "_FULL_S", 0.3)
        patch.setattr(searches, "RateSearch", partial(RateSearch, ratio=1.5, most_trials=6))
        yield


@pytest.fixture
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "RateSearch", partial(RateSearch, most_trials=3))


@pytest.fixture(scope="module")
def found(server: MemoryServer, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    more = ("--find-max", "--slo", "p90<30ms", "--variants", "fp32")
    return sweep(server, data, tmp_path_factory.mktemp("found") / "out", *more, seconds=2.0)


def test_the_rates_found_bracket_the_one_that_theory_gives(found: Outcome) -> None:
    (search,) = found.results.searches
    exact = fixed_service_rate(1 / CAPACITY, 90.0, 0.03)
    assert found.code == 0
    assert search.rate_per_second is not None
    assert search.broken_per_second is not None
    assert 0.8 * exact < search.rate_per_second <= exact <= search.broken_per_second
    assert "met" in {trial.judgement for trial in search.trials}
    assert search.ended.startswith("the highest rate ")


def test_points_are_measured_at_the_rate_found_by_the_arm_and_its_twin(found: Outcome) -> None:
    (search,) = found.results.searches
    name = f"{search.rate_per_second:.6g}/s poisson"
    assert [(point.arm, point.load) for point in found.results.points] == [
        ("fp32", name),
        ("fp32 (A/A)", name),
    ]
    assert (found.results.cells_planned, found.results.ended) == (2, "complete")


@pytest.mark.usefixtures("few_trials")
def test_a_search_that_finds_nothing_ends_cleanly_and_says_so(
    server: MemoryServer, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--find-max", "--slo", "p50<2ms", "--variants", "fp32")
    nothing = sweep(server, data, tmp_path / "out", *more, seconds=0.1)
    out, error = capsys.readouterr()
    assert nothing.code == 1
    assert "fp32 within p50<2ms: no rate held; " in out
    ended = "loadgen: ended early: no search found a rate within the objective; nothing was measured beside"
    assert error.startswith(ended)
    assert nothing.results.points == []
    assert nothing.results.searches[0].rate_per_second is None


@pytest.mark.usefixtures("few_trials")
def test_loads_that_were_asked_for_are_measured_beside_a_search_that_finds_nothing(
    server: MemoryServer, data: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"find_max": True, "objective": "p50<2ms", "loads": (closed(2),)}
    both = measured(server, data, tmp_path / "out", **options)
    assert both.ended == "complete"
    assert {point.load for point in both.points} == {"concurrency 2"}


def test_a_budget_does_not_cut_what_a_search_will_find(
    server: MemoryServer, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--find-max", "--slo", "p50<40ms", "--budget", "5m", "--dry-run")
    with memory_servers():
        assert cli.main(arguments(server, data, tmp_path / "out", *more)) == 0
    assert "loads: the rates that" in capsys.readouterr().out


@pytest.mark.usefixtures("few_trials")
def test_ctrl_c_in_a_search_ends_the_sweep_and_a_resume_goes_on_with_its_trials(
    server: MemoryServer, data: Path, tmp_path: Path
) -> None:
    told = Told()

    def interrupt(line: str) -> None:
        if " answers worth " in line:
            os.kill(os.getpid(), signal.SIGINT)

    told.on_line = interrupt
    options: dict[str, Any] = {"find_max": True, "objective": "p50<40ms", "loads": ()}
    first = measured(server, data, tmp_path / "out", told, seconds=0.2, **options)
    assert first.ended == "interrupted by the user"
    (search,) = first.searches
    assert search.trials
    again = measured(server, data, tmp_path / "out", seconds=0.2, resume=True, **options)
    assert (again.ended, len(again.searches), len(again.points)) == ("complete", 1, 1)
    assert again.searches[0].trials[: len(search.trials)] == search.trials


@pytest.mark.usefixtures("few_trials")
def test_a_server_that_dies_in_a_search_is_waited_for(data: Path, tmp_path: Path) -> None:
    told = Told()
    server = MemoryServer(ONE_AT_A_TIME)
    server.comes_back(ONE_AT_A_TIME)

    def kill(line: str) -> None:
        if "a closed loop reaches" in line:
            asyncio.get_running_loop().call_later(0.05, server.kill)

    told.on_line = kill
    options: dict[str, Any] = {"find_max": True, "objective": "p50<40ms", "loads": ()}
    found = measured(server, data, tmp_path / "out", told, seconds=0.2, **options)
    assert (found.ended, len(found.points)) == ("complete", 1)
    assert found.interruptions[0].endswith("the search for fp32 ran again")
