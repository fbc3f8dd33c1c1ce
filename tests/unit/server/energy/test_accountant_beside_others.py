"""What the accountant makes of energy that neither the idle draw nor a batch explains, and of changed laws.

A lawful device at 50 W; its counter is stepped, every 100 ms, and read every 11 ms.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import BATCH_MS, LAWS, LawfulDevice
from wattserve_server.energy.costlaw import Coefficients, of_rows
from wattserve_server.energy.device import SEEN_LOAD, SETTLES_AFTER_S, UNSEEN_LOAD

pytestmark = pytest.mark.long


@pytest.fixture
def device() -> LawfulDevice:
    device = LawfulDevice(period_ms=11, step_ms=100.0)
    device.warm_up()
    device.rest(1000.0)
    return device


def accounts(device: LawfulDevice) -> np.ndarray:
    """Joules: active, idle, unattributed."""
    ledger = device.books.ledger
    active_uj = sum(totals.active_uj for totals in ledger.active.values())
    return np.array([active_uj, ledger.idle_uj, ledger.unattributed_uj]) / 1e6


def serve(device: LawfulDevice, batches: int, pause_ms: float = 70.0) -> np.ndarray:
    """Relative errors of so many batches of fp32, in their order."""
    before = len(device.charges)
    for _ in range(batches):
        device.run("fp32")
        device.rest(pause_ms)
    device.rest(300.0)
    return device.errors(before)[::4]


def test_energy_that_nothing_explains_is_unattributed_and_not_idle(device: LawfulDevice) -> None:
    before = accounts(device)
    device.spike(7.0)
    device.rest(2000.0)
    active, idle, unattributed = accounts(device) - before
    assert active == 0.0
    assert idle == pytest.approx(100.0, rel=0.02)
    assert unattributed == pytest.approx(7.0, rel=0.2)
    assert device.books.idle_watts == pytest.approx(50.0, rel=0.01)


def test_a_foreign_load_is_followed_and_its_energy_given_to_nobody(device: LawfulDevice) -> None:
    device.extra_w = 80.0
    device.rest(2000.0)
    before = accounts(device)
    errors = serve(device, 40)
    active, idle, unattributed = accounts(device) - before
    seconds = (40 * (BATCH_MS + 70) + 300) / 1e3
    assert np.abs(errors).max() < 0.05
    assert active == pytest.approx(40 * 2.42, rel=0.02)
    assert idle == pytest.approx(50.0 * seconds, rel=0.04)
    assert unattributed == pytest.approx(80.0 * seconds, rel=0.04)
    assert device.books.law.laws["fp32"].cost_j(of_rows(96, 24)) == pytest.approx(2.42, rel=0.01)
    assert device.books.idle_watts == pytest.approx(50.0, rel=0.01)


def test_receipts_say_that_something_unseen_drew_on_the_device(device: LawfulDevice) -> None:
    serve(device, 3)
    assert {charge.warning for charge in device.charges} == {""}
    before = len(device.charges)
    device.extra_w = 80.0
    device.rest(500.0)
    serve(device, 3)
    for charge in device.charges[before:]:
        words, watts = told(charge.warning)
        assert words == UNSEEN_LOAD.partition("about")[0]
        assert watts == pytest.approx(80.0, rel=0.05)


def told(warning: str) -> tuple[str, float]:
    """The words of a warning, and the watts that it names."""
    words, _, rest = warning.partition("about")
    return words, float(rest.split()[0])


def test_receipts_say_how_many_other_processes_there_were_and_what_they_drew(device: LawfulDevice) -> None:
    device.books.see_neighbours(2)
    device.books.see_others(0.7)
    device.extra_w = 30.0
    device.rest(500.0)
    serve(device, 2)
    for charge in device.charges:
        words, watts = told(charge.warning)
        assert words == SEEN_LOAD.format(count=2, watts=0.0).partition("about")[0]
        assert "(2)" in words
        assert watts == pytest.approx(30.0, rel=0.05)


def test_what_somebody_else_draws_beside_a_trial_is_not_the_warm_ups(device: LawfulDevice) -> None:
    before = device.books.ledger.copy()
    device.run("fp32")
    device.run("fp32", kind="warm-up")
    device.spike(7.0)
    device.rest(2000.0)
    after = device.books.ledger
    assert (after.warmup_uj - before.warmup_uj) / 1e6 == pytest.approx(2.42, abs=0.5)
    assert (after.unattributed_uj - before.unattributed_uj) / 1e6 == pytest.approx(7.0, rel=0.3)


def test_neighbours_that_draw_nothing_cost_no_figure_its_accuracy(device: LawfulDevice) -> None:
    device.books.see_neighbours(1)
    device.rest(200.0)
    assert np.abs(serve(device, 20)).max() < 0.05


def test_no_warning_is_left_once_they_are_gone(device: LawfulDevice) -> None:
    device.books.see_neighbours(2)
    device.extra_w = 80.0
    device.rest(1000.0)
    device.books.see_neighbours(0)
    device.extra_w = 0.0
    device.rest(3000.0)
    assert np.abs(serve(device, 5)).max() < 0.05
    assert {charge.warning for charge in device.charges} == {""}


def test_a_floor_that_stays_becomes_the_idle_draw(device: LawfulDevice) -> None:
    device.extra_w = 30.0
    device.rest(SETTLES_AFTER_S * 1000 - 2000.0)
    taken_j = device.books.ledger.unattributed_uj / 1e6
    assert taken_j == pytest.approx(30.0 * (SETTLES_AFTER_S - 2.0), rel=0.05)
    device.rest(5000.0)
    settled_j = device.books.ledger.unattributed_uj / 1e6
    device.rest(5000.0)
    assert device.books.ledger.unattributed_uj / 1e6 == pytest.approx(settled_j, abs=1.0)
    serve(device, 20)  # what it draws just after work was not heard meanwhile
    assert device.books.idle_watts == pytest.approx(80.0, rel=0.02)


def test_a_seen_neighbours_draw_never_becomes_the_idle_draw(device: LawfulDevice) -> None:
    device.books.see_neighbours(1)
    device.extra_w = 30.0
    device.rest(SETTLES_AFTER_S * 1000 + 5000.0)
    assert device.books.idle_watts == pytest.approx(50.0, rel=0.02)


def test_a_law_that_changes_is_followed(device: LawfulDevice) -> None:
    device.laws["fp32"] = Coefficients(0.8 * LAWS["fp32"].fixed_j, 0.8 * LAWS["fp32"].per_token_j)
    errors = serve(device, 60)
    assert np.abs(errors[:3]).max() < 0.25  # no more than what has changed
    assert np.abs(errors[10:]).max() < 0.07
    assert device.books.law.laws["fp32"].cost_j(of_rows(96, 24)) == pytest.approx(0.8 * 2.42, rel=0.07)


def test_a_law_that_changes_is_followed_without_a_pause_too(device: LawfulDevice) -> None:
    device.laws["fp32"] = Coefficients(0.8 * LAWS["fp32"].fixed_j, 0.8 * LAWS["fp32"].per_token_j)
    errors = serve(device, 200, pause_ms=0.0)
    assert np.abs(errors[60:]).max() < 0.05


def test_hundreds_of_tiny_batches_in_one_interval_are_charged_too(device: LawfulDevice) -> None:
    before = len(device.charges)
    for _ in range(30):
        for _ in range(80):
            device.run("bf16", (1, 8), 1.0)
        device.rest(20.0)
    device.rest(500.0)
    errors = device.errors(before)
    assert len(errors) == 2400
    assert np.abs(errors).max() < 0.05


def test_on_a_continuous_counter_too_what_something_else_draws_is_not_idle() -> None:
    device = LawfulDevice()
    device.warm_up()
    device.rest(2000.0)
    before = accounts(device)
    device.extra_w = 80.0
    device.rest(5000.0)
    active, idle, unattributed = accounts(device) - before
    assert active == 0.0
    assert idle == pytest.approx(250.0, rel=0.02)
    assert unattributed == pytest.approx(400.0, rel=0.02)


@pytest.mark.parametrize("before_edge_ms", [10, 20, 50, 90])
def test_the_first_batch_of_an_unknown_variant_gets_its_energy_wherever_it_starts(
    before_edge_ms: float,
) -> None:
    device = LawfulDevice(laws={"bf16": Coefficients(5.0, 0.5)})
    device.rest(2000.0 + 100.0 - before_edge_ms)
    batch = device.run("bf16", (16, 24), 400.0)  # 197 J
    device.rest(1000.0)
    assert device.energy_uj(batch) == pytest.approx(197e6, rel=0.05)
