"""Receipts made anew from an audit file are those that were told, and follow from its readings alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.audited import HEADER, AuditedDevice, events_of, generations, recorder, rewrite
from tests.unit.server.energy.test_accountant_after_errors import FAULT, raising
from tests.unit.server.test_counters import Machine
from wattserve_server.audit.events import METHODS, Closed, Ended, Event, Heard, Opened, Told
from wattserve_server.audit.recompute import Recomputed, recompute
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.attribution import BUSY_TIME, IDLE_POLICIES
from wattserve_server.energy.device import Response
from wattserve_server.energy.filter import EnergyFilter
from wattserve_server.energy.reading import Energy, Reading
from wattserve_server.energy.receipt import ACCELERATOR, HOST, Figures, State, Window, Work
from wattserve_server.errors import ConfigError

pytestmark = pytest.mark.long


def serve(device: AuditedDevice, count: int) -> None:
    for index in range(count):
        device.run(("fp32", "bf16")[index % 2], (1 + index % 4, 16 + index % 20))
        device.rest(15.0 + index % 7)


def served(path: Path, count: int = 40, **given: Any) -> AuditedDevice:
    device = AuditedDevice(path, **given)
    device.warm_up(trial_ms=100.0, pause_ms=300.0)
    serve(device, count)
    return device


def proved(path: Path, device: AuditedDevice) -> Recomputed:
    """Every receipt is told again what it was told, and the ledger is the same."""
    now: dict[str, Figures] = {}
    made = recompute(path, [lambda receipt, told, figures: now.update({receipt.receipt_id: figures[0]})])
    assert made.failures == []
    assert (made.is_proved, made.is_whole, made.tolerance_uj) == (True, True, 0)
    assert now == {each.receipt_id: each.whole._replace(provisional_uj=None) for each in device.receipts}
    (counter,) = made.counters
    assert counter.ledger == device.books.ledger
    return made


@pytest.mark.parametrize(
    "given",
    [{}, {"declared_w": 50.0}, {"response": Response(0.12, 0.08), "step_ms": 70.0, "period_ms": 20}],
    ids=["learned idle", "declared idle", "a slow stepped counter"],
)
def test_all_receipts_are_what_they_were_told(given: dict[str, Any], tmp_path: Path) -> None:
    device = served(tmp_path / "run.audit", **given)
    device.end()
    made = proved(tmp_path / "run.audit", device)
    assert made.receipts == len(device.receipts) == 40
    assert any(receipt.state is State.SETTLED for receipt in device.receipts)


def test_generations_are(tmp_path: Path) -> None:
    device = served(tmp_path / "run.audit", count=4)
    generations(device, 3)
    device.end()
    proved(tmp_path / "run.audit", device)
    assert [receipt.overhead_uj == 0 for receipt in device.receipts[4:]] == [False, True, True]


def test_receipts_of_a_gap_are_and_those_after_it(tmp_path: Path) -> None:
    device = served(tmp_path / "run.audit")
    device.run("fp32")
    device.lose_meter(5000.0, "the GPU is lost")
    serve(device, 10)
    device.end()
    proved(tmp_path / "run.audit", device)
    assert [receipt.reason for receipt in device.receipts if receipt.reason] == ["the GPU is lost"]


def test_receipts_of_accounts_that_met_an_error_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = EnergyFilter.update
    monkeypatch.setattr(EnergyFilter, "update", raising(real, 70, is_done=False))
    device = served(tmp_path / "run.audit")
    device.end()
    assert device.books.restarts == 1
    assert FAULT in {receipt.reason for receipt in device.receipts}
    monkeypatch.setattr(EnergyFilter, "update", raising(real, 70, is_done=False))
    proved(tmp_path / "run.audit", device)
    assert not recompute(tmp_path / "run.audit").is_proved  # of accounts that meet none


@pytest.mark.parametrize(
    "policy",
    [pytest.param(name, marks=() if name == BUSY_TIME else pytest.mark.long) for name in IDLE_POLICIES],
)
def test_two_devices_and_the_host_that_they_share(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.audit"
    keeper = recorder(path)
    machine = Machine(["a", "b"], monkeypatch, keeper, policy)
    leave = machine.wait("b")
    receipts = machine.serve(1.5)
    leave()
    receipts += machine.serve(1.5)
    keeper.close()
    told: dict[str, Sequence[Figures]] = {}
    made = recompute(path, [lambda receipt, _, figures: told.update({receipt.receipt_id: figures})])
    assert made.failures == []
    assert made.receipts == len(receipts)
    for receipt in receipts:
        whole, accelerator, host = told[receipt.receipt_id]
        assert whole == receipt.whole._replace(provisional_uj=None)
        assert accelerator.energy_uj == receipt.of_part(ACCELERATOR).energy_uj
        assert accelerator.idle_share_uj == receipt.of_part(ACCELERATOR).idle_share_uj
        assert host.energy_uj == receipt.of_part(HOST).energy_uj
    names = ["accelerator of a", "accelerator of b", "host of a, b"]
    assert [counter.opened.name for counter in made.counters] == names
    assert [counter.ledger for counter in made.counters] == [each.sampler.ledger for each in machine.counters]


def change_reading(events: list[Event]) -> list[Event]:
    """Of one in the midst of the requests, by a millijoule."""
    place = [
        index for index, event in enumerate(events) if isinstance(event, Heard) and event.method == "observe"
    ]
    index = place[-60]
    heard = events[index]
    assert isinstance(heard, Heard)
    (reading,) = heard.arguments
    changed = Reading(reading.at_ns, Energy(reading.energy.uj + 1000))
    events[index] = heard._replace(arguments=(changed,))
    return events


def change_told(events: list[Event]) -> list[Event]:
    index = next(
        index for index, event in enumerate(events) if isinstance(event, Told) and event.figures[0].energy_uj
    )
    told = events[index]
    assert isinstance(told, Told)
    (whole,) = told.figures
    events[index] = told._replace(figures=(whole._replace(energy_uj=(whole.energy_uj or 0) + 1),))
    return events


def test_one_reading_changed_gives_other_receipts(tmp_path: Path) -> None:
    device = served(tmp_path / "run.audit", declared_w=50.0)
    device.end()
    rewrite(tmp_path / "run.audit", tmp_path / "same.audit", lambda events: events)
    assert recompute(tmp_path / "same.audit").is_proved
    rewrite(tmp_path / "run.audit", tmp_path / "other.audit", change_reading)
    made = recompute(tmp_path / "other.audit")
    assert made.differences > 0
    assert "was told" in made.failures[0]
    assert all(counter.ledger.residual_uj() == 0 for counter in made.counters)


def with_more_at_the_end(events: list[Event]) -> list[Event]:
    """The last three readings, when all batches were long settled, count 5 kJ more."""
    observed = [
        at for at, event in enumerate(events) if isinstance(event, Heard) and event.method == "observe"
    ]
    for at in observed[-3:]:
        heard = events[at]
        assert isinstance(heard, Heard)
        (reading,) = heard.arguments
        more = Reading(reading.at_ns, Energy(reading.energy.uj + 5 * 10**9))
        events[at] = heard._replace(arguments=(more,))
    return events


def as_older(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, Closed)]


def test_the_last_readings_are_held_against_what_the_ledger_held(tmp_path: Path) -> None:
    path, other = tmp_path / "run.audit", tmp_path / "other.audit"
    served(path, declared_w=50.0).end()
    rewrite(path, other, with_more_at_the_end)
    made = recompute(other)
    assert made.differences == 0
    (words,) = made.failures
    assert words.startswith("accelerator of cuda:0, in the end: measured_uj was ")
    rewrite(path, tmp_path / "older.audit", as_older)
    assert recompute(tmp_path / "older.audit").is_proved
    there = replace(HEADER, made_on={**HEADER.made_on, "cpu": "another"})
    rewrite(path, tmp_path / "there.audit", with_more_at_the_end, there)
    assert "measured_uj" in recompute(tmp_path / "there.audit").failures[0]


def test_what_stands_behind_the_end_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "run.audit", tmp_path / "other.audit"
    served(path, count=5).end()
    rewrite(path, other, lambda events: [*events[:-4], events[-1], *events[-4:-1]])
    assert "3 events behind the end, where a server says nothing more" in recompute(other).failures


@pytest.mark.parametrize("behind", [b"x", b"\0" * 4000, b"x" * 4000])
def test_bytes_behind_the_end_are_refused(tmp_path: Path, behind: bytes) -> None:
    path = tmp_path / "run.audit"
    served(path, count=5).end()
    with path.open("ab") as file:
        file.write(behind)
    made = recompute(path)
    assert (made.is_whole, made.is_proved, made.cut_at) == (True, False, None)
    assert "behind the end" in made.failures[0]


def test_a_receipt_that_was_told_twice_is_refused(tmp_path: Path) -> None:
    path, twice = tmp_path / "run.audit", tmp_path / "twice.audit"
    served(path, count=5).end()

    def again(events: list[Event]) -> list[Event]:
        last = max(index for index, event in enumerate(events) if isinstance(event, Told))
        return [*events[: last + 1], events[last], *events[last + 1 :]]

    rewrite(path, twice, again)
    assert any("was told twice" in words for words in recompute(twice).failures)


def test_of_a_file_of_nothing_nothing_is_proved(tmp_path: Path) -> None:
    recorder(tmp_path / "run.audit").close()
    made = recompute(tmp_path / "run.audit")
    assert (made.failures, made.is_empty, made.is_proved) == ([], True, False)


def test_what_comes_once_a_recorder_is_closed_is_not_recorded(tmp_path: Path) -> None:
    """As of a sampler whose meter hung."""
    device = served(tmp_path / "run.audit", count=3)
    device.end()
    device.rest(100.0)
    device.recorder.flush()
    assert isinstance(events_of(tmp_path / "run.audit")[-1], Ended)


@pytest.mark.parametrize(("off_uj", "holds"), [(1, True), (2, False)])
def test_elsewhere_a_microjoule_may_be_missing_and_no_more(off_uj: int, holds: bool, tmp_path: Path) -> None:
    device = served(tmp_path / "run.audit", count=5)
    device.end()
    elsewhere = replace(HEADER, made_on={**HEADER.made_on, "cpu": "another"})
    change: Callable[[list[Event]], list[Event]] = (
        change_told if off_uj == 1 else lambda events: change_told(change_told(events))
    )
    rewrite(tmp_path / "run.audit", tmp_path / "there.audit", change, elsewhere)
    made = recompute(tmp_path / "there.audit")
    assert (made.tolerance_uj, made.is_proved) == (1, holds)
    rewrite(tmp_path / "run.audit", tmp_path / "here.audit", change)
    assert not recompute(tmp_path / "here.audit").is_proved


def test_requests_that_were_open_at_the_end_are_counted(tmp_path: Path) -> None:
    device = served(tmp_path / "run.audit", count=5)
    device.run("fp32")
    device.recorder.close()
    made = recompute(tmp_path / "run.audit")
    assert made.is_proved
    assert 0 < made.open_receipts <= 2


def test_all_that_an_accountant_can_be_told_is_recorded() -> None:
    public = {
        name for name, value in vars(Accountant).items() if callable(value) and not name.startswith("_")
    }
    assert public == set(METHODS)


def of_another_version(events: list[Event]) -> list[Event]:
    assert isinstance(events[0], Opened)
    return [events[0]._replace(settings={**events[0].settings, "crystal_ball": True}), *events[1:]]


def of_no_part(events: list[Event]) -> list[Event]:
    assert isinstance(events[0], Opened)
    return [events[0]._replace(part="sun"), *events[1:]]


@pytest.mark.parametrize("change", [of_another_version, of_no_part])
def test_what_no_server_says_is_refused_in_words(
    change: Callable[[list[Event]], list[Event]], tmp_path: Path
) -> None:
    served(tmp_path / "run.audit", count=3).end()
    rewrite(tmp_path / "run.audit", tmp_path / "odd.audit", change)
    with pytest.raises(ConfigError, match="recompute it with the version that made it"):
        recompute(tmp_path / "odd.audit")


def test_an_accountant_that_is_recorded_is_told_whole_microseconds(tmp_path: Path) -> None:
    """Finer ones would make the file a fifth larger. That it heeds these, all tests above say."""
    keeper = recorder(tmp_path / "run.audit")
    books = keeper.accountant_of("accelerator of cpu", ACCELERATOR, "simulated")(5.0)
    window = Window(
        "fp32",
        10_000_999,
        20_001_001,
        (8,),
        8,
        rested_ns=3_000_001,
        cpu_ns=9_999_999,
        work=(Work(8),),
        own_ns=(5_001_999,),
    )
    books.observe(Reading(30_000_999, Energy(7)))
    books.failed(40_000_001, "gone")
    books.advance([window], 40_000_999)
    keeper.close()
    told = [event.arguments for event in events_of(tmp_path / "run.audit") if isinstance(event, Heard)]
    coarse = replace(
        window,
        start_ns=10_000_000,
        end_ns=20_001_000,
        rested_ns=3_000_000,
        cpu_ns=9_999_000,
        own_ns=(5_001_000,),
    )
    assert told[:2] == [(Reading(30_000_000, Energy(7)),), (40_000_000, "gone")]
    ((ran,), until_ns) = told[2]
    assert [getattr(ran, name) for name in Window.__slots__] == [
        getattr(coarse, name) for name in Window.__slots__
    ]
    assert until_ns == 40_000_000
