"""The simulator behind `python -m tests.bench.policy`, against answers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.policy.cases import Case, run_case
from tests.bench.policy.figures import figures, quantile
from tests.bench.policy.report import table
from tests.bench.policy.rules import RULES, Fifo, SortedWindow, ours
from tests.bench.policy.traffic import SST2, Kind, Lengths, at_random, in_bursts, recorded_lengths
from tests.bench.policy.world import Device, MakeRule, Request, Run, World
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.policy import BatchLimits

# A sequence of 100 tokens alone: 1 ms + 100 * (1 + 100 / 100) * 0.01 ms = 3 ms.
DEVICE = Device("d", overhead_ms=1.0, token_us=10, width=100)
MS = 1_000_000


def run(
    sent: list[tuple[float, int]],
    rule: MakeRule = ours,
    packs: bool = False,
    front_ms: float = 0.2,
    most: int = 32,
    deadline_ms: float | None = None,
) -> Run:
    """sent: (ms, tokens)."""
    world = World({"a": DEVICE}, packs, BatchLimits(most, 10_000), rule, front_ms)
    for number, (at_ms, length) in enumerate(sent):
        at_ns = int(at_ms * MS)
        deadline_ns = None if deadline_ms is None else at_ns + int(deadline_ms * MS)
        world.send(Request(number, "a", 2, deadline_ns, at_ns), length)
    return world.until_quiet()


def by_number(found: Run) -> list[Request]:
    return sorted(found.requests, key=lambda request: request.number)


def test_a_lone_request_takes_the_front_end_and_its_batch() -> None:
    (only,) = run([(5, 100)]).requests
    assert only.queued_ns == only.started_ns == 5_100_000
    assert only.answered_ns == 8_200_000


def test_the_front_end_does_one_thing_at_a_time_and_the_device_too() -> None:
    first, second = by_number(run([(0, 100), (0, 100)]))
    assert (first.started_ns, first.answered_ns) == (0.1 * MS, 3.2 * MS)
    assert second.queued_ns == 0.2 * MS
    assert (second.started_ns, second.answered_ns) == (3.1 * MS, 6.2 * MS)


def test_what_gathers_while_the_device_is_busy_runs_together_and_is_padded() -> None:
    found = run([(0, 100), (1, 50), (1.5, 60)], rule=Fifo)
    assert [request.started_ns / MS for request in by_number(found)] == [0.1, 3.1, 3.1]
    assert found.computed_tokens == 100 + 2 * 60
    assert found.real_tokens == 210
    assert found.batches == 2
    # 3.1 + 1 + 120 * 1.6 * 0.01 = 6.02 ms; the front end answers one after the other.
    assert [request.answered_ns / MS for request in by_number(found)] == pytest.approx([3.2, 6.12, 6.22])


def test_a_packed_batch_computes_its_rows() -> None:
    assert DEVICE.computed([40, 24, 16], packs=False) == (3, 40)
    assert DEVICE.computed([40, 24, 16], packs=True) == (2, 40)
    assert DEVICE.batch_ns(2, 40) == 2.12 * MS


def test_the_most_that_a_device_can_do_is_in_full_batches() -> None:
    # Padded in order of length: 1 + 1 x 2 x 1.01 x 0.01 and 1 + 3 x 2 x 1.03 x 0.01 ms for four.
    assert DEVICE.sequences_per_s([3, 1, 3, 1], packs=False, batch=2) == pytest.approx(4000 / 2.082)


def test_arrival_order_is_kept_and_a_sorted_window_is_closed() -> None:
    sent = [(0, 100), *[(0.5, length) for length in (30, 10, 20, 40)], (4.5, 5)]
    fifo = by_number(run(sent, rule=Fifo, most=2, front_ms=0))
    assert [request.started_ns for request in fifo[1:3]] == [3 * MS] * 2
    assert fifo[3].started_ns == fifo[4].started_ns < fifo[5].started_ns
    window = by_number(run(sent, rule=SortedWindow, most=2, front_ms=0))
    assert window[2].started_ns == window[3].started_ns == 3 * MS  # 10 and 20
    assert window[1].started_ns == window[4].started_ns < window[5].started_ns  # 30 and 40; 5 came later


def test_ours_is_the_queue_of_the_server() -> None:
    assert isinstance(ours(BatchLimits(1, 1), {}, lambda request, count: None), Batcher)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_request_whose_deadline_passes_while_it_waits_never_runs(rule: MakeRule) -> None:
    found = run([(0, 100), (0.5, 100)], rule, deadline_ms=2)
    first, second = by_number(found)
    assert (first.is_expired, second.is_expired) == (False, True)
    assert second.started_ns == -1
    assert figures(found).misses == 1  # the first one was answered too late


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_every_request_ends_once_whatever_the_rule(rule: MakeRule, packs: bool) -> None:
    kinds = (Kind("a", 1), Kind("b", 2, deadline_ms=80), Kind("b", 3))
    case = Case("c", devices=(("a", DEVICE), ("b", DEVICE)), kinds=kinds, load=1.5)
    found = run_case(case, rule, packs, 300, seed=3)
    assert sorted(request.number for request in found.requests) == list(range(300))
    assert all((request.started_ns >= 0) != request.is_expired for request in found.requests)


def test_a_closed_loop_has_no_more_in_flight_than_slots() -> None:
    case = Case("c", lengths=Lengths("hundreds", recorded=(100,)), devices=(("a", DEVICE),), slots=1)
    found = figures(run_case(case, ours, False, 20, seed=1))
    assert found.throughput == pytest.approx(1000 / 3.3)
    assert (found.wait_p50, found.longest_wait, found.tail) == (0, 0, 1)


def test_the_same_seed_gives_the_same_figures_and_another_does_not() -> None:
    case = Case("c", load=0.8)
    once, again, other = (figures(run_case(case, ours, True, 200, seed)) for seed in (1, 1, 2))
    assert once == again
    assert once != other


def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    assert quantile([4, 1, 3, 2], 0.5) == 2
    assert quantile(list(range(1, 101)), 0.99) == 99
    assert quantile([7], 0.99) == 7


def test_lengths_are_those_of_their_set() -> None:
    drawn = SST2.draw(20_000, "1")
    assert 26 < sum(drawn) / len(drawn) < 29
    assert (min(drawn), max(drawn)) == (3, 128)


def test_arrivals_keep_their_rate_and_bursts_come_at_one_instant() -> None:
    assert at_random(1000, 10_000, "1")[-1] == pytest.approx(10e9, rel=0.05)
    bursts = in_bursts(1000, 10_000, 10, "1")
    assert len(bursts) == 10_000
    assert len(set(bursts)) == 1000
    assert bursts[-1] == pytest.approx(10e9, rel=0.1)


def test_recorded_lengths_are_played_over_and_over(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("5\n7\n9\n")
    assert recorded_lengths(path).draw(5, "any") == [5, 7, 9, 5, 7]
    path.write_text("5\nseven\n")
    with pytest.raises(ValueError, match=r"line 2: 'seven' is no number of tokens"):
        recorded_lengths(path)
    path.write_text("")
    with pytest.raises(ValueError, match="holds no length"):
        recorded_lengths(path)


def test_the_table_has_a_row_for_each_rule() -> None:
    found = figures(run([(0, 100), (1, 50), (1.5, 60)], rule=Fifo))
    assert table([("FIFO", found)]).splitlines()[2].startswith("| FIFO | 1.05 |")
