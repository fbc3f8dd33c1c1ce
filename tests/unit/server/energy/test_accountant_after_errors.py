"""An error in the accountant's own work: no charge is lost, every receipt ends, it serves on as before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fixtures.lawful_device import LawfulDevice
from tests.fixtures.windows import reading
from wattserve_server.energy import calibrator, ledger
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.calibrator import Calibrator
from wattserve_server.energy.edges import EdgeFinder
from wattserve_server.energy.estimate import CARRY, IDLE, Estimate
from wattserve_server.energy.filter import EnergyFilter
from wattserve_server.energy.openbatches import OpenBatches
from wattserve_server.energy.receipt import Window

pytestmark = pytest.mark.long

FAULT = "the energy accounts met an error and had to begin again (MemoryError: no room)"


def raising(real: Callable[..., Any], after: int, is_done: bool) -> Callable[..., Any]:
    """Raises once, at a call after so many others; is_done: after its work."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == after + 1 and not is_done:
            raise MemoryError("no room")
        answer = real(*args, **kwargs)
        if calls == after + 1:
            raise MemoryError("no room")
        return answer

    return wrapped


def serve(device: LawfulDevice, count: int) -> list[Window]:
    ran = []
    for index in range(count):
        ran.append(device.run(("fp32", "bf16")[index % 2], (4, 16 + index % 20)))
        device.rest(15.0 + index % 7)
    return ran


def reasons(device: LawfulDevice) -> set[str]:
    return {charge.reason for charge in device.charges}


def check_books(device: LawfulDevice, ran: list[Window]) -> None:
    """Every line was charged once, what is on them is what is booked, and the accounts close."""
    charged = [id(charge.line) for charge in device.charges]
    assert sorted(charged) == sorted(id(line) for window in ran for line in window.lines)
    booked = device.books.ledger
    on_receipts = sum(charge.energy_uj or 0 for charge in device.charges)
    assert sum(totals.active_uj for totals in booked.active.values()) == on_receipts
    assert booked.unknown_lines == sum(charge.energy_uj is None for charge in device.charges)
    assert booked.residual_uj() == 0
    assert device.books.pending_windows == 0


PLACES: list[tuple[Any, str]] = [
    (EnergyFilter, "update"),
    (EnergyFilter, "pass_time"),
    (Estimate, "admit"),
    (Estimate, "settle"),
    (Estimate, "book_draw"),
    (OpenBatches, "take"),
    (Accountant, "_settle"),
    (Accountant, "_give_up"),
    (Calibrator, "listen_again"),
    (ledger, "split_weights"),
]


@pytest.mark.parametrize("is_done", [False, True], ids=["before its work", "after it"])
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_an_error_while_serving(
    owner: Any, name: str, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = LawfulDevice()
    device.warm_up()
    ran = serve(device, 30)
    known = len(device.charges)
    monkeypatch.setattr(owner, name, raising(getattr(owner, name), 3, is_done))
    ran += serve(device, 60)
    device.rest(1000.0)
    check_books(device, ran)
    assert device.books.restarts == 1
    assert reasons(device) == {"", FAULT}
    lost = sum(charge.energy_uj is None for charge in device.charges)
    assert lost <= 40  # of 240 lines: those of one edge or two
    assert device.books.ledger.unattributed_uj > 0
    assert np.median(np.abs(device.errors(known))) < 0.02  # it goes on from what was learned


@pytest.mark.parametrize("name", ["find_response", "fit"])
def test_an_error_in_a_calibration(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrator, name, raising(getattr(calibrator, name), 0, is_done=False))
    device = LawfulDevice()
    device.warm_up()
    ran = serve(device, 100)
    device.rest(1000.0)
    check_books(device, ran)
    assert device.books.restarts == 1
    assert device.books.idle_watts == pytest.approx(50.0, rel=0.05)
    assert np.median(np.abs(device.errors(100))) < 0.1


def spoil_values(books: Accountant) -> None:
    books._estimate.x[CARRY] = np.nan


def spoil_idle(books: Accountant) -> None:
    books._estimate.x[IDLE] = np.inf


def spoil_covariance(books: Accountant) -> None:
    books._estimate.p[:] = np.nan


def make_negative(books: Accountant) -> None:
    books._estimate.p[:] -= 10.0 * np.eye(len(books._estimate.p))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("spoil", [spoil_values, spoil_idle, spoil_covariance, make_negative])
def test_a_state_that_no_energy_can_have_does_not_come_back(spoil: Callable[[Accountant], None]) -> None:
    device = LawfulDevice()
    device.warm_up()
    ran = serve(device, 30)
    known = len(device.charges)
    spoil(device.books)
    ran += serve(device, 60)
    device.rest(1000.0)
    check_books(device, ran)
    assert device.books.restarts == 1
    assert all(np.isfinite(charge.deviation_uj) for charge in device.charges)
    assert np.median(np.abs(device.errors(known))) < 0.02


def test_an_error_in_finding_an_edge_delays_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    device = LawfulDevice(period_ms=10, step_ms=100.0)
    device.warm_up()
    ran = serve(device, 30)
    monkeypatch.setattr(EdgeFinder, "_place", raising(EdgeFinder._place, 2, is_done=False))
    ran += serve(device, 30)
    device.rest(1000.0)
    check_books(device, ran)
    assert device.books.restarts == 1
    assert reasons(device) == {""}
    assert device.books.ledger.gap_count == 0


def test_an_edge_that_is_never_found_is_a_gap_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    device = LawfulDevice()
    device.warm_up()

    def fail(self: EdgeFinder, reading: object) -> None:
        raise MemoryError("no room")

    ran = serve(device, 10)
    monkeypatch.setattr(EdgeFinder, "_edge", fail)
    ran += serve(device, 60)
    device.rest(2500.0)
    check_books(device, ran)
    assert reasons(device) == {"", FAULT}


def test_the_same_error_at_every_edge_is_told_once_and_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = LawfulDevice()
    device.warm_up()

    def fail(*args: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(EnergyFilter, "update", fail)
    with caplog.at_level(logging.ERROR):
        ran = serve(device, 30)
        device.rest(1000.0)
    check_books(device, ran)
    assert reasons(device) == {FAULT}
    assert device.books.restarts > 10
    assert device.books.last_restart == "MemoryError: no room"
    (record,) = caplog.records
    assert record.exc_info is not None


def test_an_error_before_anything_was_learned_begins_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Accountant(10.0)
    monkeypatch.setattr(EnergyFilter, "update", raising(EnergyFilter.update, 0, is_done=False))
    books.observe(reading(0, 0))
    books.observe(reading(100, 6_000_000))
    books.advance([], 100_000_000)
    assert (books.restarts, books.ledger.unattributed_uj, books.ledger.pending_uj) == (1, 6_000_000, 0)
    assert books.idle_watts == 10.0
