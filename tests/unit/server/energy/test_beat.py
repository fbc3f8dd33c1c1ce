"""Placing the updates of a counter that keeps a beat, by seeded simulation. Periods in milliseconds."""

from __future__ import annotations

import numpy as np
import pytest

from wattserve_server.energy.edges import Beat

MS = 1_000_000


class Board:
    """Updates every 100 ms, give or take; polled every `poll_ms`, of which 100 is no multiple: polls in step
    with the updates would say the same of each."""

    def __init__(self, poll_ms: float, jitter_ms: float, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._poll_ms, self._jitter_ms = poll_ms, jitter_ms
        self._due_ms = 1000.0 + 100.0 * self._rng.random()

    def update(self, beats: int = 1, shift_ms: float = 0.0) -> tuple[float, int, int]:
        """The instant of the next update and the polls around it, in nanoseconds."""
        self._due_ms += 100.0 * beats + shift_ms
        at_ms = self._due_ms + self._jitter_ms * self._rng.standard_normal()
        early_ms = at_ms // self._poll_ms * self._poll_ms
        return at_ms * MS, round(early_ms * MS), round((early_ms + self._poll_ms) * MS)


def follow(beat: Beat, board: Board, updates: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors and told deviations, in milliseconds."""
    errors, deviations = [], []
    for _ in range(updates):
        at_ns, early_ns, late_ns = board.update()
        placed_ns, deviation_ns = beat.place(early_ns, late_ns)
        assert early_ns <= placed_ns <= late_ns
        assert 0 < deviation_ns <= (late_ns - early_ns) / 12**0.5 + 1
        errors.append((placed_ns - at_ns) / MS)
        deviations.append(deviation_ns / MS)
    return np.array(errors), np.array(deviations)


def acquired(board: Board, guess_ms: float = 101.0) -> Beat:
    beat = Beat(guess_ms * MS)
    _, early_ns, late_ns = board.update()
    beat.start(early_ns, late_ns)
    follow(beat, board, 60)
    return beat


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("poll_ms", "jitter_ms"), [(21.7, 1.0), (7.0, 0.5), (33.0, 1.0), (20.3, 0.2)])
def test_a_steady_beat_is_placed_more_closely_than_the_polls_that_saw_it(
    poll_ms: float, jitter_ms: float, seed: int
) -> None:
    board = Board(poll_ms, jitter_ms, seed)
    beat = acquired(board)
    errors, deviations = follow(beat, board, 300)
    by_halves_ms = poll_ms / 12**0.5  # what the middle between two polls is off by
    assert np.sqrt(np.mean(errors**2)) < 0.5 * by_halves_ms
    assert np.mean(np.abs(errors) < 2 * deviations) > 0.85
    assert beat.period_ns == pytest.approx(100 * MS, rel=2e-3)


def test_an_erratic_counter_is_placed_no_worse_than_between_its_polls() -> None:
    board = Board(21.7, 25.0, 1)
    errors, deviations = follow(acquired(board), board, 300)
    assert np.abs(errors).max() <= 21.7
    assert np.mean(deviations) == pytest.approx(21.7 / 12**0.5, rel=0.05)


def test_a_missed_update_does_not_put_the_beat_off() -> None:
    board = Board(21.7, 1.0, 2)
    beat = acquired(board)
    for missed in (2, 5):
        at_ns, early_ns, late_ns = board.update(beats=missed)
        placed_ns, deviation_ns = beat.place(early_ns, late_ns)
        assert abs(placed_ns - at_ns) < 4 * MS
        assert deviation_ns < 5 * MS
    errors, _ = follow(beat, board, 100)
    assert np.sqrt(np.mean(errors**2)) < 0.5 * 21.7 / 12**0.5


@pytest.mark.parametrize(("poll_ms", "guess_ms", "seed"), [(45.0, 85.0, 2), (48.0, 88.0, 3), (50.0, 92.0, 2)])
def test_a_period_guessed_wrongly_is_not_mended_by_updates_that_were_not_there(
    poll_ms: float, guess_ms: float, seed: int
) -> None:
    """Polls so rare see each update, but place none well: a beat that is too short fitted, with a skip here
    and there."""
    beat = Beat(guess_ms * MS)
    beat.start(990 * MS, 1030 * MS)
    polls_ms = 1030.0 + np.cumsum(poll_ms * np.random.default_rng(seed).uniform(0.75, 1.25, 800))
    updates_ms = np.floor(polls_ms / 100.0) * 100.0
    for at in np.flatnonzero(np.diff(updates_ms)) + 1:
        placed_ns, deviation_ns = beat.place(round(polls_ms[at - 1] * MS), round(polls_ms[at] * MS))
    assert beat.period_ns == pytest.approx(100 * MS, rel=0.01)
    assert abs(placed_ns - updates_ms[at] * MS) < 2 * deviation_ns


def test_polls_further_apart_than_its_period_leave_the_beat_as_it_is_and_say_how_little_they_know() -> None:
    board = Board(21.7, 2.0, 4)
    beat = acquired(board)
    rng = np.random.default_rng(4)
    off = []
    for _ in range(400):
        at_ns, _, _ = board.update(beats=int(rng.integers(2, 4)))
        next_ns, _, _ = board.update()
        late_ns = round(rng.uniform(at_ns, next_ns))
        placed_ns, deviation_ns = beat.place(late_ns - round(beat.period_ns), late_ns)
        off.append((placed_ns - at_ns) / deviation_ns)
    assert np.abs(off).max() < 3
    assert beat.period_ns == pytest.approx(100 * MS, rel=1e-3)


def test_a_beat_whose_phase_shifts_is_found_again() -> None:
    board = Board(21.7, 1.0, 3)
    beat = acquired(board)
    _, early_ns, late_ns = board.update(shift_ms=45.0)
    placed_ns, deviation_ns = beat.place(early_ns, late_ns)
    assert placed_ns == (early_ns + late_ns) / 2  # it is between the polls, and no more is known
    assert deviation_ns == pytest.approx(21.7 * MS / 12**0.5)
    follow(beat, board, 60)
    errors, _ = follow(beat, board, 100)
    assert np.sqrt(np.mean(errors**2)) < 0.5 * 21.7 / 12**0.5


def test_a_first_update_is_between_its_polls_and_no_more_is_known() -> None:
    beat = Beat(100.0 * MS)
    beat.start(1000 * MS, 1020 * MS)
    placed_ns, _ = beat.place(1100 * MS, 1120 * MS)
    assert placed_ns == 1110 * MS
