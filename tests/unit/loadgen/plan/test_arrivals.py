"""Schedules of arrivals: the same for the same seed, true to their law, and careful readers of files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan import arrivals


def kolmogorov(values: npt.NDArray[np.float64]) -> float:
    """sqrt(n) times the largest distance of the values' distribution from the uniform one on [0, 1]."""
    ordered, n = np.sort(values), len(values)
    above = np.arange(1, n + 1) / n - ordered
    below = ordered - np.arange(n) / n
    return float(math.sqrt(n) * max(above.max(), below.max()))


ONE_IN_A_THOUSAND = 1.95  # the quantile of Kolmogorov's distribution


def test_the_first_arrivals_of_a_seed_never_change() -> None:
    assert arrivals.poisson(1_000.0, 1.0, "7:1")[:4].tolist() == [429856, 1006751, 1045385, 1352635]
    assert len(arrivals.poisson(1_000.0, 1.0, "7:1")) == 1032


def test_a_seed_gives_the_same_arrivals_and_another_gives_others() -> None:
    one, again = arrivals.poisson(50.0, 10.0, "a"), arrivals.poisson(50.0, 10.0, "a")
    assert one.tolist() == again.tolist()
    assert one.tolist() != arrivals.poisson(50.0, 10.0, "b").tolist()


def test_a_longer_schedule_begins_with_the_shorter_one() -> None:
    long = arrivals.poisson(1_000.0, 30.0, "x")
    assert arrivals.poisson(1_000.0, 3.0, "x").tolist() == arrivals.cut(long, 3.0).tolist()


def test_twice_the_rate_is_the_same_at_twice_the_pace() -> None:
    slow, fast = arrivals.poisson(100.0, 20.0, "x"), arrivals.poisson(200.0, 10.0, "x")
    assert np.abs(slow - 2 * fast).max() <= 2


def test_gaps_between_poisson_arrivals_are_exponential_and_independent() -> None:
    offsets = arrivals.poisson(2_000.0, 20.0, "gaps")
    gaps = np.diff(offsets, prepend=0) / 1e9 * 2_000
    assert kolmogorov(1 - np.exp(-gaps)) < ONE_IN_A_THOUSAND
    centred = gaps - gaps.mean()
    assert abs((centred[1:] * centred[:-1]).sum() / (centred**2).sum()) < 3.3 / math.sqrt(len(gaps))


def test_counts_of_poisson_arrivals_vary_as_much_as_their_mean() -> None:
    counts = np.array([len(arrivals.poisson(100.0, 1.0, f"count {seed}")) for seed in range(1_000)])
    assert counts.mean() == pytest.approx(100, abs=3.3 * 10 / math.sqrt(1_000))
    assert counts.var() / 100 == pytest.approx(1, abs=3.3 * math.sqrt(2 / 1_000))


def test_constant_arrivals_are_evenly_spaced_from_0() -> None:
    assert arrivals.constant(4.0, 1.0).tolist() == [0, 250_000_000, 500_000_000, 750_000_000]
    assert arrivals.constant(3.0, 1.0).tolist() == [0, 333_333_333, 666_666_667]
    assert arrivals.constant(0.5, 1.0).tolist() == [0]
    assert len(arrivals.constant(1_234.5, 100.0)) == 123_450


@pytest.mark.parametrize(("first", "last"), [(0.0, 400.0), (400.0, 0.0), (100.0, 300.0), (200.0, 200.0)])
def test_a_ramp_has_the_arrivals_that_its_rates_add_up_to(first: float, last: float) -> None:
    counts = np.array(
        [
            np.bincount(arrivals.ramp(first, last, 4.0, f"{seed}") // 1_000_000_000, minlength=4)
            for seed in range(200)
        ]
    )
    step = (last - first) / 4
    expected = np.array([first + step * (second + 0.5) for second in range(4)])
    assert counts.shape == (200, 4)
    assert np.abs(counts.mean(axis=0) - expected).max() < 4 * math.sqrt(400 / 200)


@pytest.mark.parametrize(("first", "last"), [(0.0, 2_000.0), (3_000.0, 500.0)])
def test_arrivals_of_a_ramp_are_uniform_in_expected_count(first: float, last: float) -> None:
    seconds = arrivals.ramp(first, last, 10.0, "ks") / 1e9
    counted = first * seconds + (last - first) * seconds**2 / 20
    assert kolmogorov(counted / ((first + last) / 2 * 10)) < ONE_IN_A_THOUSAND


def test_a_flat_ramp_is_a_poisson_schedule() -> None:
    flat, plain = arrivals.ramp(70.0, 70.0, 9.0, "z"), arrivals.poisson(70.0, 9.0, "z")
    assert np.abs(flat - plain).max() <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: arrivals.poisson(0.0, 1.0, ""), "a rate of 0/s: it must be above 0"),
        (lambda: arrivals.poisson(math.nan, 1.0, ""), "a rate of nan/s"),
        (lambda: arrivals.constant(5.0, 0.0), "0 s of load"),
        (lambda: arrivals.constant(5.0, math.inf), "inf s of load"),
        (lambda: arrivals.poisson(1e6, 86_400.0, ""), "are over 50000000 requests"),
        (lambda: arrivals.ramp(0.0, 0.0, 1.0, ""), "a rate of 0/s"),
        (lambda: arrivals.ramp(5.0, math.nan, 1.0, ""), "a ramp from 5/s to nan/s"),
        (lambda: arrivals.ramp(-1.0, 5.0, 1.0, ""), "a ramp from -1/s to 5/s: a rate is at least 0"),
    ],
)
def test_load_that_cannot_be_made_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "0.5\n0.5\n1.25\n"),
        ("a.txt", "arrival\r\n0.5\r\n0.5\r\n\r\n1.25"),
        ("a.csv", '\ufeff"at"\n0.5\n"0.5"\n 1.25\n'),
        ("a.jsonl", "0.5\n0.5\n\n1.25"),
        ("a.txt", "1700000000.5\n1700000000.5\n1700000001.25\n"),
    ],
)
def test_recorded_times_count_from_the_first(tmp_path: Path, name: str, text: str) -> None:
    path = written(tmp_path, name, text)
    found = arrivals.recorded(path)
    assert found.offsets_ns.tolist() == [0, 0, 750_000_000]
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_recording_plays_faster(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "0\n1\n3\n")
    assert arrivals.recorded(path, speed=2.0).offsets_ns.tolist() == [0, 500_000_000, 1_500_000_000]
    with pytest.raises(PlanError, match="speed 0: a recording plays at a speed above 0"):
        arrivals.recorded(path, speed=0.0)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "holds no arrival time"),
        ("a.txt", "seconds\n", "holds no arrival time"),
        ("a.txt", "0\n1\nlate\n", "line 3: 'late' is not a number of seconds"),
        ("a.txt", "0\n2\n\n1\n", "line 4: 1.0 s comes after 2.0 s; sort the times"),
        ("a.txt", "0\n-1\n", "line 2: -1.0 is no arrival time"),
        ("a.txt", "nan\n", "line 1: nan is no arrival time"),
        ("a.txt", "0\n1e300\n", "lasts 1e.300 s"),
        ("a.csv", "id,at\n1,0\n", "has 2 columns; keep only the one with the times"),
        ("a.jsonl", "0\n[1", "line 2: is not JSON"),
        ("a.jsonl", '{"at": 0}', "line 1: \"{'at': 0}\" is not a number of seconds"),
        ("a.jsonl", '"0"', "line 1: '0' is not a number of seconds"),
        ("a.jsonl", "true", "line 1: 'True' is not a number of seconds"),
        ("a.jsonl", "1" + "0" * 400, "line 1: inf is no arrival time"),
    ],
)
def test_a_recording_that_cannot_be_played_names_its_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(PlanError, match=message) as error:
        arrivals.recorded(written(tmp_path, name, text))
    assert str(error.value).startswith(f"{tmp_path / name}: ")
    assert "\n" not in str(error.value)


def test_a_recording_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        arrivals.recorded(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="is not text in UTF-8"):
        arrivals.recorded(tmp_path / "binary.txt")


def test_a_cut_ends_before_its_end() -> None:
    assert arrivals.cut(np.array([0, 999_999_999, 1_000_000_000]), 1.0).tolist() == [0, 999_999_999]


def test_a_repeated_recording_leaves_a_mean_gap_between_rounds() -> None:
    second = 1_000_000_000
    found = arrivals.repeated(np.array([0, second, 4 * second]), 13.0)
    assert (found / second).tolist() == [0, 1, 4, 6, 7, 10, 12]


def test_a_single_instant_cannot_be_repeated() -> None:
    with pytest.raises(PlanError, match="give at least two"):
        arrivals.repeated(np.array([0]), 5.0)
    with pytest.raises(PlanError, match="has over 50000000 arrivals"):
        arrivals.repeated(np.array([0, 1]), 5.0)
