"""How the state of a device's energy learns, and that booking never puts it at odds with itself."""

from __future__ import annotations

import numpy as np
import pytest

from wattserve_server.energy.calibration import Fit
from wattserve_server.energy.costlaw import CLASSES, SIZE, SMOOTH, correction_covariance, of_rows
from wattserve_server.energy.device import QUIET_EDGES, ForeignLoad
from wattserve_server.energy.estimate import BATCH_NOISE, CARRY, IDLE, within
from wattserve_server.energy.filter import EnergyFilter

WORK = np.array([0.1, 0.0, 0.0, 0.0, 0.0])  # 100 ms of the first class of rest
NONE, ALL = np.zeros(0), np.ones(1)


def idle_filter(watts: float = 50.0) -> EnergyFilter:
    energy = EnergyFilter()
    energy.hear_idle(watts)
    return energy


def knowing(variant: str = "fp32", fixed_j: float = 0.5, per_token_j: float = 0.02) -> EnergyFilter:
    """Idle draw of 50 W and one law, both well known."""
    energy = idle_filter()
    smooth = np.array([fixed_j, per_token_j, 0.0, 0.0, 0.0])
    covariance = np.zeros((CLASSES + SIZE, CLASSES + SIZE))
    covariance[:CLASSES, :CLASSES] = 0.1**2 * np.eye(CLASSES)
    covariance[CLASSES : CLASSES + SMOOTH, CLASSES : CLASSES + SMOOTH] = np.diag((0.02 * smooth) ** 2)
    covariance[CLASSES + SMOOTH :, CLASSES + SMOOTH :] = correction_covariance(0.01)
    values = np.concatenate([np.full(CLASSES, 50.0), smooth, np.zeros(SIZE - SMOOTH)])
    energy.start_from(Fit((variant,), (smooth,), values, covariance))
    return energy


def admit(energy: EnergyFilter, tokens: int, variant: str = "fp32", rest: int = 0, count: int = 1) -> None:
    energy.estimate.admit(
        [variant], np.array([of_rows(tokens, 8)]), np.array([rest]), np.array([count * 1.0]), np.zeros(1)
    )


def edge(energy: EnergyFilter, batch_j: float | None, foreign_w: float = 0.0, tokens: int = 96) -> float:
    """An interval of 100 ms with one batch that ends in it, or none: what the batch is told it used."""
    energy.pass_time(WORK)
    counted = NONE
    if batch_j is not None:
        admit(energy, tokens)
        counted = ALL
    pool_j = energy.estimate.carry_j + 5.0 + 0.1 * foreign_w + (batch_j or 0.0)
    expected_j = float(counted @ energy.estimate.batches_j)
    excess_j = energy.update(pool_j, counted, WORK, 0.01, expected_j)
    told_j = 0.0
    if batch_j is not None:
        told_j = float(energy.estimate.batches_j[0])
        energy.estimate.settle(np.array([True]), told_j)
    drawn_j = float(WORK @ energy.estimate.idle_w) + 0.1 * energy.estimate.foreign_w
    energy.estimate.book_draw(WORK, min(drawn_j + energy.estimate.carry_j, pool_j - told_j - excess_j))
    return told_j


def first_idea(cost_j: float, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a law, by one batch of so many tokens, none longer than 64."""
    alone = cost_j * np.array([1.0, 1 / tokens, 1 / tokens / 64, 0.0, 0.0])
    return alone * [0.5, 0.5, 0.0, 0.0, 0.0], alone


def test_the_idle_draw_is_that_of_the_intervals_without_work() -> None:
    energy = idle_filter(40.0)
    for _ in range(50):
        edge(energy, None)
    assert energy.estimate.idle_w[0] == pytest.approx(50.0, rel=0.01)


def test_a_law_of_which_nothing_was_known_is_learned() -> None:
    energy, rng = idle_filter(), np.random.default_rng(1)
    for _ in range(20):
        edge(energy, None)  # the idle draw is known
    energy.estimate.add_variant("fp32", *first_idea(4.0, 96))
    for _ in range(300):
        tokens = int(rng.choice([8, 64, 256, 1024]))
        edge(energy, 0.5 + 0.02 * tokens, tokens=tokens)
    law = energy.estimate.laws()["fp32"]
    for tokens in (8, 64, 256, 1024):
        assert law.cost_j(of_rows(tokens, 8)) == pytest.approx(0.5 + 0.02 * tokens, rel=0.03)
    told_j = energy.estimate.predict(["fp32"], np.array([0]), np.array([of_rows(64, 8)]))
    assert told_j == pytest.approx([law.cost_j(of_rows(64, 8))])


def test_a_batch_of_its_own_deviation_is_told_apart_from_a_changed_law() -> None:
    energy = knowing()
    told = edge(energy, 1.10 * 2.42)
    assert 2.5 < told < 2.7  # the counter is believed
    assert energy.estimate.laws()["fp32"].cost_j(of_rows(96, 8)) == pytest.approx(
        2.42, rel=0.04
    )  # the law hardly moves


def test_the_filter_says_how_well_it_knows_what_it_does_not_know() -> None:
    energy, rng = knowing(), np.random.default_rng(1)
    assert (energy.consistency, energy.edges) == (None, 0)
    for _ in range(100):
        edge(energy, 2.42 * (1 + BATCH_NOISE * float(rng.standard_normal())))
    assert energy.consistency == pytest.approx(1.0, abs=0.5)
    assert energy.edges == 100
    assert energy.covered_edges >= 95
    covered = energy.covered_edges
    edge(energy, 2.42 * 1.35)
    assert (energy.edges, energy.covered_edges) == (101, covered)
    for number in range(100):
        edge(energy, 2.42 * (1.3 if number % 2 else 0.7))
    assert energy.consistency is not None
    assert energy.consistency > 4.0


def test_laws_that_change_are_followed() -> None:
    energy = knowing()
    for _ in range(40):
        told = edge(energy, 0.8 * 2.42)
    assert told == pytest.approx(0.8 * 2.42, rel=0.06)
    assert energy.estimate.laws()["fp32"].cost_j(of_rows(96, 8)) == pytest.approx(0.8 * 2.42, rel=0.07)


def test_two_batches_in_one_interval_share_it_by_what_their_law_says() -> None:
    energy = knowing()
    energy.estimate.admit(
        ["fp32"] * 2, np.array([of_rows(96, 8), of_rows(24, 8)]), np.array([0, 0]), np.ones(2), np.zeros(2)
    )
    energy.update(5.0 + 1.1 * (2.42 + 0.98), np.ones(2), WORK, 0.001, 3.4)
    larger, smaller = energy.estimate.batches_j
    assert larger + smaller == pytest.approx(1.1 * 3.4, rel=0.01)
    assert larger / 2.42 > smaller / 0.98 > 1.0  # of the surplus more goes where more is uncertain


def test_what_is_far_beyond_everything_known_is_nobodys() -> None:
    energy = EnergyFilter(declared_idle_w=50.0, foreign=ForeignLoad(watches_floor=False))
    excess_j = energy.update(5.0 + 30.0, NONE, WORK, 0.01, 0.0)
    assert excess_j == pytest.approx(30.0, rel=0.01)
    assert energy.estimate.idle_w[0] == 50.0


def test_a_single_batch_after_a_rest_teaches_what_rest_costs() -> None:
    energy = knowing()
    for _ in range(40):
        energy.pass_time(50 * WORK)
        admit(energy, 96, rest=3)
        energy.update(5.0 + 1.2 * 2.42, ALL, WORK, 0.001, 2.42)
        energy.estimate.settle(np.array([True]), 1.2 * 2.42)
        energy.estimate.book_draw(WORK, 5.0)
        edge(energy, 2.42)
    assert energy.estimate.after_rest[0] == 0.0
    assert energy.estimate.after_rest[3] == pytest.approx(0.2, abs=0.05)
    assert energy.estimate.laws()["fp32"].cost_j(of_rows(96, 8)) == pytest.approx(2.42, rel=0.03)


def test_what_rest_costs_is_followed_when_it_changes_later() -> None:
    energy = knowing()
    for more in (1.2, 1.0):
        for _ in range(80):
            energy.pass_time(50 * WORK)
            admit(energy, 96, rest=3)
            energy.update(5.0 + more * 2.42, ALL, WORK, 0.001, 2.42)
            energy.estimate.settle(np.array([True]), more * 2.42)
            energy.estimate.book_draw(WORK, 5.0)
            edge(energy, 2.42)
        assert energy.estimate.after_rest[3] == pytest.approx(more - 1.0, abs=0.05)


def test_a_law_that_is_seldom_asked_for_stays_known_while_others_run() -> None:
    energy = knowing()

    def deviation_j() -> float:
        admit(energy, 96)
        told_j = float(energy.deviations_j[0])
        energy.estimate.forget(np.array([True]))
        return told_j

    before_j = deviation_j()
    for _ in range(1440):  # two hours of work of which none is its own
        energy.pass_time(50 * WORK)
    assert deviation_j() < 1.3 * before_j


def test_a_foreign_load_is_followed_and_no_law_learns_beside_it() -> None:
    energy = knowing()
    before = energy.estimate.laws()["fp32"]
    for _ in range(30):
        edge(energy, 2.42, foreign_w=120.0)
    assert energy.foreign.is_open
    assert energy.estimate.foreign_w == pytest.approx(120.0, rel=0.05)
    assert energy.estimate.laws()["fp32"] == before
    for _ in range(QUIET_EDGES + 3):
        edge(energy, None)
    assert not energy.foreign.is_open
    assert energy.estimate.foreign_w == 0.0
    assert energy.estimate.idle_w[0] == pytest.approx(50.0, rel=0.02)


@pytest.mark.parametrize(
    ("pool_j", "left_j"),
    [(16.0, [8.0, 8.0]), (10.0, [7.985, 2.015]), (1.0, [1.0, 0.0]), (0.0, [0.0, 0.0])],
    ids=["enough", "a little short", "far too short", "nothing"],
)
def test_a_shortage_is_taken_from_who_is_known_least(pool_j: float, left_j: list[float]) -> None:
    told = within(pool_j, np.array([8.0, 8.0]), np.array([0.1, 2.0]))
    assert told == pytest.approx(left_j, abs=1e-3)
    assert float(told.sum()) <= pool_j + 1e-9


def test_a_group_of_batches_alike_is_the_sum_of_them() -> None:
    alone, grouped = knowing(), knowing()
    for energy, counts in ((alone, [1.0] * 100), (grouped, [100.0])):
        entries = len(counts)
        energy.estimate.admit(
            ["fp32"] * entries, np.array([of_rows(8, 8)] * entries),
            np.zeros(entries, dtype=np.int64), np.array(counts), np.zeros(entries),
        )  # fmt: skip
        energy.update(5.0 + 1.05 * 66.0, np.ones(entries), WORK, 0.01, 66.0)
    assert grouped.estimate.batches_j.sum() == pytest.approx(alone.estimate.batches_j.sum(), rel=1e-6)
    assert grouped.deviations_j[0] == pytest.approx(alone.deviations_j[0], rel=0.02)
    assert alone.deviations_j[0] >= 0.9 * BATCH_NOISE * 0.66


def test_a_calibration_leaves_a_declared_idle_draw_alone() -> None:
    energy = EnergyFilter(declared_idle_w=10.0)
    values = np.concatenate([np.full(CLASSES, 50.0), [0.5, 0.02], np.zeros(SIZE - 2)])
    smooth = np.array([0.5, 0.02, 0.0, 0.0, 0.0])
    energy.start_from(Fit(("fp32",), (smooth,), values, np.eye(CLASSES + SIZE)))
    assert energy.estimate.idle_w.tolist() == [10.0] * CLASSES
    assert energy.estimate.knows("fp32")


def check(energy: EnergyFilter) -> None:
    assert np.isfinite(energy.estimate.x).all()
    scale = np.sqrt(np.maximum(np.diagonal(energy.estimate.p), 1e-12))
    correlations = energy.estimate.p / np.outer(scale, scale)
    assert np.abs(correlations - correlations.T).max() < 1e-6
    assert np.linalg.eigvalsh((correlations + correlations.T) / 2).min() > -1e-6
    assert energy.deviations_j.min(initial=0.0) >= 0
    assert energy.estimate.idle_w.min() >= 0
    assert energy.estimate.foreign_w >= 0


def everything_open(energy: EnergyFilter) -> tuple[float, float]:
    """Mean and variance of carry and open batches together: booking batches shifts the mean alone."""
    row = np.zeros(len(energy.estimate.x))
    row[CARRY] = 1.0
    row[len(row) - len(energy.estimate.batches_j) :] = 1.0
    return float(row @ energy.estimate.x), float(row @ energy.estimate.p @ row)


@pytest.mark.parametrize("seed", range(4))
def test_mean_and_covariance_stay_sound_over_hundreds_of_random_operations(seed: int) -> None:
    rng, energy = np.random.default_rng(seed), idle_filter()
    for step in range(400):
        variant = str(rng.choice(["fp32", "bf16"]))
        if not energy.estimate.knows(variant):
            energy.estimate.add_variant(variant, *first_idea(float(rng.uniform(0.1, 5)), 64))
        energy.pass_time(float(rng.uniform(0.1, 10)) * WORK)
        for _ in range(rng.integers(0, 4)):
            admit(
                energy,
                int(rng.integers(1, 2000)),
                variant,
                int(rng.integers(0, CLASSES)),
                int(rng.integers(1, 9)),
            )
        rest_s = rng.uniform(0, 0.2, CLASSES)
        entries = len(energy.estimate.batches_j)
        counted = rng.uniform(0, 1, entries)
        expected_j = float(counted @ energy.estimate.batches_j)
        pool_j = energy.estimate.carry_j + (expected_j + float(rest_s @ energy.estimate.idle_w)) * float(
            rng.uniform(0.6, 1.4)
        )
        energy.foreign.neighbours = int(rng.random() < 0.1)
        energy.update(pool_j, counted, rest_s, float(rng.choice([0.0, 0.3])), expected_j)
        check(energy)
        leave = rng.random(entries) < 0.5
        before_j, before = energy.estimate.carry_j, everything_open(energy)
        if rng.random() < 0.8:
            booked_j = float(energy.estimate.batches_j[leave].sum())
            energy.estimate.settle(leave, booked_j)
            assert everything_open(energy) == pytest.approx(
                (before[0] - booked_j, before[1]), rel=1e-6, abs=1e-6
            )
        else:
            energy.estimate.forget(leave)
            assert energy.estimate.carry_j == before_j
        assert len(energy.estimate.batches_j) == entries - int(leave.sum())
        before_j = (
            energy.estimate.carry_j
            + float(rest_s @ energy.estimate.idle_w)
            + energy.estimate.foreign_w * float(rest_s.sum())
        )
        energy.estimate.book_draw(rest_s, 0.9 * before_j)
        assert energy.estimate.carry_j == pytest.approx(0.1 * before_j, abs=1e-6)
        if step % 50 == 49:
            energy.estimate.restart()
            assert energy.estimate.carry_j == 0.0
        check(energy)


def test_over_a_long_run_its_beliefs_are_as_wide_as_its_errors() -> None:
    rng, energy, pool_j = np.random.default_rng(1), idle_filter(), 0.0
    true_j = {"a": 0.2, "b": 0.1, "c": 0.05}
    for name, batch_j in true_j.items():
        energy.estimate.add_variant(name, *first_idea(1.3 * batch_j, 80))
    surprises = []
    for step in range(1500):
        energy.pass_time(WORK)
        variants = [str(name) for name in rng.choice(list(true_j), int(rng.integers(1, 5)))]
        used_j = np.array([true_j[name] * (1 + 0.04 * rng.standard_normal()) for name in variants])
        rest_s = np.zeros(CLASSES)
        rest_s[0] = 0.08
        rest_s[step % CLASSES] += 0.02
        pool_j += 50.0 * 0.1 + float(used_j.sum())
        for name in variants:
            admit(energy, 80, name)
        seen_j = pool_j + 0.05 * rng.standard_normal()
        row = np.zeros(len(energy.estimate.x))
        row[CARRY], row[IDLE], row[-len(variants) :] = 1.0, rest_s, 1.0
        off_j = seen_j - float(row @ energy.estimate.x)
        surprises.append(off_j**2 / float(row @ energy.estimate.p @ row + 0.05**2))
        energy.update(seen_j, np.ones(len(variants)), rest_s, 0.05, float(energy.estimate.batches_j.sum()))
        told_j = float(energy.estimate.batches_j.sum())
        energy.estimate.settle(np.ones(len(variants), dtype=bool), told_j)
        drawn_j = float(rest_s @ energy.estimate.idle_w) + energy.estimate.carry_j
        energy.estimate.book_draw(rest_s, drawn_j)
        pool_j -= told_j + drawn_j
    check(energy)
    assert 0.5 < np.mean(surprises[500:]) < 1.5


def test_what_edges_take_off_the_covariance_may_be_taken_off_at_any_time() -> None:
    at_once, later = idle_filter(), idle_filter()
    for energy in (at_once, later):
        rng, estimate = np.random.default_rng(3), energy.estimate
        for step in range(50):
            if step % 20 == 7:
                estimate.add_variant(f"v{step}", *first_idea(0.5 + step / 20, 64))
            energy.pass_time(WORK)
            for _ in range(6 if estimate.names else 0):
                variant = str(rng.choice(estimate.names))
                admit(energy, int(rng.integers(8, 500)), variant, int(rng.integers(0, CLASSES)))
            if step == 30:
                energy.hear_pace(0.1)
            counted = rng.uniform(0.5, 1.0, len(estimate.batches_j))
            expected_j = float(counted @ estimate.batches_j)
            pool_j = 5.0 + expected_j * float(rng.uniform(0.9, 1.1)) + estimate.carry_j
            energy.update(pool_j, counted, WORK, 0.01, expected_j)
            if len(counted) > 80:
                ripe = rng.random(len(counted)) < 0.6
                estimate.settle(ripe, float(estimate.batches_j[ripe].sum()))
            estimate.book_draw(WORK, 5.0)
            if energy is at_once:
                _ = estimate.p
    scale = np.sqrt(np.diagonal(at_once.estimate.p))
    assert later.estimate.variances(slice(None)) == pytest.approx(scale**2, rel=1e-6, abs=1e-12)
    assert later.estimate.x == pytest.approx(at_once.estimate.x, rel=1e-6, abs=1e-9)
    allowed = 1e-6 * np.outer(scale, scale) + 1e-12
    assert (np.abs(later.estimate.p - at_once.estimate.p) <= allowed).all()
