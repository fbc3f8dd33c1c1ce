"""From readings and windows to charges, where idle draw and laws are learned: a lawful device at 50 W."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.lawful_device import LAWS, LawfulDevice
from tests.fixtures.windows import MS, accountant, reading, window
from wattserve_server.energy.costlaw import of_rows
from wattserve_server.energy.device import Response

pytestmark = pytest.mark.long


def served(device: LawfulDevice, batches: int, seed: int = 1) -> LawfulDevice:
    """A mixed load of both variants, some back to back and some after a pause; then rest."""
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        shape = (int(rng.integers(1, 16)), int(rng.choice([8, 24, 64])))
        device.run(str(rng.choice(list(LAWS))), shape, float(rng.uniform(9.9, 10.1)))
        device.rest(float(rng.choice([0.5, 30.0, 150.0])))
    device.rest(1500.0)
    return device


@pytest.fixture(
    scope="module",
    params=[
        (Response(), 100, None),
        (Response(0.03, 0.025), 100, None),
        (Response(0.03, 0.025), 11, 100.0),
        (Response(0.15, 0.025), 100, None),
        (Response(0.02, 0.025, 0.1), 100, None),
    ],
    ids=str,
)
def world(request: pytest.FixtureRequest) -> LawfulDevice:
    response, period_ms, step_ms = request.param
    device = LawfulDevice(response=response, period_ms=period_ms, step_ms=step_ms)
    device.warm_up()
    device.rest(1000.0)
    return served(device, 80)


def test_the_idle_draw_is_learned_from_time_without_work() -> None:
    device = LawfulDevice(idle_w=20.0)
    assert (device.books.idle_watts, device.books.idle_origin) == (None, "unknown")
    device.rest(2000.0)
    assert device.books.idle_watts == pytest.approx(20.0, rel=1e-6)
    assert device.books.idle_origin == "measured"


def test_before_the_idle_draw_is_known_a_batch_has_no_figure() -> None:
    books = accountant(idle_watts=None)
    books.observe(reading(0, 0))
    books.observe(reading(100, 6_000_000))
    (charge,) = books.advance([window(10, 60)], 100 * MS)
    assert charge.energy_uj is None
    assert charge.reason == "the device's idle draw was not known yet"
    assert books.ledger.unattributed_uj == 6_000_000  # nobody can say what of it was the batch's


def test_a_device_that_never_rests_has_no_figures_and_says_why() -> None:
    """Nothing tells what it would draw without work."""
    device = LawfulDevice()
    for _ in range(600):
        device.run("fp32")
    assert {charge.energy_uj for charge in device.charges} == {None}
    assert {charge.reason for charge in device.charges} == {"the device's idle draw was not known yet"}
    assert device.books.ledger.active == {}
    assert device.books.ledger.unattributed_uj > 0


def test_the_first_interval_teaches_nothing_of_the_idle_draw() -> None:
    books = accountant(idle_watts=None)
    books.observe(reading(0, 0))
    books.observe(reading(100, 90_000_000))  # counted since nobody knows when
    books.observe(reading(200, 92_000_000))
    books.advance([], 200 * MS)
    assert books.idle_watts == pytest.approx(20.0)


def test_a_warm_up_is_held_back_until_it_is_over_and_calibrates_then() -> None:
    device = LawfulDevice(response=Response(0.03, 0.025))
    device.rest(1000.0)
    for _ in range(4):
        for shape in ((1, 8), (1, 64), (4, 24), (16, 24)):
            for _ in range(10):
                device.run("fp32", shape, 30.0, kind="warm-up")
            device.rest(500.0)
    books = device.books
    assert books.law.laws == {}
    assert books.ledger.warmup_uj == 0
    assert books.pending_windows == 160
    device.rest(1500.0)
    assert books.pending_windows == 0
    assert (books.response.lag_s, books.response.ramp_s) == pytest.approx((0.03, 0.025), abs=0.005)
    assert books.law.laws["fp32"].cost_j(of_rows(96, 24)) == pytest.approx(
        LAWS["fp32"].cost_j(of_rows(96, 24)), rel=0.01
    )


def test_warm_up_is_charged_to_its_own_account_and_to_no_variant() -> None:
    device = LawfulDevice()
    device.warm_up()
    device.rest(1000.0)
    drawn_uj = (device.now_ms - 1000.0) * 50e3
    assert device.books.ledger.active == {}
    assert device.books.ledger.idle_uj == pytest.approx(drawn_uj, rel=0.01)
    assert device.books.ledger.warmup_uj == pytest.approx(
        device.books.ledger.measured_uj - drawn_uj, rel=0.01
    )


def test_a_lawful_batch_is_charged_what_it_used(world: LawfulDevice) -> None:
    errors = world.errors()
    assert len(errors) == len(world.charges) > 300
    assert np.abs(errors).max() < 0.04
    assert np.median(np.abs(errors)) < 0.005
    assert world.books.ledger.unattributed_uj == 0


def test_the_provisional_figure_is_close_to_the_settled_one(world: LawfulDevice) -> None:
    for charge in world.charges:
        told = world.provisional[id(charge.line)]
        assert told == pytest.approx(charge.energy_uj, rel=0.05)


def test_the_deviation_of_a_lawful_figure_is_small_and_covers_its_error(world: LawfulDevice) -> None:
    told = np.array([charge.deviation_uj / (charge.energy_uj or 1) for charge in world.charges])
    assert told.min() > 0
    assert np.median(told) < 0.1
    assert np.mean(np.abs(world.errors()) <= 1.96 * told) > 0.95


@pytest.mark.parametrize("response", [Response(), Response(0.03, 0.025)], ids=str)
def test_a_batch_is_settled_within_its_reach_and_one_and_a_half_periods(response: Response) -> None:
    device = LawfulDevice(response=response)
    device.warm_up()
    limit_ms = 1000 * device.books.response.reach_s + 1.5 * 100 + 1
    for gap_ms in (200.0, 333.0, 71.0, 15.0, 400.0):
        batch = device.run("fp32")
        device.rest(gap_ms)
        ended_ms = batch.end_ns / MS
        device.rest(max(0.0, ended_ms + limit_ms - device.now_ms))
        assert device.charged_at_ms[id(batch.lines[0])] <= ended_ms + limit_ms


def test_a_variant_that_was_never_warmed_up_is_learned_from_its_requests() -> None:
    device = LawfulDevice()
    device.rest(1000.0)
    for _ in range(30):
        device.run("bf16")
        device.rest(170.0)
    device.rest(500.0)
    assert np.abs(device.errors()[4 * 4 :]).max() < 0.05
    told = device.books.law.laws["bf16"].cost_j(of_rows(96, 24))
    assert told == pytest.approx(LAWS["bf16"].cost_j(of_rows(96, 24)), rel=0.02)


def test_what_else_was_drawn_beside_a_warm_up_is_the_warm_ups() -> None:
    device = LawfulDevice()
    device.warm_up()
    before = device.books.ledger.copy()
    device.run("fp32", kind="warm-up")
    device.laws["fp32"] = LAWS["fp32"]
    device.rest(2000.0)
    after = device.books.ledger
    assert after.warmup_uj - before.warmup_uj == pytest.approx(2_420_000, rel=0.02)
    assert after.unattributed_uj == before.unattributed_uj


def test_energy_counted_over_a_gap_is_the_gaps_and_what_follows_is_charged_as_before() -> None:
    device = LawfulDevice()
    device.warm_up()
    books = device.books
    measured_uj = books.ledger.measured_uj
    device.lose_meter(3000.0, "the GPU is lost")
    counted_uj = books.ledger.measured_uj - measured_uj
    assert books.ledger.gap_uj == counted_uj == pytest.approx(3000 * 50e3, rel=0.1)
    assert [gap.reason for gap in books.ledger.recent_gaps] == ["the GPU is lost"]
    device.rest(1000.0)
    served(device, 20)
    assert np.abs(device.errors()).max() < 0.02


def test_a_counter_whose_response_is_not_resolved_gives_no_figures(caplog: pytest.LogCaptureFixture) -> None:
    device = LawfulDevice(response=Response(lag_s=0.4, ramp_s=0.05))
    device.warm_up()
    assert device.books.response.is_at_its_bounds
    assert "the response of the counter is not resolved" in caplog.text
    served(device, 5)
    assert device.books.pending_windows == 0
    assert {charge.energy_uj for charge in device.charges} == {None}
    assert {charge.reason for charge in device.charges} == {device.books.response.unresolved}
    assert set(device.provisional.values()) == {None}
    assert device.books.ledger.active == {}
